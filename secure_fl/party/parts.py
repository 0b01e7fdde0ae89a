"""A sum of any size, as one small sum after the other: nobody holds more than a part of it sealed.

Vectors are cut where they are long, and each part is a sum of its own, with its own keys. If
somebody leaves between two of them, those that follow would be over others than the first, and a
mean of it would be divided by the wrong number of records: they are not opened. What is carried
counts as zero then, and travels with the next sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from secure_fl.protocol.ports import Group, Vector

Real = TypeVar("Real", np.float32, np.float64)
COUNTS = 8  # values of what is no weight of a model
PART = 3 << 22  # values: 22 MB sealed at 8 bits; 170 MB at the coordinator, while it is added


def names(name: str, size: int) -> list[str]:
    """What the pieces of a vector of this size are called; its own name if it is not cut."""
    count = -(-size // PART)
    return [name] if count < 2 else [f"{name}#{number}" for number in range(count)]


def pieces(name: str, vector: Vector) -> dict[str, Vector]:
    """The vector, or several where it is longer than a part; nothing is copied."""
    every = names(name, vector.size)
    return {of: vector[at * PART : (at + 1) * PART] for at, of in enumerate(every)}


def parts_of(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups' vectors in parts that are no longer than `PART`.

    Counts come first: what the others are divided by has to be opened with the first of them.
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
    found: dict[str, NDArray[Real]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Real]]:
    """The vectors that pieces were cut from; zero where one is missing, left out without any.

    Pieces are taken out of `found` as they are joined: of a large model nobody can hold two.
    """
    joined: dict[str, NDArray[Real]] = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        every = names(name, size)
        if every == [name] and name in found:
            joined[name] = found.pop(name)
            continue
        for at, of in enumerate(every):
            if (piece := found.pop(of, None)) is not None:
                if name not in joined:
                    joined[name] = np.zeros(size, piece.dtype)
                joined[name][at * PART : (at + 1) * PART] = piece
    return joined
