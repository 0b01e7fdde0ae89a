"""Hidden counts: no attacker narrows one below the rule, and without the rule single patients show.

The attacker solves the linear programs over the joint table of all columns; the product solves
them over cliques of columns.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, compress, product
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import SettingsError
from secure_fl.features.statistics.counting import Partition, Tabulation, atoms_of
from secure_fl.features.statistics.suppression import JointTable, cliques, suppressed
from tests.support.codebooks import JointAttacker, Study
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

LEAST = 10


def table(counts: Any, *columns: str, shown: Any = None) -> Tabulation:
    """Make a table of categories; the last one is also that of other values."""
    found = np.array(counts)
    partitions = tuple(
        Partition(None, {f"v{k}": k for k in range(size)}, size - 1) for size in found.shape
    )
    marks = np.ones(found.shape, bool) if shown is None else np.array(shown, bool)
    return Tabulation(columns, partitions, found, marks)


def narrow(tables: list[Tabulation], total: int) -> float:
    """Return the width of the narrowest interval that an attacker derives."""
    return min(high - low for _, low, high in JointAttacker(tables, total).intervals())


def narrowest(seed: int, least: int | None = None) -> tuple[float, list[int]]:
    """Return the width of the narrowest hidden count, and true counts that are found out."""
    study = Study.of(seed)
    tables = study.counted(least=least)
    attacker = JointAttacker(tables, len(study.frame))
    if attacker.cells > 5_000:
        return np.inf, []
    widths = [(high - low, true) for true, low, high in attacker.intervals()]
    return min((w for w, _ in widths), default=np.inf), [t for w, t in widths if w < 1e-6]


@pytest.mark.parametrize("seed", mostly_slow(range(12), 0, 1, 2, 3, 4, 5))
def test_no_hidden_count_is_narrower_than_the_rule(seed: int) -> None:
    assert narrowest(seed)[0] > LEAST - 1e-4


def test_with_primary_suppression_alone_single_patients_show() -> None:
    """The control: the same tables with small counts hidden, and nothing else."""
    exact = 0
    for seed in (1, 2, 5, 6):
        study = Study.of(seed)
        tables = [replace(t, shown=t.counts >= LEAST) for t in study.counted(least=1)]
        attacker = JointAttacker(tables, len(study.frame))
        exact += sum(high - low < 0.5 for _, low, high in attacker.intervals())
    assert exact > 10


def test_a_small_count_takes_others_with_it() -> None:
    counts = [[40, 3, 30], [25, 60, 20], [35, 45, 50]]
    margins = [table(np.sum(counts, 1), "a"), table(np.sum(counts, 0), "b")]
    crossed, *singles = suppressed([table(counts, "a", "b"), *margins], [], 308, LEAST)
    assert all(one.shown.all() for one in singles)
    assert not crossed.shown[0, 1] and 3 <= (~crossed.shown).sum() <= 5
    assert narrow([crossed, *singles], 308) > LEAST - 1e-4


def test_a_later_codebook_is_audited_with_the_earlier_ones() -> None:
    """One of 40 patients of ward x has the rare value; two codebooks would tell by subtraction."""
    first = suppressed([table([40, 60], "ward")], [], 100, LEAST)
    crossed = table([[39, 1], [30, 30]], "ward", "rare")
    second = suppressed([crossed], first, 100, LEAST)
    assert not second[0].shown[0].any()
    third = suppressed([table([69, 31], "rare")], [*first, *second], 100, LEAST)
    assert narrow([*first, *second, *third], 100) > LEAST - 1e-4


def test_two_partitions_of_one_column_do_not_subtract() -> None:
    """Ages by tens, and by tens from 1 on: the difference is the patients of age 0."""
    tens = Tabulation(
        ("age",), (Partition((10.0, 20.0), {}, 2),), np.array([30, 40, 30]), np.ones(3, bool)
    )
    shifted = Tabulation(
        ("age",), (Partition((11.0, 20.0), {}, 2),), np.array([33, 37, 30]), np.ones(3, bool)
    )
    assert suppressed([tens], [], 100, LEAST)[0].shown.all()
    first, second = suppressed([tens, shifted], [], 100, LEAST)
    assert not (first.shown[:2].all() and second.shown[:2].all())


def test_few_patients_are_not_counted_at_all() -> None:
    (one,) = suppressed([table([5, 4], "a")], [], 9, LEAST)
    assert not one.shown.any()


def test_cliques_contain_every_table() -> None:
    scopes = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("e",)]
    found = cliques(scopes)
    assert all(any(set(scope) <= set(clique) for clique in found) for scope in scopes)
    assert sorted(map(len, found)) == [1, 3, 3]


def test_cliques_of_all_graphs_have_a_tree() -> None:
    """Columns that a clique shares with all earlier ones are in one of them."""
    pairs = list(combinations("abcde", 2))
    for linked in product([False, True], repeat=len(pairs)):
        found = [set(one) for one in cliques(compress(pairs, linked))]
        for at in range(1, len(found)):
            shared = found[at] & set().union(*found[:at])
            assert any(shared <= one for one in found[:at]), found


def test_tables_in_a_ring_do_not_give_a_count_away() -> None:
    """Table ae has the sums of e, and be all but one count of a column: 4 patients are left."""
    counts = np.zeros((2, 2, 2, 2, 2), int)
    pairs = [(0, 0)] * 96 + [(1, 0)] * 4 + [(0, 1)] * 50 + [(1, 1)] * 50
    for k, (b, e) in enumerate(pairs):
        counts[k % 2, b, k // 4 % 2, k // 2 % 2, e] += 1
    asked = []
    for scope in ("ad", "ae", "be", "cd", "de"):
        others = tuple(k for k, name in enumerate("abcde") if name not in scope)
        asked.append(table(counts.sum(others), *scope))
    released = suppressed(asked, [], 200, LEAST)
    assert sum(int((~one.shown).sum()) for one in released) < 8  # of 20
    assert narrow(released, 200) > LEAST - 1e-4


def test_tables_that_link_too_many_columns_are_refused() -> None:
    names = "abcdef"
    square = np.full((8, 8), 20)
    tables = [table(square, x, y) for k, x in enumerate(names) for y in names[k + 1 :]]
    with raises(SettingsError, "tables link a, b, c", field="algorithm.tables"):
        JointTable(tables, 1280)


def test_atoms_refine_all_partitions() -> None:
    count, maps = atoms_of([Partition((10.0, 30.0), {}, 3), Partition((20.0,), {}, 0)])
    assert count == 5
    pairs = list(zip(*(row.tolist() for row in maps), strict=True))
    assert sorted(pairs) == [(0, 0), (1, 0), (1, 1), (2, 1), (3, 0)]
