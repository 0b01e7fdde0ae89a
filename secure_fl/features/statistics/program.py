"""One party's protocol for a codebook: two secure sums whose sizes do not depend on the outcome.

1. Each site counts, or refuses; the reason stays in its own log. The number of refusals is a sum.
2. The counts are a second sum. If any site refuses, all sites add zeros, and nothing is released.
3. All members compute the same suppression, record it in their permanent notes (`note`), and
   compare the released tables.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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

DIGIT_BITS, DIGITS = 6, 6  # of a count, for sums of 8 bits or more
LOW_BITS = (1 << DIGIT_BITS) - 1
LARGEST_DIGIT = 127.0  # of the last digit, so counts up to 127 · 2³⁰ are exact
LEFT = "a hospital left between the two sums"
NOTES = "the note of earlier codebooks"  # what members compare before the second sum
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
        if self._ledger is not None:
            self._ledger.require_unit(self._account)
        after = epsilon([*before, release_of(self._codebook)], self._budget.delta)
        if not after <= self._budget.epsilon:
            raise BudgetError(
                f"this codebook would make epsilon {after:.3g} for each {self._account.unit}, and "
                f"the limit is {self._budget.epsilon:g}",
                fix="write a smaller epsilon in the codebook, or ask the people responsible for "
                "the records to raise max_epsilon in [site.statistics]",
                party=self._account.dataset,
                reason="spent",
            )

    def reserve(self) -> None:
        """Record the release in the ledger, durably, before its noise is drawn."""
        if self._ledger is not None:
            event, run = release_of(self._codebook), os.urandom(8).hex()
            self._ledger.reserve(event, self._account, self._budget, run=run)


async def run_codebook(cohort: Cohort, site: Site, codebook: Codebook) -> None:
    """Open a codebook with the other hospitals; the findings get its tables or the refusal."""
    own = OwnCounts(site, codebook, cohort)
    try:
        await _agree_and_open(cohort, site, own)
    finally:
        own.note.unlock()


async def _agree_and_open(cohort: Cohort, site: Site, own: OwnCounts) -> None:
    await cohort.agree(own.codebook.model_dump_json().encode(), "the codebook")
    async for _ in cohort.rounds(1, keep={"findings": Findings(site.findings)}):  # once
        site.findings["statistics"] = await _open(cohort, own)
    if "statistics" not in site.findings:  # it joined after the only round
        raise CohortError(
            "the codebook was opened before this hospital joined",
            fix="open the codebook again, in a run that begins with all its hospitals",
        )
    agreed = json.dumps(site.findings["statistics"], sort_keys=True)
    await cohort.agree(agreed.encode(), "the released tables")


async def _open(cohort: Cohort, own: OwnCounts) -> dict[str, Any]:
    """Sum the refusals, then the counts; return the released tables or why there are none."""
    refusals = await exact_sum(cohort, np.array([int(own.refused)]))
    reason = ""
    if refusals is None or cohort.survivors != own.hospitals:
        reason = LEFT
    elif own.refused and refusals[0] < 1:  # another one cancelled it with a negative number
        raise CohortError(
            "this hospital refused the codebook, and the sum of refusals is less than 1: another "
            "hospital sent a wrong number",
            fix="ask the other hospitals which program they run, before a codebook is opened again",
        )
    elif refusals[0]:
        reason = SOME_REFUSED
    if reason:  # all members must know the same reason, or have the same notes
        await cohort.agree(reason.encode(), NOTES)
        await exact_sum(cohort, own.zeros, together=True)
        return {"status": "refused", "reason": reason}
    await cohort.agree(own.fingerprint(), NOTES)
    counts = own.record_and_get_counts()  # recorded before anything is opened
    opened = await exact_sum(cohort, counts, together=True, questions=(own.table.state,))
    if opened is None:
        return {"status": "refused", "reason": LEFT}
    return own.release(opened)


class OwnCounts:
    """One site's part in a codebook: its counts or its refusal, its note and its budget."""

    def __init__(self, site: Site, codebook: Codebook, cohort: Cohort) -> None:
        self.table: RecordTable = table_of(site.silo)
        self.refused, self.hospitals = False, cohort.parties
        self.note = Note(None if site.ledger is None else site.ledger().path.parent)
        self.zeros = np.zeros(codebook.cells, np.int64)
        self.codebook, self._threshold = codebook, cohort.threshold
        self._budget: NoiseBudget | None = None  # None: counts without noise
        self._counts = self.zeros
        try:
            self._prepare(site)
        except (DataError, CohortError, BudgetError) as error:
            self.refused, self._counts = True, self.zeros
            text = str(error.at(party=site.name))
            site.recorder.event(Warned(party=site.name, code=REFUSED, text=text))

    def _prepare(self, site: Site) -> None:
        """Count; raise if records changed, earlier codebooks conflict, or the budget is spent."""
        codebook = self.codebook
        self._counts, unlisted = counts_of(codebook, self.table)
        for name, missing in unlisted.items():
            if not missing:
                continue
            text = f"{missing} of {len(self.table)} values of {name} are missing or not listed"
            site.recorder.event(Warned(party=site.name, code="values not listed", text=text))
        if codebook.epsilon is None:
            self.note.lock()
            self.note.require_same(self.table, codebook, self.hospitals)
            return
        self._budget = NoiseBudget(site, codebook, "patient" if self.table.grouped else "record")
        self._budget.check()

    def fingerprint(self) -> bytes:
        """Return the digest of earlier codebooks that all members compare."""
        return self.note.fingerprint(self.table, self.codebook.model_dump(mode="json"))

    def record_and_get_counts(self) -> Integers:
        """Record the patients or the noise durably, and return the counts to add."""
        if self._budget is None:
            self.note.begin(self.table)
            return self._counts
        self._budget.reserve()
        noise, sites = release_of(self.codebook), len(self.hospitals)
        variance = share_variance(noise, sites, self._threshold)
        return self._counts + skellam(variance, self._counts.size)

    def release(self, opened: Integers) -> dict[str, Any]:
        """Return the document of the opened counts; without noise, small ones are suppressed."""
        codebook = self.codebook
        exact = codebook.epsilon is None
        tables_layouts = layouts(codebook, opened, merging=exact)
        tables = tabulations(codebook, tables_layouts)
        if exact:
            tables = self._suppress_and_record(tables, total_of(tables_layouts))
        return document_of(codebook, tables_layouts, tables, self.hospitals)

    def _suppress_and_record(self, tables: Sequence[Tabulation], total: int) -> list[Tabulation]:
        """Suppress counts, given all earlier tables, and record the codebook with its tables.

        If this codebook was opened before, return its earlier tables.
        """
        earlier: list[Tabulation] = []
        codebook = self.codebook.model_dump(mode="json")
        for entry in self.note.earlier(self.table):
            entry_tables = list(map(Tabulation.from_json, entry["tables"]))
            if entry["codebook"] == codebook:
                return entry_tables
            earlier += entry_tables
        released = suppressed(tables, earlier, total, self.codebook.least)
        self.note.opened(codebook, self.hospitals, self.table, released)
        return released


async def exact_sum(
    cohort: Cohort, values: Integers, *, together: bool = False, questions: tuple[str, ...] = ()
) -> Integers | None:
    """Add integers without rounding, as digits.

    None: the sum was to be opened `together` with the one before, and a party has left since.
    """
    digits = {str(place): _digit(values, place) for place in range(DIGITS)}
    opened = await cohort.sum(digits, bound=LARGEST_DIGIT, together=together, questions=questions)
    if not opened:
        return None
    parts = [np.rint(opened[str(k)]).astype(np.int64) << (DIGIT_BITS * k) for k in range(DIGITS)]
    summed: Integers = np.sum(parts, axis=0)
    return summed.reshape(values.shape)


def _digit(values: Integers, place: int) -> NDArray[Any]:
    """Return one digit of each value; the last one has the sign and all higher bits."""
    shifted: Integers = values >> (DIGIT_BITS * place)
    last = place == DIGITS - 1
    return shifted.clip(-LARGEST_DIGIT, LARGEST_DIGIT) if last else shifted & LOW_BITS
