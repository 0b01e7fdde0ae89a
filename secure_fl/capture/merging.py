"""Merges what was read of single sums to one reading for each round and set of parties.

Values are divided by the weights that were summed with them, and take the shapes of the model's
weights. Factors (Y = G·Ω and B = Uᵀ·G) are multiplied as far as they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.protocol.sum_names import OWNERS, PROJECTED, SCALES, SKETCH, WEIGHT, WEIGHTS

LARGEST = 2.0**40  # weight; a masked one is beyond it, or not even positive
FEW = 8  # values: counts and weights, of which the first is enough

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Source: TypeAlias = tuple[int, int, str]  # session, number of the sum (a share: < 0), name in it
Bases: TypeAlias = Mapping[tuple[int, str], NDArray[Any]]  # U, by round and matrix


@dataclass(frozen=True, slots=True)
class SumReading:
    """The vectors that were read of one sum or share, by their names in it."""

    of: tuple[str, ...]
    round: int
    session: int
    number: int
    values: Mapping[str, Any]
    place: str = ""


@dataclass(frozen=True, slots=True)
class MergedReading:
    """Summed values of some parties in one round."""

    of: tuple[str, ...]
    round: int
    values: Mapping[str, NDArray[Any]]
    evidence: tuple[str, ...]
    sources: Mapping[str, Source] = field(default_factory=dict)
    expected: tuple[str, ...] = ()  # of a host sum: its parties when it began, with dropouts


def merged(
    entries: Iterable[SumReading], shapes: Shapes, bases: Bases
) -> tuple[MergedReading, ...]:
    """Merge to one reading for each round and set of parties; a weight's first move counts."""
    merging: dict[tuple[int, tuple[str, ...]], _Merging] = {}
    for entry in entries:
        merging.setdefault((entry.round, entry.of), _Merging()).add(entry, shapes)
    reads = []
    for (round, of), one in sorted(merging.items()):
        values, sources = one.finish(round, shapes, bases)
        if values:
            reads.append(MergedReading(of, round, values, tuple(one.places), sources))
    return tuple(reads)


class _Merging:
    """Collects the readings of some parties in one round."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, Source] = {}
        self.places: dict[str, None] = {}

    def add(self, entry: SumReading, shapes: Shapes) -> None:
        """Add new values; predictions and sketches, which are no weight's move, are always new."""
        for name, vector in entry.values.items():
            again = self.known(entry, name)
            enough = model_name(name, shapes) in shapes or np.size(vector) <= FEW
            if name.startswith(SCALES) or again or (name in self.values and enough):
                continue
            label = f"{name}~{entry.number}" if name in self.values else name
            self.values[label] = shaped(name, vector, shapes)
            self.sources[label] = (entry.session, entry.number, name)
            if entry.place:
                self.places[entry.place] = None

    def known(self, entry: SumReading, name: str) -> bool:
        """Check if this value of this sum is already there."""
        source = (entry.session, entry.number, name)
        return source in (self.sources.get(name), self.sources.get(f"{name}~{entry.number}"))

    def finish(
        self, round: int, shapes: Shapes, bases: Bases
    ) -> tuple[dict[str, Any], dict[str, Source]]:
        """Compute means, by the names of the model's weights.

        U belongs to the sum of all, so the rows of U·B are not of one party alone; Y's are.
        """
        named: dict[str, Any] = {}
        sources: dict[str, Source] = {}
        for label, value in _means(self.values).items():
            name = model_name(label, shapes)
            if _is_factor(name, value, shapes):
                name += SKETCH
            name = label if name in named else name
            named[name], sources[name] = value, self.sources[label]
            base = name.removesuffix(PROJECTED)
            U = bases.get((round, base)) if base != name else None
            if U is not None and np.ndim(value) == 2 and U.shape[1] == len(value):
                named[base] = U @ value
        return named | _joined(named, shapes), sources


def _joined(values: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Join weights that were sent in pieces ("NAME#0", "NAME#1"), where all were read."""
    cut: dict[str, dict[int, Any]] = {}
    for label, value in values.items():
        base, mark, number = label.rpartition("#")
        name = model_name(base, shapes)
        if mark and number.isdigit() and name in shapes:
            cut.setdefault(name, {})[int(number)] = np.ravel(value)
    joined = {}
    for name, pieces in cut.items():
        flat = np.concatenate([pieces[at] for at in sorted(pieces)])
        if flat.size == int(np.prod(shapes[name])):
            joined[name] = flat.reshape(shapes[name])
    return joined


def model_name(name: str, shapes: Shapes) -> str:
    """Find the weight behind a value of a tier ("small/NAME"), or keep the name."""
    inner = name.rpartition("/")[2]
    known = inner.removesuffix(PROJECTED) in shapes
    return inner if known else name


def shaped(name: str, vector: Any, shapes: Shapes) -> Any:
    """Reshape a vector to its weight's matrix, or to a factor of it."""
    name = model_name(name, shapes)
    shape = shapes.get(name.removesuffix(PROJECTED))
    if shape is None or np.ndim(vector) > 1 or 0 in shape:
        return vector
    if name.endswith(PROJECTED):
        return vector.reshape(-1, shape[-1]) if vector.size % shape[-1] == 0 else vector
    if vector.size == int(np.prod(shape)):
        return vector.reshape(shape)
    return vector.reshape(shape[0], -1) if vector.size % shape[0] == 0 else vector


def _is_factor(name: str, value: Any, shapes: Shapes) -> bool:
    shape = shapes.get(name)
    return shape is not None and np.ndim(value) == 2 and np.shape(value) != tuple(shape)


def _means(values: Mapping[str, Any]) -> dict[str, Any]:
    """Divide each value by the weight that was summed with it, if it is plausible."""
    weights = {name: float(np.ravel(v)[0]) for name, v in values.items() if is_weight(name)}
    means = {}
    for name, value in values.items():
        total = 1.0 if is_weight(name) else _weight(name, weights)
        means[name] = value / total if 0 < total < LARGEST else value
    return means


def is_weight(name: str) -> bool:
    """Recognise weights: "records", "small/weight", "owners#small"."""
    return name.partition("#")[0].rpartition("/")[2] in WEIGHTS


def _weight(name: str, weights: Mapping[str, float]) -> float:
    """Find the weight of a value: that of its tier, or of all."""
    tier, _, region = name.rpartition("/")[0], *name.rpartition("#")[1:]
    for of in (f"{tier}/{WEIGHT}", f"{OWNERS}#{region}", *WEIGHTS):
        if of in weights:
            return weights[of]
    return 1.0
