"""From what was read of single sums to readings: one for each round and each set of parties.

Values are divided by the weights that were summed beside them, take the shapes of the weights that
they are moves of, and factors (Y = G·Ω and B = Uᵀ·G) are put together as far as they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SCALES = "|"  # what the names of sums of scales begin with
PROJECTED = "|B"  # what the names of projections end with
OWN = "|Y"  # what is put behind a name for its own sketch Y = G·Ω
WEIGHTS = ("records", "parties", "weight", "owners")  # the names under which weights are summed
LARGEST = 2.0**40  # weight; what masks make of one is beyond it, or not even positive
FEW = 8  # values: counts and weights, of which the first is enough

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Source: TypeAlias = tuple[int, int, str]  # session, number of the sum (a share: < 0), name in it
Bases: TypeAlias = Mapping[tuple[int, str], NDArray[Any]]  # U, by round and matrix


@dataclass(frozen=True, slots=True)
class SumReading:
    """The vectors that were read of one sum or share, by the names they travelled under."""

    of: tuple[str, ...]
    round: int
    session: int
    number: int
    values: Mapping[str, Any]
    place: str = ""


@dataclass(frozen=True, slots=True)
class MergedReading:
    """Values of some parties, summed, in one round."""

    of: tuple[str, ...]
    round: int
    values: Mapping[str, NDArray[Any]]
    evidence: tuple[str, ...]
    sources: Mapping[str, Source] = field(default_factory=dict)


def merged(
    entries: Iterable[SumReading], shapes: Shapes, bases: Bases
) -> tuple[MergedReading, ...]:
    """One reading for each round and set of parties; of a weight, the move that was sent first."""
    found: dict[tuple[int, tuple[str, ...]], _Merging] = {}
    for entry in entries:
        found.setdefault((entry.round, entry.of), _Merging()).take(entry, shapes)
    reads = []
    for (round, of), one in sorted(found.items()):
        values, sources = one.put_together(round, shapes, bases)
        if values:
            reads.append(MergedReading(of, round, values, tuple(one.places), sources))
    return tuple(reads)


class _Merging:
    """Collects the entries that are known of some parties in one round."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, Source] = {}
        self.places: dict[str, None] = {}

    def take(self, entry: SumReading, shapes: Shapes) -> None:
        """Add what is new; what is no weight's move (predictions, sketches) is new every time."""
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
        """Whether this very value was read before, elsewhere."""
        source = (entry.session, entry.number, name)
        return source in (self.sources.get(name), self.sources.get(f"{name}~{entry.number}"))

    def put_together(
        self, round: int, shapes: Shapes, bases: Bases
    ) -> tuple[dict[str, Any], dict[str, Source]]:
        """Means, by the names of the model's weights.

        U belongs to the sum of all, so the rows of U·B are no longer of one party alone; Y's are.
        """
        whole: dict[str, Any] = {}
        sources: dict[str, Source] = {}
        for label, value in _means(self.values).items():
            name = model_name(label, shapes)
            if _is_factor(name, value, shapes):
                name += OWN
            name = label if name in whole else name
            whole[name], sources[name] = value, self.sources[label]
            base = name.removesuffix(PROJECTED)
            U = bases.get((round, base)) if base != name else None
            if U is not None and np.ndim(value) == 2 and U.shape[1] == len(value):
                whole[base] = U @ value
        return whole | _joined(whole, shapes), sources


def _joined(values: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """The weights that travelled in pieces ("NAME#0", "NAME#1"), where all of them were read."""
    cut: dict[str, dict[int, Any]] = {}
    for label, value in values.items():
        base, mark, number = label.rpartition("#")
        name = model_name(base, shapes)
        if mark and number.isdigit() and name in shapes:
            cut.setdefault(name, {})[int(number)] = np.ravel(value)
    found = {}
    for name, pieces in cut.items():
        flat = np.concatenate([pieces[at] for at in sorted(pieces)])
        if flat.size == int(np.prod(shapes[name])):
            found[name] = flat.reshape(shapes[name])
    return found


def model_name(name: str, shapes: Shapes) -> str:
    """The weight that a value of a tier ("small/NAME") is a move of, or the name as it is."""
    inner = name.rpartition("/")[2]
    known = inner.removesuffix(PROJECTED) in shapes
    return inner if known else name


def shaped(name: str, vector: Any, shapes: Shapes) -> Any:
    """A vector as the matrix that its name stands for, or as the factor of one."""
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
    """Divide by the weight that was summed beside a value, if it reads as one."""
    weights = {name: float(np.ravel(v)[0]) for name, v in values.items() if is_weight(name)}
    found = {}
    for name, value in values.items():
        total = 1.0 if is_weight(name) else _weight(name, weights)
        found[name] = value / total if 0 < total < LARGEST else value
    return found


def is_weight(name: str) -> bool:
    """Whether a value is a weight: "records", "small/weight", "owners#small"."""
    return name.partition("#")[0].rpartition("/")[2] in WEIGHTS


def _weight(name: str, weights: Mapping[str, float]) -> float:
    """The weight of a value: that of its tier, or of all."""
    tier, _, region = name.rpartition("/")[0], *name.rpartition("#")[1:]
    for of in (f"{tier}/weight", f"owners#{region}", *WEIGHTS):
        if of in weights:
            return weights[of]
    return 1.0
