"""Small tiers: nobody's values can be singled out of all that is ever opened, and models move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl.algorithms.inclusive.sealed_mixing import SealedMixing
from secure_fl.algorithms.inclusive.server import ServerSGD
from secure_fl.algorithms.inclusive.tier_sums import TierSums
from secure_fl.algorithms.inclusive.wide_sums import WideSums
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.settings import Protection
from tests.support.attacker import Wiretap
from tests.support.toy_tiers import names_of, play

DEPTHS = {"weak": 2, "medium": 3, "strong": 4}
ONE_EACH = {"a": "weak", "b": "medium", "c": "strong"}
CASES = {
    "one in each": (1, 1, 1),
    "a small one below large ones": (1, 3, 3),
    "a small one above a large one": (3, 0, 1),
    "two small ones around a large one": (1, 4, 2),
    "two small ones": (2, 2, 3),
    "three parties in two small ones": (1, 2, 3),
    "all large": (3, 3, 4),
    "nobody in the middle": (2, 0, 2),
}


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


@pytest.mark.parametrize("reading", ["unmixed", "mixed"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_follows_about_fewer_than_min_cohort_parties(
    case: str, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = opened(WideSums, CASES[case], monkeypatch, reading=reading)
    assert len(rows)
    assert exposed(rows, columns, below=3) == set()
    for curious in columns:  # who knows its own values, too: then of two, and nobody alone
        assert exposed(*knowing(curious, rows, columns), below=2) == set()


@pytest.mark.parametrize("way", [TierSums, SealedMixing])
def test_nor_from_the_sums_of_large_tiers(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("case", CASES)
def test_no_value_enters_two_sums(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = opened(WideSums, CASES[case], monkeypatch, beta=0.0)
    assert (rows != 0).any() and (rows != 0).sum(0).max() == 1


def test_the_attack_finds_what_is_there() -> None:
    """Two sums of one value, with and without a third party."""
    rows = np.array([[1.0, 1, 1], [1, 1, 0]])
    assert exposed(rows, {"a": [0], "b": [1], "c": [2]}, 2) == {frozenset("c")}


@pytest.mark.parametrize("mode", ["none", "secagg", "he", "he+secagg"])
def test_one_party_in_each_tier(mode: Protection) -> None:
    """Two rounds by hand; every number of a party's update is its own."""
    rng = np.random.default_rng(3)
    g = {
        p: [{n: rng.normal(size=12) for n in names_of(DEPTHS[t])} for _ in range(2)]
        for p, t in ONE_EACH.items()
    }
    tap = Wiretap()
    out = play(
        WideSums,
        ONE_EACH,
        DEPTHS,
        g,
        server=plain,
        size=12,
        min_cohort=3,
        mode=mode,
        bits=24,
        engine=tap,
    )
    for heard in tap.of(messages.SumInput):
        assert heard.message.segments and all(s.owners == () for s in heard.message.segments)
    model = {p: {n: np.asarray(w) for n, w in out.results[p][1].items()} for p in ONE_EACH}

    def mean(*values: Any) -> Any:
        return np.mean(values, axis=0)

    def both(party: str, name: str) -> Any:
        return g[party][0][name] + g[party][1][name]

    for name in ("emb.w", "enc.0.w", "enc.0.b.weight"):  # below the smallest last layer: shared
        total = mean(*(both(p, name) for p in ONE_EACH))
        for party in ONE_EACH:
            np.testing.assert_allclose(model[party][name], total, atol=2e-3)
    for party, names in {"a": (), "b": ("enc.1.w",), "c": ("enc.1.w", "enc.2.w")}.items():
        for name in ("pooler.w", "head.w", *names):  # fewer than three share it: at home
            np.testing.assert_allclose(model[party][name], both(party, name), atol=2e-3)
    momentum = mean(
        g["a"][0]["enc.1.w"],
        mean(g["b"][0]["enc.1.w"], g["b"][0]["enc.2.w"]),
        mean(g["c"][0]["enc.2.w"], g["c"][0]["enc.3.w"]),
    )
    for party, last in {"a": "enc.1.w", "b": "enc.2.w", "c": "enc.3.w"}.items():
        second = 0.5 * momentum + 0.5 * g[party][1][last]  # β of what all learnt in round 1
        np.testing.assert_allclose(model[party][last], g[party][0][last] + second, atol=2e-3)


def test_three_parties_in_two_small_tiers_below_a_large_one() -> None:
    """What small tiers share with the large one is in its sums, and not in the momentum."""
    tiers = crowd((1, 2, 3))
    g = {
        p: [
            {
                n: np.full(2, 10.0 * k + int(n.split(".")[1]))
                for n in names_of(DEPTHS[t])
                if "enc" in n
            }
            | {n: np.zeros(2) for n in names_of(DEPTHS[t]) if "enc" not in n}
        ]
        * 2
        for k, (p, t) in enumerate(tiers.items())
    }
    out = play(WideSums, tiers, DEPTHS, g, server=plain, size=2, min_cohort=3)
    weak, medium, strong = ([m[1] for p, m in out.results.items() if p[0] == t] for t in "wms")
    momentum = (1 + (10 + 2) + (20 + 2)) / 3  # weak's layer 2 of 2, medium's 3 of 3: at home
    assert float(weak[0]["enc.1.w"][0]) == pytest.approx(1 + (momentum + 1) / 2)
    assert float(medium[1]["enc.2.w"][0]) == pytest.approx(22 + (momentum + 22) / 2)
    shared = 2 * (10 + 20 + 30 + 40 + 50 + 5) / 5  # layer 2, of medium and strong
    assert float(medium[0]["enc.1.w"][0]) == pytest.approx(shared)
    assert float(strong[2]["enc.3.w"][0]) == pytest.approx(2 * (30 + 40 + 50 + 9) / 3)


def test_large_tiers_keep_sums_of_their_own_isolated_parts() -> None:
    tiers = crowd((3, 0, 1))
    g = {
        p: [{n: np.full(2, k) for n in names_of(DEPTHS[t])}]
        for k, (p, t) in enumerate(tiers.items())
    }
    out = play(WideSums, tiers, DEPTHS, g, server=plain, size=2, min_cohort=3)
    for party in ("w0", "w1", "w2"):
        assert float(out.results[party][0]["head.w"][0]) == pytest.approx((0 + 1 + 2) / 3)
        assert float(out.results[party][0]["enc.0.w"][0]) == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert torch.equal(out.results["s0"][0]["head.w"], torch.full((2,), 3.0))
