"""Atoms: records that lie in the same block of every release; how many patients are in each.

Members need the atoms of all hospitals together, and no hospital's own. So each site puts its atoms
into a table of buckets (an invertible Bloom lookup table: Goodrich, Mitzenmacher, Allerton 2011),
the tables are summed like any counts, and the sum is taken apart again: a bucket of one atom names
it by its sums, and once it is taken away, others become such buckets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.statistics.counting import Places, distinct
from secure_fl.statistics.questions import Categories, Question

Integers = NDArray[np.int64]
TABLES, FEWEST, MOST = 3, 1 << 8, 1 << 12  # tables, and buckets of each
WORD = 31  # bits of an atom's name that travel together; times its patients they stay below 2⁶³


class Release(NamedTuple):
    """An answer, as far as later ones are held against it."""

    question: Question
    blocks: Integers  # of each of its cells
    patients: int  # in all cells, over all hospitals


class Atoms(NamedTuple):
    """Atoms of all hospitals' records."""

    sizes: Integers  # patients of each atom
    members: tuple[NDArray[np.int8], ...]  # per release [block, atom]: is the atom in it
    several: tuple[bool, ...]  # True if a record can be in several blocks of that release


def summed(releases: Sequence[Release], places: Sequence[Places], whose: Integers) -> Integers:
    """A site's own table: [patients, and these times each word of the name; table; bucket].

    `places`: the cells of its records for each release. `whose`: the patient of each record.
    """
    digits, bases = _digits(releases, places, whose.size)
    covered = digits.any(1)
    names = _words(digits[covered], bases)
    found, atom = np.unique(names, axis=0, return_inverse=True)
    sizes = distinct(whose[covered], atom.reshape(-1), len(found))
    count = _room(bases, releases)
    total = np.zeros((1 + names.shape[1], TABLES, count), np.int64)
    values = np.column_stack([sizes, sizes[:, None] * found])
    for row, buckets in enumerate(_buckets(found, total.shape[2])):
        for column in range(total.shape[0]):
            np.add.at(total[column, row], buckets, values[:, column])
    return total


def opened(total: Integers, releases: Sequence[Release]) -> Atoms | None:
    """Take the sum of all sites' tables apart; None: there are too many atoms."""
    total = total.copy()
    sizes, names = list[Integers](), list[Integers]()
    while total[0].any():
        found, size = _alone(total)
        if not len(found):
            return None
        values = np.column_stack([size, size[:, None] * found])
        for row, buckets in enumerate(_buckets(found, total.shape[2])):
            for column in range(total.shape[0]):
                np.subtract.at(total[column, row], buckets, values[:, column])
        sizes.append(size)
        names.append(found)
    if total.any():
        return None
    if not sizes:
        sizes, names = [np.zeros(0, np.int64)], [np.zeros((0, total.shape[0] - 1), np.int64)]
    members = _members(np.concatenate(names), releases)
    several = tuple(_spans(question, blocks)[0] for question, blocks, _ in releases)
    return Atoms(np.concatenate(sizes), members, several)


def _alone(total: Integers) -> tuple[Integers, Integers]:
    """Atoms that are alone in some bucket, by names that lead there; and their sizes."""
    found, sizes = list[Integers](), list[Integers]()
    for row in range(TABLES):
        at = np.flatnonzero(total[0, row] > 0)
        size = total[0, row, at]
        words = total[1:, row, at].T
        whole = (words % size[:, None] == 0).all(1)
        at, size, words = at[whole], size[whole], words[whole] // size[whole, None]
        there = list(_buckets(words, total.shape[2]))[row] == at
        found.append(words[there])
        sizes.append(size[there])
    names, first = np.unique(np.concatenate(found), axis=0, return_index=True)
    return names, np.concatenate(sizes)[first]


def _spans(question: Question, blocks: Integers) -> tuple[bool, Integers]:
    """Return True if a record can be in several blocks, and the blocks."""
    return isinstance(question, Categories), np.unique(blocks)


def _digits(
    releases: Sequence[Release], places: Sequence[Places], records: int
) -> tuple[Integers, list[int]]:
    """A row for each record: 0 where a release is not about it, else its block, counted from 1.

    Of entities, of which a record has several, each block has a digit of its own.
    """
    columns, bases = list[Integers](), list[int]()
    for (question, blocks, _), (rows, cells) in zip(releases, places, strict=True):
        several, known = _spans(question, blocks)
        at = np.searchsorted(known, blocks[cells])
        if several:
            inside = np.zeros((len(known), records), np.int64)
            inside[at, rows] = 1
            columns += list(inside)
            bases += [2] * len(known)
        else:
            digit = np.zeros(records, np.int64)
            digit[rows] = at + 1
            columns.append(digit)
            bases.append(len(known) + 1)
    return np.stack(columns, axis=1), bases


def _room(bases: Sequence[int], releases: Sequence[Release]) -> int:
    """Buckets enough for all atoms that there can be, up to a limit; equal at all sites."""
    most = min(math.prod(bases), sum(release.patients for release in releases))
    return min(MOST, max(FEWEST, 1 << (most // 2).bit_length()))


def _groups(bases: Sequence[int]) -> Iterator[list[int]]:
    """Digits that fit one word together."""
    group, size = list[int](), 1
    for digit, base in enumerate(bases):
        if size * base > 1 << WORD:
            yield group
            group, size = [], 1
        group.append(digit)
        size *= base
    yield group


def _words(digits: Integers, bases: Sequence[int]) -> Integers:
    words = []
    for group in _groups(bases):
        word = np.zeros(len(digits), np.int64)
        for digit in group:
            word = word * bases[digit] + digits[:, digit]
        words.append(word)
    return np.stack(words, axis=1)


def _members(names: Integers, releases: Sequence[Release]) -> tuple[NDArray[np.int8], ...]:
    """Decode an atom's name to its blocks, the inverse of `_words` and `_digits`."""
    spans = [_spans(question, blocks) for question, blocks, _ in releases]
    bases = [
        base
        for several, known in spans
        for base in ([2] * len(known) if several else [len(known) + 1])
    ]
    digits = np.zeros((len(bases), len(names)), np.int64)
    for word, group in zip(names.T, _groups(bases), strict=True):
        rest = word
        for digit in reversed(group):
            rest, digits[digit] = np.divmod(rest, bases[digit])
    found, at = list[NDArray[np.int8]](), 0
    for several, known in spans:
        width = len(known) if several else 1
        own = digits[at : at + width]
        blocks = own if several else own == np.arange(1, len(known) + 1)[:, None]
        found.append(blocks.astype(np.int8))
        at += width
    return tuple(found)


def _buckets(names: Integers, count: int) -> Iterator[Integers]:
    """Where atoms of these names lie in each table."""
    for row in range(TABLES):
        mixed = np.full(len(names), row, np.uint64)
        for word in names.T:
            mixed = _mixed(mixed ^ word.astype(np.uint64))
        yield (mixed % np.uint64(count)).astype(np.int64)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: spreads numbers over all 64 bits, the same at every site."""
    with np.errstate(over="ignore"):
        z = words + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
