"""Attacks that read what a hospital sent, what it counted, or the sum over several hospitals.

The readings of a role are compared with what hospitals really put into the same sum. A correlation
of 1 is the update itself; masks and ciphertexts read as noise, whose correlation is about
1/√values. Counts are sent exactly, so each of them was read or was not. Zeros do not count as
read: where most cells are empty, guessing them is no success. Few distinct small numbers fit in
many places, so success needs nearly all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.findings import AuditFinding, Prior, Reading, View
from secure_fl.capture.merging import FEW, Source, is_weight

ONE, SUM, COUNTS = "reading one hospital", "reading a sum", "reading record counts"
ABOUT_ONE = (
    "Compares everything that this role could read with what each hospital really sent. Success: "
    "the role has a single hospital's update."
)
ABOUT_SUM = (
    "Compares everything that this role could read with the sum of what several hospitals sent. "
    "Success: the role has their sum, which alone reveals no single update."
)
ABOUT_COUNTS = (
    "Reads the record counts that hospitals send as the weights of their updates. Success: most of "
    "the counts that this role could read separately are right."
)
CODEBOOKS, EVALUATION = "codebooks", "evaluation"  # tasks for which hospitals count
ONE_COUNTED, SUM_COUNTED = "one hospital's counts", "a sum of counts"

THRESHOLD = 0.5  # a correlation; of noise, the best of a run's readings stays far below
SURE, DEVIATIONS = 0.95, 4.0  # of few values, noise comes closer: so many of its deviations
ENOUGH = 256  # values of one name that are also compared separately
COUNTS_READ = 0.9  # of the counts that are not 0: success

Sent = Mapping[str, Mapping[Source, NDArray[Any]]]  # by hospital


def reading_one(view: View, prior: Prior, sent: Sent) -> AuditFinding:
    """Compare the best reading of a single hospital with what it sent."""
    return _most_similar(ONE, view, (r for r in view.readings if len(r.of) == 1), sent)


def reading_sum(view: View, prior: Prior, sent: Sent) -> AuditFinding:
    """Compare the best reading of a sum with it; a role that knows all terms but one has that."""
    several = [reading for reading in view.readings if len(reading.of) > 1]
    return _most_similar(SUM, view, several or view.readings, sent)


def reading_counts(view: View, prior: Prior, sent: Sent) -> AuditFinding:
    """Count the single hospitals whose number of records was read."""
    right, evidence = [], dict[str, None]()
    for reading in view.readings:
        known = prior.truth.get(reading.of[0]) if len(reading.of) == 1 else None
        weights = [float(np.ravel(v)[0]) for n, v in reading.values.items() if is_weight(n)]
        if known is not None and weights:
            right.append(any(round(one) == len(known.records) for one in weights))
            evidence |= dict.fromkeys(reading.evidence)
    blank = AuditFinding(COUNTS, view.role, "", "counts that are right", None, 0.0, THRESHOLD, 0)
    if not right:
        return blank.at(target="nobody", note="no count of a single hospital reaches this role")
    return blank.at(
        value=sum(right) / len(right),
        target=f"{len(right)} hospital{'s' if len(right) > 1 else ''}",
        samples=len(right),
        evidence=tuple(evidence),
    )


def counted_by_one(subject: str, view: View, sent: Sent) -> AuditFinding:
    """Compare the best reading of a single hospital with what it counted."""
    single = [r for r in view.readings if len(r.of) == 1]
    return _best_counts(f"{subject}: {ONE_COUNTED}", view, single, sent)


def counted_by_all(subject: str, view: View, sent: Sent) -> AuditFinding:
    """Compare the best reading of a sum of counts with it."""
    several = [r for r in view.readings if len(r.of) > 1]
    return _best_counts(f"{subject}: {SUM_COUNTED}", view, several, sent)


def threshold(values: int) -> float:
    """Compute the correlation from which so many values are the same, and not noise."""
    return min(SURE, max(THRESHOLD, DEVIATIONS / math.sqrt(max(1, values))))


def similarities(reading: Reading, sent: Sent) -> Iterator[tuple[float, int]]:
    """Correlate a reading with what was sent; give each correlation's number of values.

    One correlation is over all values, where each name counts by its number of values, whatever
    its scale. Further ones are of long vectors alone: one vector in the clear is a leak. Counts
    are no update.
    """
    sums = {}
    for name, read, true in _pairs(reading, sent):
        if read.size > FEW and read.size == true.size:
            sums[name] = (read, true)
    close = {name: (_correlation(*pair), pair[0].size) for name, pair in sums.items()}
    yield from ((abs(r), size) for r, size in close.values() if size >= ENOUGH)
    total = sum(size for _, size in close.values())
    if total:
        yield abs(sum(r * size for r, size in close.values())) / total, total


def _pairs(
    reading: Reading, sent: Sent
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Give what was read and what was sent, by name, where all owners sent it."""
    for name, source in reading.sources.items():
        parts = [sent.get(party, {}).get(source) for party in reading.of]
        known = [np.ravel(part).astype(np.float64) for part in parts if part is not None]
        if len(known) == len(parts) and len({part.size for part in known}) == 1:
            yield name, np.ravel(reading.values[name]).astype(np.float64), np.sum(known, axis=0)


def _most_similar(attack: str, view: View, readings: Iterable[Reading], sent: Sent) -> AuditFinding:
    best: tuple[float, int, Reading] | None = None
    for reading in readings:
        for value, size in similarities(reading, sent):
            if best is None or value / threshold(size) > best[0] / threshold(best[1]):
                best = value, size, reading
    blank = AuditFinding(attack, view.role, "", "correlation", None, 0.0, THRESHOLD, 0)
    if best is None:
        whom = "a single hospital" if attack == ONE else "several hospitals"
        return blank.at(target="nobody", note=f"no bytes of {whom} alone reach this role")
    value, size, reading = best
    return blank.at(
        value=value,
        target=_target(reading),
        chance=1 / math.sqrt(size),
        threshold=threshold(size),
        samples=size,
        evidence=reading.evidence,
        details={"round": reading.round},
    )


def _target(reading: Reading) -> str:
    return reading.of[0] if len(reading.of) == 1 else f"the sum of {len(reading.of)}"


def _correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    return float(_unit(x) @ _unit(y))


def _unit(x: NDArray[Any]) -> NDArray[np.float64]:
    """Centre a vector and scale it to length one; values that are not finite become 0."""
    x = np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    x = x / max(float(np.abs(x).max(initial=0.0)), 1e-300)
    x = x - x.mean()
    unit: NDArray[np.float64] = x / max(float(np.linalg.norm(x)), 1e-300)
    return unit


def _best_counts(attack: str, view: View, readings: Sequence[Reading], sent: Sent) -> AuditFinding:
    blank = AuditFinding(attack, view.role, "", "counts that were read", None, 0.0, COUNTS_READ, 0)
    rated = [(reading, *_right_counts(reading, sent)) for reading in readings]
    rated = [one for one in rated if one[2]]
    if not rated:
        return blank.at(target="nobody", note="no counts reach this role separately")
    reading, right, counts = max(rated, key=lambda one: one[1] / one[2])
    return blank.at(
        value=right / counts, target=_target(reading), samples=counts, evidence=reading.evidence
    )


def _right_counts(reading: Reading, sent: Sent) -> tuple[int, int]:
    """Count the counts that were read exactly, and all that are not 0."""
    right = counts = 0
    for _, read, true in _pairs(reading, sent):
        nonzero = np.abs(true) >= 1
        right += int((np.abs(read - true)[nonzero] < 0.5).sum()) if read.size == true.size else 0
        counts += int(nonzero.sum())
    return right, counts
