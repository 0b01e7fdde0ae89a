"""The party program of a codebook: two sums of fixed sizes, whatever becomes of it.

1. Each site counts, or refuses for a reason that stays there. The number of refusals is a sum.
2. The counts are a second sum. If any site refuses, all sites add zeros, and nothing is released.
3. All members decide alike which counts are released, note it, and prove that theirs is equal.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from secure_fl.crypto.privacy.accounting import SkellamRelease, epsilon
from secure_fl.crypto.privacy.ledger import Account, Budget, Unit
from secure_fl.crypto.privacy.noise import counts_release, share_variance, skellam
from secure_fl.errors import BudgetError, CohortError, DataError
from secure_fl.events import Warned
from secure_fl.features.statistics.codebook import REFUSED, Codebook
from secure_fl.features.statistics.counting import Integers, Tabulation, counts_of
from secure_fl.features.statistics.document import document_of
from secure_fl.features.statistics.note import Note
from secure_fl.features.statistics.release import layouts, tabulations, total_of
from secure_fl.features.statistics.suppression import suppressed
from secure_fl.features.statistics.tables import RecordTable, table_of
from secure_fl.learning.site_context import Findings
from secure_fl.party.cohort import Cohort

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

DIGIT, PLANES = 6, 6  # bits of a digit and digits of a count, for sums of 8 bits or more
BOUND = 127.0
LEFT = "a hospital left between the two sums"
SOME_REFUSED = "at least one hospital refused; its own log has the reason"


def release_of(codebook: Codebook) -> SkellamRelease:
    """Return the least noise that costs no more than the codebook's ε."""
    tables, records = len(codebook.scopes), float(codebook.records_per_patient)
    return counts_release(codebook.epsilon or 0.0, codebook.delta, releases=tables, change=records)


class NoiseBudget:
    """One site's account of noised counts."""

    def __init__(self, site: Site, codebook: Codebook, unit: Unit) -> None:
        self._codebook, self._account = codebook, Account(f"{site.name}, codebooks", unit)
        self._budget = Budget(site.options.get("max_epsilon", math.inf), codebook.delta)
        self._ledger = None if site.ledger is None else site.ledger()

    def check(self) -> None:
        """Raise BudgetError if the budget cannot pay; nothing is spent."""
        before = [] if self._ledger is None else self._ledger.events(self._account)
        after = epsilon([*before, release_of(self._codebook)], self._budget.delta)
        if not after <= self._budget.epsilon:
            raise BudgetError(
                f"this codebook would make epsilon {after:.3g} for each {self._account.unit}, and "
                f"the limit is {self._budget.epsilon:g}",
                fix="write a smaller epsilon in the codebook; a larger max_epsilon in "
                "[site.statistics] is a decision of those who answer for the records",
                party=self._account.dataset,
                reason="spent",
            )

    def reserve(self) -> None:
        """Enter the release durably before its noise is drawn."""
        if self._ledger is not None:
            event, run = release_of(self._codebook), os.urandom(8).hex()
            self._ledger.reserve(event, self._account, self._budget, run=run)


async def count(cohort: Cohort, site: Site, codebook: Codebook) -> None:
    """Run the program of one party."""
    own = OwnCounts(site, codebook, cohort)
    await cohort.agree(codebook.model_dump_json().encode(), "the codebook")
    async for _ in cohort.rounds(1, keep={"findings": Findings(site.findings)}):
        refusals = await exact_sum(cohort, np.array([int(own.refused)]))
        reason = LEFT if cohort.survivors != own.hospitals else SOME_REFUSED if refusals[0] else ""
        earlier = reason.encode() or own.note.fingerprint(own.table)
        await cohort.agree(earlier, "the note of earlier codebooks")
        counts = np.zeros(codebook.cells, np.int64) if reason else own.begin()
        noted = () if reason else (own.state,)
        opened = await exact_sum(cohort, counts, together=True, questions=noted)
        if reason or not opened.size:
            site.findings["statistics"] = {"status": "refused", "reason": reason or LEFT}
            continue
        site.findings["statistics"] = own.release(opened)
    if "statistics" not in site.findings:
        raise CohortError(
            "the codebook was opened before this hospital joined",
            fix="open the codebook again, in a run that begins with all its hospitals",
        )
    agreed = json.dumps(site.findings["statistics"], sort_keys=True)
    await cohort.agree(agreed.encode(), "the released tables")


class OwnCounts:
    """One site's part in a codebook: its counts or its refusal, its note and its budget."""

    def __init__(self, site: Site, codebook: Codebook, cohort: Cohort) -> None:
        self.table: RecordTable = table_of(site.silo)
        self.state, self.refused = self.table.state, False
        self._codebook, self._threshold = codebook, cohort.threshold
        self.hospitals = cohort.parties
        self.note = Note(None if site.ledger is None else site.ledger().path.parent)
        self._budget: NoiseBudget | None = None
        self._counts = np.zeros(codebook.cells, np.int64)
        try:
            self._prepare(site)
        except (DataError, CohortError, BudgetError) as error:
            self.refused = True
            text = str(error.at(party=site.name))
            site.recorder.event(Warned(party=site.name, code=REFUSED, text=text))

    def _prepare(self, site: Site) -> None:
        """Count, unless the records, earlier codebooks or the budget stand against it."""
        codebook = self._codebook
        self._counts, unread = counts_of(codebook, self.table)
        for name, missing in unread.items():
            if not missing:
                continue
            text = f"{missing} of {len(self.table)} values of {name} are missing or not listed"
            site.recorder.event(Warned(party=site.name, code="values not listed", text=text))
        if codebook.epsilon is None:
            self.note.require_same(self.table, codebook, self.hospitals)
            return
        self._budget = NoiseBudget(site, codebook, "patient" if self.table.grouped else "record")
        self._budget.check()

    def begin(self) -> Integers:
        """Note or reserve what is opened now, and return the counts to add."""
        if self._budget is None:
            self.note.begin(self.table)
            return self._counts
        self._budget.reserve()
        release, sites = release_of(self._codebook), len(self.hospitals)
        variance = share_variance(release, sites, self._threshold)
        return self._counts + skellam(variance, self._counts.size)

    def release(self, opened: Integers) -> dict[str, Any]:
        """Decide what is released, note it, and describe it."""
        codebook, exact = self._codebook, self._codebook.epsilon is None
        found = layouts(codebook, opened, merging=exact)
        tables = tabulations(codebook, found)
        if exact:
            tables = self._released(tables, total_of(found))
        return document_of(codebook, found, tables, self.hospitals)

    def _released(self, tables: Sequence[Tabulation], total: int) -> list[Tabulation]:
        """Hide counts, given all earlier codebooks; the same codebook is released as before."""
        before: list[Tabulation] = []
        asked = self._codebook.model_dump(mode="json")
        for one in self.note.earlier(self.table):
            earlier = list(map(Tabulation.from_json, one["tables"]))
            if one["codebook"] == asked:
                return earlier
            before += earlier
        released = suppressed(tables, before, total, self._codebook.least)
        self.note.opened(asked, self.hospitals, self.table, released)
        return released


async def exact_sum(
    cohort: Cohort, values: Integers, *, together: bool = False, questions: tuple[str, ...] = ()
) -> Integers:
    """Add integers without rounding, as digits; empty: a party left since the last sum."""
    digits = {
        f"{place}": values >> DIGIT * place & (1 << DIGIT) - 1
        if place < PLANES - 1
        else np.clip(values >> DIGIT * place, -BOUND, BOUND)
        for place in range(PLANES)
    }
    opened = await cohort.sum(digits, bound=BOUND, together=together, questions=questions)
    if not opened:
        return np.zeros(0, np.int64)
    parts = [np.rint(opened[f"{k}"]).astype(np.int64) << DIGIT * k for k in range(PLANES)]
    summed: Integers = np.sum(parts, axis=0)
    return summed.reshape(values.shape)
