"""Whether a role can read what a hospital counted, or the sum of what several counted.

Counts travel exactly, so each of them was read or was not; a correlation would say less. Zeros tell
nothing: where most cells are empty, guessing them is no success. Few distinct small numbers fit in
many places, so only nearly all of them count as read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from secure_fl.audits.attacks.reading import Sent
from secure_fl.audits.findings import AuditFinding, Reading, View

QUESTIONS, EVALUATION = "questions", "evaluation"  # what hospitals are asked to count for
ONE, SUM = "one hospital's counts", "a sum of counts"
THRESHOLD = 0.9  # of the counts that are not 0


def reading_one(asked: str, view: View, sent: Sent, names: Sequence[str] = ()) -> AuditFinding:
    """The best reading of a single hospital, held against what it counted."""
    return _best(f"{asked}: {ONE}", view, [r for r in view.readings if len(r.of) == 1], sent, names)


def reading_sum(asked: str, view: View, sent: Sent, names: Sequence[str] = ()) -> AuditFinding:
    """The best reading of a sum, held against it."""
    return _best(f"{asked}: {SUM}", view, [r for r in view.readings if len(r.of) > 1], sent, names)


def _best(
    attack: str, view: View, readings: Sequence[Reading], sent: Sent, names: Sequence[str]
) -> AuditFinding:
    blank = AuditFinding(attack, view.role, "", "counts that were read", None, 0.0, THRESHOLD, 0)
    found = [(reading, *_right(reading, sent, names)) for reading in readings]
    found = [one for one in found if one[2]]
    if not found:
        return blank.at(target="nobody", note="no counts reach this role by themselves")
    reading, right, counts = max(found, key=lambda one: one[1] / one[2])
    target = reading.of[0] if len(reading.of) == 1 else f"the sum of {len(reading.of)}"
    return blank.at(value=right / counts, target=target, samples=counts, evidence=reading.evidence)


def _right(reading: Reading, sent: Sent, names: Sequence[str]) -> tuple[int, int]:
    """How many counts were read as they are, and how many there are."""
    right = counts = 0
    for name, source in reading.sources.items():
        parts = [sent.get(party, {}).get(source) for party in reading.of]
        known = [_flat(part) for part in parts if part is not None]
        if len(known) < len(parts) or (names and source[2].partition(" ")[0] not in names):
            continue
        true, got = np.sum(known, axis=0), _flat(reading.values[name])
        told = np.abs(true) >= 1
        right += int((np.abs(got - true)[told] < 0.5).sum()) if got.size == true.size else 0
        counts += int(told.sum())
    return right, counts


def _flat(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.ravel(values).astype(np.float64)
