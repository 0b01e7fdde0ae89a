"""What all answers tell together: atoms summed exactly, and differences about few refused."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from secure_fl.statistics import atoms, differences
from secure_fl.statistics.asking import ask
from secure_fl.statistics.atoms import Release
from secure_fl.statistics.columns import Written
from secure_fl.statistics.counting import cells, place
from secure_fl.statistics.differencing import groups_found, random_questions
from secure_fl.statistics.questions import Categories, Count, CrossTable, Question
from secure_fl.statistics.rules import StatisticsRules
from tests.support.tables import hospitals

LABELS = Categories(name="l", kind="categories", field="label", values=("a", "b", "c"))
CROSS = CrossTable(
    name="x",
    kind="table",
    rows="label",
    row_values=("a", "b", "c"),
    columns="sex",
    column_values=("f", "m"),
)


def whole(question: Question) -> Release:
    return Release(question, np.arange(cells(question)), 1000)


def test_the_sum_of_sites_tables_comes_apart_into_the_atoms_of_all() -> None:
    tables = hospitals(4)
    releases = [whole(LABELS), whole(CROSS), whole(Count(name="n", kind="count"))]
    total = np.sum([site_table(table, releases) for table in tables.values()], axis=0)
    found = atoms.opened(total, releases)
    assert found is not None
    pooled = pd.concat(list(tables.values()))
    expected = sorted(pooled.groupby(["label", "sex"]).size())
    assert sorted(found.sizes.tolist()) == expected
    for blocks, release in zip(found.members, releases, strict=True):
        assert (blocks.sum(0) == 1).all(), (
            release.question.kind
        )  # each atom lies in one block of each


def test_more_atoms_than_there_is_room_for_are_no_answer() -> None:
    table = pd.DataFrame({"x": [str(n) for n in range(200)], "y": [str(n) for n in range(200)]})
    values = tuple(str(n) for n in range(200))
    releases = [
        whole(Categories(name=name, kind="categories", field=name, values=values)) for name in "xy"
    ]
    total = site_table(table, releases)
    assert atoms.opened(total[:, :, : 1 << 6], releases) is None  # buckets are missing


def site_table(table: pd.DataFrame, releases: list[Release]) -> Any:
    places = [place(one.question, Written(table)) for one in releases]
    return atoms.summed(releases, places, np.arange(len(table)))


def judged(*members: list[list[int]], sizes: list[int], records: int = 1) -> bool:
    parts = tuple(np.array(one, np.int8) for one in members)
    found = atoms.Atoms(np.array(sizes), parts, (False,) * len(parts))
    return differences.tells_of_few(found, 10, records=records)


def test_a_condition_that_leaves_out_few_is_refused() -> None:
    assert judged([[1, 1]], [[1, 0]], sizes=[100, 3])
    assert not judged([[1, 1]], [[1, 0]], sizes=[100, 30])


def test_what_three_answers_tell_is_refused_though_no_two_do() -> None:
    """|A ∪ B| and |A| and |B|: their intersection follows."""
    # atoms: A only, B only, both
    assert judged([[1, 1, 1]], [[1, 0, 1]], [[0, 1, 1]], sizes=[50, 50, 2])
    assert not judged([[1, 1, 1]], [[1, 0, 1]], sizes=[50, 50, 40])


def test_marginals_with_a_small_cell_are_answered_and_the_cell_is_not() -> None:
    labels, sexes = [[1, 1, 0, 0], [0, 0, 1, 1]], [[1, 0, 1, 0], [0, 1, 0, 1]]
    table = np.eye(4, dtype=int).tolist()
    sizes = [40, 35, 4, 30]
    assert not judged(labels, sexes, sizes=sizes)
    assert judged(labels, sexes, table, sizes=sizes)


def test_few_patients_with_many_records_are_few() -> None:
    assert not judged([[1, 1, 1]], [[1, 0, 0]], sizes=[90, 6, 6])
    assert judged([[1, 1, 1]], [[1, 0, 0]], sizes=[90, 6, 6], records=2)


def truly(rows: list[list[int]], sizes: list[int]) -> bool:
    """By every set of atoms of too few patients: whether some combination is about them alone."""
    matrix, atoms_of = np.array(rows, float), range(len(sizes))
    rank = np.linalg.matrix_rank(matrix)
    for count in range(1, len(sizes)):
        for few in combinations(atoms_of, count):
            rest = [atom for atom in atoms_of if atom not in few]
            small = sum(sizes[atom] for atom in few) < 10
            if small and np.linalg.matrix_rank(matrix[:, rest]) < rank:
                return True
    return False


def test_nothing_that_tells_of_few_is_let_pass() -> None:
    """Random answers, one after the other, against all sets of atoms: none is missed."""
    rng, refused, passed = np.random.default_rng(3), 0, 0
    for _ in range(60):
        sizes = rng.choice([2, 4, 7, 12, 30], 6).tolist()
        releases: list[list[list[int]]] = []
        for _ in range(4):
            at = rng.integers(0, 4, 6)  # 0: not about this atom
            new = [(at == block).astype(int).tolist() for block in (1, 2, 3) if (at == block).any()]
            if not new or not np.array(new).any():
                continue
            tells = truly([row for one in [*releases, new] for row in one], sizes)
            said = judged(*releases, new, sizes=sizes)
            assert said or not tells
            refused, passed = refused + said, passed + (not said)
            if not said:
                releases.append(new)
    assert refused > 20 and passed > 20


FIELDS = {
    "label": ("a", "b", "c"),
    "sex": ("f", "m"),
    "died": ("0", "1"),
}


@pytest.mark.parametrize("least", [1, 10], ids=["rules off", "rules on"])
def test_random_questions_find_single_patients_only_without_rules(
    least: int, tmp_path: Path
) -> None:
    """The full number of questions: `python -m benchmarks statistics`."""
    tables = hospitals(3, size=40)
    pooled = pd.concat(list(tables.values())).astype(str)
    sizes = pooled.groupby(list(FIELDS)).size()
    few = {group for group, size in sizes.items() if size < 10}
    assert few
    questions = random_questions(FIELDS, 40 if least == 1 else 20, np.random.default_rng(1))
    rules = StatisticsRules(min_patients=least, questions_a_day=1000)
    answers = ask(questions, tables, rules=rules)
    found = groups_found(FIELDS, questions, answers, few=9)
    if least == 1:
        assert set(found) == few and all(found[group] == sizes[group] for group in few)
    else:
        assert found == {} and any(answer.status == "answered" for answer in answers)
