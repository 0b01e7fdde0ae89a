"""Figures that are read off curves: areas, rates, energies."""

from __future__ import annotations

import math
from itertools import pairwise

from secure_fl.audits.document import RocPart, SeriesPart


def steps(curve: RocPart) -> list[tuple[float, float]]:
    """The curve's finite points from (0, 0) to (1, 1), in order."""
    known = zip(curve.fpr, curve.tpr, strict=False)
    inner = {(x, y) for x, y in known if math.isfinite(x) and math.isfinite(y)}
    return sorted({(0.0, 0.0), (1.0, 1.0)} | inner)


def area(curve: RocPart) -> float:
    """The area under the curve, by trapezoids."""
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(steps(curve)))


def rate_at(curve: RocPart, fpr: float) -> float:
    """The best true positive rate at no more than this false positive rate."""
    return max(y for x, y in steps(curve) if x <= fpr)


def resolution(curve: RocPart) -> float:
    """The smallest false positive rate above zero that the curve knows: one non-member's."""
    return min((x for x, _ in steps(curve) if x > 0), default=1.0)


def points(curve: SeriesPart) -> tuple[list[float], list[float]]:
    """The finite points of a series."""
    known = zip(curve.x, curve.y, strict=False)
    finite = [(x, y) for x, y in known if math.isfinite(x) and math.isfinite(y)]
    return [x for x, _ in finite], [y for _, y in finite]


def needed(spectrum: SeriesPart, part: float) -> int:
    """How many of the largest singular values hold this part of the energy (FedKD, Fig. 6)."""
    shares = points(spectrum)[1]
    return next((k for k, share in enumerate(shares, start=1) if share >= part), len(shares))
