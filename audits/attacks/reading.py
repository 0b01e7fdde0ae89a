"""Whether a role can read what a hospital sent, or the sum of what several sent.

Whatever the role read is compared with what was really put into the same sum. A correlation of 1 is
the update itself; masks and ciphertexts read as noise, whose correlation is about 1/√values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.findings import AuditFinding, Prior, Reading, View
from secure_fl.capture.merging import FEW, Source, is_weight

ONE, SUM, COUNTS = "reading one hospital", "reading a sum", "reading record counts"
ABOUT_ONE = (
    "Compares all that this role could read with what each hospital really sent. Success: it "
    "holds a single hospital's update."
)
ABOUT_SUM = (
    "Compares all that this role could read with the sum of what several hospitals sent. Success: "
    "it holds their sum, and no single update by that alone."
)
ABOUT_COUNTS = (
    "Reads the record counts that hospitals send along as the weights of their updates. Success: "
    "most of those that this role could read by themselves are right."
)
THRESHOLD = 0.5  # a correlation; of noise, the best of a run's readings stays far below
SURE, DEVIATIONS = 0.95, 4.0  # of few values, noise comes closer: so many of its deviations
ENOUGH = 256  # values of one name, to be looked at by themselves

Sent = Mapping[str, Mapping[Source, NDArray[Any]]]  # by hospital


def reading_one(view: View, prior: Prior, sent: Sent) -> AuditFinding:
    """Compare the best reading of a single hospital with what it sent."""
    return _best(ONE, view, (r for r in view.readings if len(r.of) == 1), sent)


def reading_sum(view: View, prior: Prior, sent: Sent) -> AuditFinding:
    """Compare the best reading of a sum with it; a role that knows all terms but one has that."""
    several = [reading for reading in view.readings if len(reading.of) > 1]
    return _best(SUM, view, several or view.readings, sent)


def reading_counts(view: View, prior: Prior) -> AuditFinding:
    """Count the single hospitals whose number of records was read."""
    right, evidence = [], dict[str, None]()
    for reading in view.readings:
        known = prior.truth.get(reading.of[0]) if len(reading.of) == 1 else None
        told = [float(np.ravel(v)[0]) for n, v in reading.values.items() if is_weight(n)]
        if known is not None and told:
            right.append(any(round(one) == len(known.records) for one in told))
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


def threshold(values: int) -> float:
    """From which correlation on so many values are the same, and not noise."""
    return min(SURE, max(THRESHOLD, DEVIATIONS / math.sqrt(max(1, values))))


def _best(attack: str, view: View, readings: Iterable[Reading], sent: Sent) -> AuditFinding:
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
    target = reading.of[0] if len(reading.of) == 1 else f"the sum of {len(reading.of)}"
    return blank.at(
        value=value,
        target=target,
        chance=1 / math.sqrt(size),
        threshold=threshold(size),
        samples=size,
        evidence=reading.evidence,
        details={"round": reading.round},
    )


def similarities(reading: Reading, sent: Sent) -> Iterator[tuple[float, int]]:
    """Correlations between a reading and what was sent, and of how many values.

    Of all values together, each name weighing as much as it has values, whatever its scale; and of
    each long one alone, for one that is left in the clear is enough. Counts are no update.
    """
    sums = {}
    for name, source in reading.sources.items():
        parts = [sent.get(party, {}).get(source) for party in reading.of]
        known = [np.ravel(part).astype(np.float64) for part in parts if part is not None]
        value = np.ravel(reading.values[name])
        if len(known) == len(parts) and value.size > FEW and known[0].size == value.size:
            sums[name] = (value, np.sum(known, axis=0))
    found = {name: (_correlation(*pair), pair[0].size) for name, pair in sums.items()}
    yield from ((abs(r), size) for r, size in found.values() if size >= ENOUGH)
    total = sum(size for _, size in found.values())
    if total:
        yield abs(sum(r * size for r, size in found.values())) / total, total


def _correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    return float(_unit(x) @ _unit(y))


def _unit(x: NDArray[Any]) -> NDArray[np.float64]:
    """Around zero and of length one, whatever the scale; what is not finite is nothing."""
    x = np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    x = x / max(float(np.abs(x).max(initial=0.0)), 1e-300)
    x = x - x.mean()
    unit: NDArray[np.float64] = x / max(float(np.linalg.norm(x)), 1e-300)
    return unit
