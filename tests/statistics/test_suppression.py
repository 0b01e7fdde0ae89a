"""What is released, solved for what is withheld: no cell below the limit follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_fl.statistics.questions import Categories, CrossTable, Histogram, Question
from secure_fl.statistics.suppression import WITHHELD, blocks, merged, withheld

LEAST = 10
Integers = NDArray[np.int64]
TABLE = CrossTable(
    name="t", kind="table", rows="a", row_values=("x", "y"), columns="b", column_values=("u", "v")
)
QUESTIONS: list[Question] = [
    Categories(name="c", kind="categories", field="f", values=tuple("abcdefg")),
    Histogram(name="h", kind="histogram", field="f", low=0, high=1, bins=12),
    TABLE,
]
SIZES = {"categories": 9, "histogram": 15, "table": 9}


def solved(released: Integers, cells: int) -> list[int]:
    """Cells that follow from the released sums: unit vectors in their row space."""
    rank = np.linalg.matrix_rank(released)
    unit = np.eye(cells)
    return [
        k for k in range(cells) if np.linalg.matrix_rank(np.vstack([released, unit[k]])) == rank
    ]


def sums_of(chosen: Integers) -> Integers:
    """All that an answer tells: the total, and each block."""
    rows = [np.ones(chosen.size), *(chosen == one for one in np.unique(chosen) if one != WITHHELD)]
    return np.array(rows, float).astype(np.int64)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.kind)
def test_no_small_cell_follows_from_what_is_released(question: Question) -> None:
    rng, cells, caught = np.random.default_rng(0), SIZES[question.kind], 0
    for _ in range(200):
        patients = rng.poisson(rng.choice([0.3, 4, 12, 40], cells))
        if patients.sum() < LEAST:
            continue
        small = np.flatnonzero((patients > 0) & (patients < LEAST))
        chosen = blocks(question, patients, LEAST)
        assert not set(solved(sums_of(chosen), cells)) & set(small.tolist())
        for block in np.unique(chosen):  # nor any sum of few
            inside = int(patients[chosen == block].sum())
            assert inside == 0 or inside >= LEAST
        # The attack works where small cells alone are withheld, beside a total.
        naive = np.where((patients > 0) & (patients < LEAST), WITHHELD, np.arange(cells))
        caught += 0 < patients[naive == WITHHELD].sum() < LEAST
    assert caught > 10


def test_margins_of_what_is_released_give_no_withheld_cell() -> None:
    """Rows and columns are summed over shown cells alone: true margins would tell."""
    patients = np.array([3, 40, 0, 50, 60, 0, 0, 0, 0])
    chosen = blocks(TABLE, patients, LEAST)
    assert chosen[0] == WITHHELD and (chosen == WITHHELD).sum() == 2
    grid = np.arange(9).reshape(3, 3)
    shown = (chosen != WITHHELD).astype(float)
    margins = [np.isin(np.arange(9), line) * shown for line in [*grid, *grid.T]]
    told = np.vstack([sums_of(chosen), *margins])
    assert 0 not in solved(told, 9)
    true = [np.isin(np.arange(9), line).astype(float) for line in [*grid, *grid.T]]
    assert 0 in solved(np.vstack([sums_of(chosen), *true]), 9)  # with true margins it would be


def test_all_is_withheld_where_all_together_are_few() -> None:
    assert (blocks(TABLE, np.array([3, 2, 0, 1, 0, 0, 0, 0, 0]), LEAST)[:2] == WITHHELD).all()
    assert withheld(np.array([3]), LEAST).all()


def test_neighbours_are_merged_until_they_are_enough() -> None:
    bins = np.array([[0], [3], [8], [0], [20], [4]])
    assert merged(bins, LEAST).tolist() == [0, 1, 1, 2, 3, 3]
    assert merged(np.array([[4], [3]]), LEAST).tolist() == [0, 0]
