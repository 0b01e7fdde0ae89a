"""A large sum as several small ones, so that no process holds more than one sealed part.

Long vectors are cut, and each part is a sum of its own, with its own keys. If a party leaves
between two parts, later parts would be over other parties than the first, and a mean would be
divided by the wrong number of records. They are not opened then; carried values count as zero and
are added to the next sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from secure_fl.protocol.ports import Group, Vector

Real = TypeVar("Real", np.float32, np.float64)
COUNTS = 8  # longest vector that holds counts, and no weights of a model
PART = 3 << 22  # values: 22 MB sealed at 8 bits; 170 MB at the coordinator, while it is added


def names(name: str, size: int) -> list[str]:
    """Return the names of the pieces of a vector; its own name if it is not cut."""
    count = -(-size // PART)
    return [name] if count < 2 else [f"{name}#{number}" for number in range(count)]


def pieces(name: str, vector: Vector) -> dict[str, Vector]:
    """Cut a vector that is longer than a part, without copying it."""
    labels = names(name, vector.size)
    return {label: vector[at * PART : (at + 1) * PART] for at, label in enumerate(labels)}


def parts_of(groups: Sequence[Group]) -> list[list[Group]]:
    """Distribute the vectors of groups over parts that are no longer than `PART`.

    Counts come first, because the divisors of the other vectors must be in the first part.
    """
    counts = [_only(group, lambda vector: vector.size <= COUNTS) for group in groups]
    others = [_only(group, lambda vector: vector.size > COUNTS) for group in groups]
    parts: list[list[Group]] = [[]]
    room = PART
    for group in (*counts, *others):
        taken: dict[str, Vector] = {}
        parts[-1].append(group._replace(vectors=taken))
        for name, vector in group.vectors.items():
            if vector.size > room and room < PART:
                taken, room = {}, PART
                parts.append([group._replace(vectors=taken)])
            taken[name] = vector
            room -= vector.size
    return [[group for group in part if group.vectors] for part in parts]


def _only(group: Group, wanted: Callable[[Vector], bool]) -> Group:
    return group._replace(vectors={n: v for n, v in group.vectors.items() if wanted(v)})


def whole(
    vectors: dict[str, NDArray[Real]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Real]]:
    """Join pieces to vectors: a missing piece is zero, a vector without pieces is missing.

    Pieces are removed from `vectors` as they are joined, since two large models may not fit into
    memory.
    """
    joined: dict[str, NDArray[Real]] = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        labels = names(name, size)
        if labels == [name] and name in vectors:
            joined[name] = vectors.pop(name)
            continue
        for at, label in enumerate(labels):
            if (piece := vectors.pop(label, None)) is not None:
                if name not in joined:
                    joined[name] = np.zeros(size, piece.dtype)
                joined[name][at * PART : (at + 1) * PART] = piece
    return joined
