"""Which cells are released: a coarser partition of the records, whose blocks hold enough patients.

A released answer says how many records lie in each block, and nothing finer. Cells that are
withheld are one block together, of which the total tells the size; so where they hold too few
together, the smallest released cells are withheld as well. Every sum over rows is a sum of blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secure_fl.statistics.counting import MISSING, cells
from secure_fl.statistics.questions import Histogram, Question, Survival

Integers = NDArray[np.int64]
WITHHELD = -1


def blocks(question: Question, patients: Integers, least: int) -> Integers:
    """Return the block of each cell, or `WITHHELD`; released are sums over blocks."""
    if isinstance(question, Histogram):
        bins = merged(patients[: question.bins, None], least)
        outside = bins.max() + 1 + np.arange(-MISSING - 1 + 3)
        found = np.concatenate([bins, outside])
    elif isinstance(question, Survival):
        found = _survival_blocks(question, patients, least)
    else:
        found = np.arange(cells(question))
    inside = np.bincount(found, weights=patients).astype(np.int64)
    hidden = withheld(inside, least)
    return np.where(hidden[found], WITHHELD, found).astype(np.int64)


def withheld(patients: Integers, least: int) -> NDArray[np.bool_]:
    """Cells of too few patients, and as many more as it takes for these to be enough together.

    All, if all together are too few.
    """
    hidden = (patients > 0) & (patients < least)
    if not hidden.any():
        return hidden
    for cell in np.argsort(patients, kind="stable"):
        if patients[hidden].sum() >= least:
            break
        hidden[cell] |= patients[cell] > 0
    return hidden if patients[hidden].sum() >= least else np.ones_like(hidden)


def merged(patients: Integers, least: int) -> Integers:
    """Neighbours in one block, until each of its columns holds enough patients or none.

    Rows are bins in their order. What is left at the end joins the blocks before it.
    """
    open_ = np.zeros(patients.shape[1], np.int64)
    ends = []
    for row, found in enumerate(patients):
        open_ = open_ + found
        if _enough(open_, least):
            ends.append(row + 1)
            open_ = np.zeros_like(open_)
    while ends and not _enough(open_, least):
        last = ends.pop()
        start = ends[-1] if ends else 0
        open_ = open_ + patients[start:last].sum(0)
    edges = np.zeros(len(patients), np.int64)
    edges[[end for end in ends if end < len(patients)]] = 1
    return np.cumsum(edges)


def _enough(patients: Integers, least: int) -> bool:
    return bool(((patients == 0) | (patients >= least)).all())


def _survival_blocks(question: Survival, patients: Integers, least: int) -> Integers:
    """Times in blocks that are the same for all groups, so that these can be compared."""
    times, groups = question.steps + 1, len(question.groups)
    cube = patients[:-1].reshape(groups, times, 2)
    of_time = merged(cube.transpose(1, 0, 2).reshape(times, -1), least)
    count = int(of_time.max()) + 1
    group = np.arange(groups)[:, None, None] * count
    found = (group + of_time[None, :, None]) * 2 + np.arange(2)
    return np.append(found.reshape(-1), groups * count * 2)
