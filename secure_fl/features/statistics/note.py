"""A site's permanent note about opened codebooks, in the folder of its ledger.

    records    the patients of one state of the records, before anything of it is opened
    codebook   a codebook over them, its hospitals, and all its counts with the released ones marked

A later codebook is audited together with all earlier ones over the same records. So the records
must be the same as before, or of other patients, and the hospitals must be the same as well. Keys
of records without ids change with every column, and cannot show that patients are others.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl.errors import CohortError, DataError
from secure_fl.features.statistics.codebook import OF_LABEL, Codebook
from secure_fl.features.statistics.counting import Tabulation, labels_in
from secure_fl.features.statistics.tables import RecordTable
from secure_fl.files import Lines, lock_file

NOTE, LOCK = "statistics.jsonl", ".statistics.lock"


class Note:
    """One site's note; without a folder it ends with the process."""

    def __init__(self, folder: Path | None = None) -> None:
        lines = None if folder is None else Lines(folder / NOTE, "which codebook is opened")
        self._lines, self._kept = lines, list(lines or ())
        self._folder, self._lock = folder, ExitStack()

    def lock(self) -> None:
        """Lock the note until `unlock`, and read it again; raise if another process holds it."""
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not lock_file(self._lock.enter_context((self._folder / LOCK).open("w"))):
            self._lock.close()
            raise CohortError(
                "another codebook is being opened over this hospital's records",
                fix="open codebooks one after the other",
            )
        self._kept = list(self._lines or ())

    def unlock(self) -> None:
        """Let other processes open codebooks."""
        self._lock.close()

    def require_same(
        self, table: RecordTable, codebook: Codebook, hospitals: Sequence[str]
    ) -> None:
        """Refuse records that changed since an earlier codebook, and counts in another way."""
        state, own = table.state, np.unique(table.patients)
        for line in self._of("records"):
            if line["state"] == state:
                continue
            if table.named is None or line.get("named") != table.named:
                raise DataError(
                    "an earlier codebook counted other records, and without ids of one column in "
                    "both nobody can tell if they share patients",
                    fix="count the same records again, with the same columns; begin another data "
                    "set with a column of ids or patients",
                    field="records",
                )
            before = np.frombuffer(b64decode(line["patients"]), own.dtype)
            if both := len(np.intersect1d(own, before)):
                raise DataError(
                    f"{both} of {len(own)} patients were in the records of an earlier codebook, "
                    "and the records have changed since: two tables would differ by few patients",
                    fix="count the same records again, or other patients; the records of a new "
                    "period belong into a data set of their own",
                    field="records",
                )
        codebooks = [codebook]
        for line in self._of("codebook"):
            if line["state"] == state:
                codebooks.append(Codebook.model_validate_json(json.dumps(line["codebook"])))
                _require_like(codebooks[-1], codebook)
                _require_hospitals(line["hospitals"], sorted(hospitals))
        _require_separate_labels(
            table, set().union(*(one.forms for one in codebooks)), codebook.least
        )

    def begin(self, table: RecordTable) -> None:
        """Note the patients before a sum over their records is opened."""
        state = table.state
        if all(line["state"] != state for line in self._of("records")):
            patients = b64encode(np.unique(table.patients).tobytes()).decode()
            line = {"what": "records", "state": state, "named": table.named}
            self._add(line | {"patients": patients})

    def earlier(self, table: RecordTable) -> list[dict[str, Any]]:
        """Return the codebooks over these records, without their states: equal at all sites."""
        state = table.state
        found = (line for line in self._of("codebook") if line["state"] == state)
        return [
            {name: line[name] for name in ("codebook", "hospitals", "tables")} for line in found
        ]

    def fingerprint(self, table: RecordTable, codebook: Any) -> bytes:
        """Return a digest of the codebooks before this one, which must be equal at all sites.

        A site that did not finish this codebook has no line about it, and may repeat it.
        """
        before = takewhile(lambda one: one["codebook"] != codebook, self.earlier(table))
        text = json.dumps(list(before), sort_keys=True)
        return hashlib.sha256(text.encode()).digest()

    def opened(
        self,
        codebook: Any,
        hospitals: Sequence[str],
        table: RecordTable,
        tables: Sequence[Tabulation],
    ) -> None:
        """Note a codebook's counts before any of them is released."""
        line = {"codebook": codebook, "hospitals": sorted(hospitals)}
        line["tables"] = [one.to_json() for one in tables]
        if line not in self.earlier(table):
            self._add({"what": "codebook", "state": table.state} | line)

    def _of(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self._kept if line["what"] == what]

    def _add(self, line: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.append(line)
        self._kept.append(json.loads(json.dumps(line)))


def _require_hospitals(before: list[str], now: list[str]) -> None:
    if before != now:
        raise CohortError(
            f"an earlier codebook over these records had {', '.join(before)}, and this one has "
            f"{', '.join(now)}: two tables would differ by one hospital's patients",
            fix="open the codebook over the same hospitals",
            field="hospitals",
        )


def _require_like(earlier: Codebook, now: Codebook) -> None:
    """Refuse counts that the audit could not compare with an earlier codebook's."""
    if earlier.records_per_patient != now.records_per_patient:
        raise DataError(
            f"an earlier codebook counted {earlier.records_per_patient} records of each patient "
            f"instead of {now.records_per_patient}: two tables would differ by few records",
            fix=f"write records_per_patient = {earlier.records_per_patient}",
            field="records_per_patient",
        )
    for column in earlier.forms.keys() & now.forms.keys():
        if earlier.forms[column] != now.forms[column]:
            (form,) = earlier.forms[column]
            raise DataError(
                f"an earlier codebook counted this column as {form}",
                fix=f"write {form} for it, with other limits if needed",
                field=column,
            )


def _require_separate_labels(table: RecordTable, columns: set[str], least: int) -> None:
    """Refuse counts of one label that nearly follow from others: the audit compares no labels.

    Members learn of the refusal, so it depends on no fewer records than a released count.
    """
    single = sorted(column for column in columns if column.startswith(OF_LABEL))
    if not single or "label" not in table.frame:
        return
    if sum(len(set(labels_in(cell))) > 1 for cell in table.frame["label"]) < least:
        raise DataError(
            f"fewer than {least} records have two labels, so the count of the rest nearly follows "
            "from this count and those of other labels",
            fix="count the values of label instead",
            field=single[0],
        )
    if "label" in columns:
        raise DataError(
            "the values of label are counted as well, here or in an earlier codebook: the audit "
            "cannot compare the two",
            fix="count either values of label or single labels over these records",
            field=single[0],
        )
