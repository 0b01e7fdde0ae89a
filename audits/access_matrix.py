"""Who can see what: one cell for each role and each kind of information, from the trials.

No cell says more than its trials did. "Nothing" needs at least one attack that works unprotected,
fails on nothing, and fails here; where every attack is inconclusive, so is the cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from secure_fl.audits.attacks import counts, membership, metadata, predictions, reading
from secure_fl.audits.document import Access, CellPart, RowPart
from secure_fl.audits.findings import AuditTrial, Verdict
from secure_fl.audits.roles import CODE, PUBLIC


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One kind of information: which attacks look for it, and what finding it means."""

    what: str
    attacks: tuple[str, ...]
    found: Access = "everything"
    promised: bool = True  # that nobody sees it under he+secagg, alone or with some others
    from_updates: bool = False  # it could only be found in an update that was read
    required: bool = True  # that an attack of it comes to a verdict, if it is promised


def _asked(what: str, name: str) -> tuple[MatrixRow, MatrixRow]:
    """What hospitals count when they are asked: each one's counts, and those of several."""
    return (
        MatrixRow(f"one hospital's counts in {what}", (f"{name}: {counts.ONE}",)),
        MatrixRow(
            f"sums of counts in {what}", (f"{name}: {counts.SUM}",), "of a sum", promised=False
        ),
    )


MEMBERSHIP = (membership.LIRA, membership.RMIA, predictions.MEMBERSHIP)
ROWS = (
    MatrixRow("one hospital's update", (reading.ONE,)),
    MatrixRow("a sum of updates", (reading.SUM,), found="of a sum", promised=False),
    MatrixRow(
        "words of one hospital's records",
        ("token bag", "span check", "gradient matching", "whole texts"),
        from_updates=True,
    ),
    MatrixRow(
        "how many records of each label a hospital has",
        ("label counts",),
        from_updates=True,
    ),
    MatrixRow(
        "the number of records that a hospital sends along", (reading.COUNTS,), required=False
    ),
    MatrixRow("how many records a hospital has", (metadata.SIZES, metadata.TIMING), "sizes", False),
    MatrixRow(
        "whether a record was trained on",
        MEMBERSHIP,
        promised=False,
    ),
    MatrixRow("the label histogram", (predictions.LABELS,), promised=False),
    *_asked("a question about records", counts.QUESTIONS),
    *_asked("an evaluation", counts.EVALUATION),
)


def ident(trial: AuditTrial) -> str:
    """A trial's id: how cells and reports point to it."""
    found = trial.deployed
    about = f"/{found.target}" if trial.role == CODE and found is not None else ""
    return re.sub(r"[^\w/.+:-]+", "-", f"{trial.attack}/{trial.role}{about}")


def matrix(trials: Sequence[AuditTrial], roles: Sequence[str]) -> tuple[RowPart, ...]:
    """Every row that any attack looked for, over all roles."""
    rows = []
    for row in ROWS:
        if any(trial.attack in row.attacks for trial in trials):
            cells = tuple(_cell(row, role, trials) for role in roles)
            rows.append(RowPart(what=row.what, cells=cells))
    return tuple(rows)


def answer(
    row: MatrixRow, role: str, trials: Sequence[AuditTrial]
) -> tuple[Verdict, tuple[AuditTrial, ...]]:
    """Answer one cell: what this role learns of this row, and which trials say so.

    A role that could read no single hospital's update has nothing to find in it, even where an
    attack does not work on updates like these (AdamW's, after epochs). Where it could read one, all
    attacks of the row must come to a verdict before "nothing" is said.
    """
    mine = [t for t in trials if t.role == role and t.attack in row.attacks]
    leaking, holding, weak = (
        tuple(t for t in mine if t.verdict is verdict)
        for verdict in (Verdict.LEAKS, Verdict.HOLDS, Verdict.INCONCLUSIVE)
    )
    if leaking:
        return Verdict.LEAKS, leaking
    if row.from_updates and mine:
        unread = tuple(t for t in trials if t.role == role and t.attack == reading.ONE)
        if unread and all(trial.verdict is Verdict.HOLDS for trial in unread):
            return Verdict.HOLDS, holding or unread
    if weak:
        return Verdict.INCONCLUSIVE, (*weak, *holding)
    return (Verdict.HOLDS if holding else Verdict.UNTESTED), holding


def _cell(row: MatrixRow, role: str, trials: Sequence[AuditTrial]) -> CellPart:
    verdict, found = answer(row, role, trials)
    evidence = tuple(map(ident, found))
    if verdict is Verdict.LEAKS:
        best = max(found, key=lambda t: (t.deployed and t.deployed.value) or 0.0)
        return CellPart(role=role, access=_access(row, best), evidence=evidence, note=_note(best))
    if verdict is Verdict.HOLDS:
        implied = not any(trial.attack in row.attacks for trial in found)
        note = "no single update could be read" if implied else ""
        return CellPart(role=role, access="nothing", evidence=evidence, note=note)
    access: Access = "inconclusive" if verdict is Verdict.INCONCLUSIVE else "not tested"
    held = [t.attack for t in found if t.verdict is Verdict.HOLDS]
    why = _why(t for t in trials if t.role == role and t.attack in row.attacks)
    note = f"not by {', '.join(held)}" if held else why
    return CellPart(role=role, access=access, evidence=evidence, note=note)


def _why(mine: Iterable[AuditTrial]) -> str:
    """Why nothing can be said, in the words of the trials."""
    said = []
    for trial in mine:
        if trial.verdict is Verdict.UNTESTED:
            said.append(trial.reason)
        elif trial.control is not None and trial.control.value is None:
            said.append(f"{trial.attack}: {trial.control.note}")
    return "; ".join(dict.fromkeys(filter(None, said)))


def _access(row: MatrixRow, trial: AuditTrial) -> Access:
    """Name the access: "of a sum" if the finding is about one, else the row's own word."""
    target = trial.deployed.target if trial.deployed else ""
    return "of a sum" if target.startswith("the sum") else row.found


def _note(trial: AuditTrial) -> str:
    found = trial.deployed
    if found is None or found.value is None:
        return ""
    return f"{found.measure} {found.value:.2f} ({found.target})"


def promised(trial: AuditTrial, within_bound: Mapping[str, bool]) -> bool:
    """Whether the protection promises that this attack fails for this role.

    Beyond the number of colluders that a run states, nothing is promised; and what is read of a sum
    is what parties are meant to learn.
    """
    rows = [row for row in ROWS if trial.attack in row.attacks]
    of_sum = trial.deployed is not None and trial.deployed.target.startswith("the sum")
    return (
        any(row.promised for row in rows)
        and trial.role != PUBLIC
        and within_bound.get(trial.role, True)
        and not of_sum
    )
