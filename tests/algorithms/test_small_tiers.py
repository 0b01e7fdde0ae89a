"""Small tiers: nobody's values can be singled out of all that is ever opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secure_fl.algorithms.inclusivefl.mixing import ServerSGD
from secure_fl.algorithms.inclusivefl.sealed_mixing import SealedMixing
from secure_fl.algorithms.inclusivefl.tier_sums import TierSums
from secure_fl.party.cohort import Cohort
from tests.support.toy_tiers import names_of, play

DEPTHS = {"weak": 2, "medium": 3, "strong": 4}


def plain() -> ServerSGD:
    return ServerSGD(1.0)


def crowd(counts: Sequence[int]) -> dict[str, str]:
    return {f"{t[0]}{i}": t for t, n in zip(DEPTHS, counts, strict=True) for i in range(n)}


@contextmanager
def overheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """All that any party opens."""
    found: list[Any] = []
    honest = Cohort.sum

    async def listening(self: Cohort, *values: Any, **options: Any) -> Any:
        opened = await honest(self, *values, **options)
        found.extend(np.ravel(v) for v in opened.values() if np.size(v) > 1)
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(Cohort, "sum", listening)
        yield found


def unknowns(tiers: Mapping[str, str], rounds: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Updates in which every number of every party is a direction of its own."""
    columns = {p: [] for p in tiers}  # type: dict[str, list[int]]
    places = [
        (party, number, name)
        for party, tier in tiers.items()
        for number in range(rounds)
        for name in names_of(DEPTHS[tier])
    ]
    updates: dict[str, Any] = {p: [{} for _ in range(rounds)] for p in tiers}
    for at, (party, number, name) in enumerate(places):
        updates[party][number][name] = np.eye(len(places), dtype=np.float32)[at]
        columns[party].append(at)
    return updates, columns


def exposed(rows: Any, columns: Mapping[str, Sequence[int]], below: int) -> set[frozenset[str]]:
    """Groups of fewer than `below` parties of whose values alone something follows.

    Everything opened is a row of coefficients. Something about a group alone follows exactly if
    rows can be combined so that everybody else's columns vanish and its own do not.
    """
    rank = np.linalg.matrix_rank(rows)
    every = range(rows.shape[1])
    found = set()
    for size in range(1, below):
        for group in combinations(columns, size):
            own = {c for party in group for c in columns[party]}
            rest = rows[:, [c for c in every if c not in own]]
            if np.linalg.matrix_rank(rest) < rank:
                found.add(frozenset(group))
    return found


def knowing(
    party: str, rows: Any, columns: Mapping[str, Sequence[int]]
) -> tuple[Any, dict[str, Sequence[int]]]:
    """The same without what this party brought."""
    own = set(columns[party])
    kept = [c for c in range(rows.shape[1]) if c not in own]
    place = {c: at for at, c in enumerate(kept)}
    others = {p: found for p, found in columns.items() if p != party}
    return rows[:, kept], {p: [place[c] for c in found] for p, found in others.items()}


def opened(way: Any, counts: Sequence[int], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    tiers = crowd(counts)
    updates, columns = unknowns(tiers, 2)
    size = sum(len(c) for c in columns.values())
    with overheard(monkeypatch) as rows:
        given: dict[str, Any] = {"server": plain, "size": size, "min_cohort": 3} | options
        play(way, tiers, DEPTHS, updates, **given)
    return np.unique(np.array(rows, np.float64).round(5), axis=0), columns


@pytest.mark.parametrize("way", [TierSums, SealedMixing])
def test_nothing_follows_about_fewer_than_min_cohort_parties(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = opened(way, (3, 3, 3), monkeypatch)
    assert exposed(rows, columns, below=3) == set()
    for curious in columns:
        assert exposed(*knowing(curious, rows, columns), below=2) == set()


def test_mixing_a_small_tier_with_its_teachers_would_not_hide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why small tiers sit out although the mixed sum is over four: the teachers know their part."""
    rows, columns = opened(SealedMixing, (1, 3, 3), monkeypatch, min_cohort=1)
    assert frozenset({"w0"}) in exposed(rows, columns, below=2)


def test_the_attack_finds_what_is_there() -> None:
    """Two sums of one value, with and without a third party."""
    rows = np.array([[1.0, 1, 1], [1, 1, 0]])
    assert exposed(rows, {"a": [0], "b": [1], "c": [2]}, 2) == {frozenset("c")}
