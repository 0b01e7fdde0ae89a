"""Whether a role can read what a hospital sent, or the sum of what several sent.

Whatever the role read is compared with what was really put into the sum. A cosine of 1 is the
update itself; masks and ciphertexts read as noise, whose cosine is about 1/√values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.base import Finding, Prior, Reading, View
from secure_fl.views.readings import WEIGHTS

ONE, SUM = "reading one hospital", "reading a sum"
ABOUT_ONE = (
    "Compares all that this role could read with what each hospital really sent. Success: it "
    "holds a single hospital's update."
)
ABOUT_SUM = (
    "Compares all that this role could read with the sum of what several hospitals sent. Success: "
    "it holds their sum, and no single update by that alone."
)
THRESHOLD = 0.5  # a cosine; noise of as many values as a model has stays below 0.1

Sent = Mapping[tuple[int, str], Reading]  # by round and hospital


def reading_one(view: View, prior: Prior, sent: Sent) -> Finding:
    """How close the best reading of a single hospital comes to what it sent."""
    return _best(ONE, view, (r for r in view.readings if len(r.of) == 1), sent)


def reading_sum(view: View, prior: Prior, sent: Sent) -> Finding:
    """How close the best reading of a sum comes to it; who is left with one term has that."""
    several = [reading for reading in view.readings if len(reading.of) > 1]
    return _best(SUM, view, several or view.readings, sent)


def _best(attack: str, view: View, readings: Iterable[Reading], sent: Sent) -> Finding:
    best: tuple[float, int, Reading] | None = None
    for reading in readings:
        found = similarity(reading, sent)
        if found is not None and (best is None or found[0] > best[0]):
            best = (*found, reading)
    blank = Finding(attack, view.role, "", "cosine", None, 0.0, THRESHOLD, 0)
    if best is None:
        whom = "a single hospital" if attack == ONE else "several hospitals"
        return blank.at(target="nobody", note=f"no bytes of {whom} alone reach this role")
    value, size, reading = best
    target = reading.of[0] if len(reading.of) == 1 else f"the sum of {len(reading.of)}"
    return blank.at(
        value=value,
        target=target,
        chance=1 / math.sqrt(size),
        samples=size,
        evidence=reading.evidence,
        details={"round": reading.round},
    )


def similarity(reading: Reading, sent: Sent) -> tuple[float, int] | None:
    """The cosine between a reading and what was sent, and of how many values; None: no values."""
    truths = [sent.get((reading.round, party)) for party in reading.of]
    known = [truth for truth in truths if truth is not None]
    if len(known) < len(reading.of):
        return None
    names = set(reading.values).intersection(*(truth.values for truth in known)) - {*WEIGHTS}
    weights = [_weight(truth) for truth in known]
    mine, theirs = [], []
    for name in sorted(names):
        value = np.ravel(reading.values[name]).astype(np.float64)
        parts = [np.ravel(truth.values[name]) for truth in known]
        if all(part.size == value.size for part in parts):
            mine.append(value)
            theirs.append(sum(w * part for w, part in zip(weights, parts, strict=True)))
    if not mine:
        return None
    x, y = _unit(np.concatenate(mine)), _unit(np.concatenate(theirs))
    return float(abs(x @ y)), x.size


def _weight(reading: Reading) -> float:
    """Of a hospital's values in a sum."""
    found = next((reading.values[name] for name in WEIGHTS if name in reading.values), 1.0)
    return float(np.ravel(found)[0])


def _unit(x: NDArray[Any]) -> NDArray[np.float64]:
    """Of length one, whatever the scale; what is not finite is nothing."""
    x = np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    x = x / max(float(np.abs(x).max(initial=0.0)), 1e-300)
    unit: NDArray[np.float64] = x / max(float(np.linalg.norm(x)), 1e-300)
    return unit
