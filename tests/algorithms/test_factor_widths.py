"""How wide joint factors are, which nobody learns of anybody, and what travels whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import pytest
import torch

from secure_fl.algorithms.updates import Update
from secure_fl.errors import PartyFailed
from secure_fl.settings import Protection
from tests.support.exchanging import (
    MODES,
    NAMES,
    SLOW,
    Log,
    Sum,
    aggregate,
    drawn,
    exchanged,
    mixed,
    of_rank,
    summed,
    tensor,
)
from tests.support.raising import raises


def captured(logs: Mapping[str, Log], round: int) -> float:
    """The share of the aggregate's energy that got through."""
    A = aggregate(logs, round)["w"]
    error = np.linalg.norm(A - len(logs) * logs["east"].mean[round]["w"].double().numpy())
    return float(1 - (error / np.linalg.norm(A)) ** 2)


@pytest.mark.parametrize("T", [0.95, pytest.param(0.96, marks=SLOW), 0.98])
@pytest.mark.parametrize("noise", [0.1, 0.2, 0.3])
@pytest.mark.parametrize(("P", "Q"), [(96, 64), pytest.param(64, 160, marks=SLOW)])
def test_the_width_lets_the_share_of_the_aggregates_energy_through(
    P: int, Q: int, noise: float, T: float
) -> None:
    """T, in one pass, of new directions in every round: what the last one taught does not help."""
    found = []
    for seed in range(6):
        updates: dict[str, list[Update]] = {name: [] for name in NAMES}
        for t in range(2):
            common = of_rank(50 * seed + 7 * t, P, Q, 6) / sqrt(6)
            for i, own in enumerate(updates.values()):
                E = drawn(50 * seed + 7 * t + 1000 * (i + 1), P, Q)
                own.append({"w": tensor(common + noise * E / np.linalg.norm(E))})
        logs = exchanged(updates, T=T)
        assert all(width["w"] is not None for width in logs["east"].width)
        found.append([captured(logs, t) for t in range(2)])
    assert np.mean(found, axis=0).min() >= T - 0.02
    assert np.min(found) >= T - 0.1  # Ω is drawn: four columns more than the rank may not be enough


def test_what_parties_do_not_share_is_not_all_in_one_exchange_but_in_a_few() -> None:
    """Four times the rank that anybody has, the worst case: each exchange finds some of it."""
    updates = {m: [{"w": tensor(of_rank(9 * i, 96, 64, 4))}] for i, m in enumerate(NAMES)}
    whole = summed([Δ[0] for Δ in updates.values()])["w"]
    zeros = [{"w": torch.zeros(96, 64)}] * 5
    logs = exchanged({m: [*Δ, *zeros] for m, Δ in updates.items()}, T=0.98)
    assert logs["east"].width[0] == {"w": 8}
    means = np.cumsum([mean["w"].double().numpy() for mean in logs["east"].mean], axis=0)
    left = [np.linalg.norm(whole - 4 * m) ** 2 / np.linalg.norm(whole) ** 2 for m in means]
    assert 0.2 < left[0] < 0.7 and left[2] < 0.1 and left[5] < 0.02


def test_the_width_follows_the_ranks_of_the_round_itself() -> None:
    """Rank four, then rank twelve, then four again: nothing has to be learnt first."""
    few, many = of_rank(2, 60, 48, 4), of_rank(3, 60, 48, 12)
    updates = {m: [{"w": tensor(A)} for A in (few, few, many, few)] for m in NAMES}
    logs = exchanged(updates, T=0.999)
    assert [width["w"] for width in logs["east"].width] == [8, 8, 16, 8]
    assert min(captured(logs, t) for t in range(4)) > 0.9999


def test_the_width_is_the_mean_of_the_parties_ranks() -> None:
    ranks, weights = (2, 3, 4, 8), dict(zip(NAMES, (1.0, 3.0, 2.0, 50.0), strict=True))
    updates = {
        m: [{"w": tensor(of_rank(5 * k, 60, 40, k))}] for m, k in zip(NAMES, ranks, strict=True)
    }
    logs = exchanged(updates, T=0.999, mode="he+secagg", weights=weights)  # 17 / 4 is above four
    assert all(log.width == [{"w": 5 + 4}] for log in logs.values())


@pytest.mark.parametrize("nobody", [False, True])
def test_who_did_not_move_counts_as_of_rank_one(nobody: bool) -> None:
    """(6 + 6 + 6 + 1) / 4 is below five; and nobody's rank is never 0."""
    moved, still = tensor(of_rank(1, 60, 40, 6)), torch.zeros(60, 40)
    updates = {m: [{"w": still if nobody or m == "west" else moved}] for m in NAMES}
    logs = exchanged(updates, T=0.999, mode="he+secagg", bits=24)
    assert logs["west"].width == [{"w": 1 + 4 if nobody else 5 + 4}]
    expected = torch.zeros(60, 40) if nobody else 3 / 4 * moved
    torch.testing.assert_close(logs["west"].mean[0]["w"], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_matrices_of_too_high_a_rank_travel_whole(mode: Protection, door: list[Sum]) -> None:
    """As wide as nothing would be saved; they are in the first sum of values, and in no other."""
    updates = {
        m: [{"w": tensor(drawn(i, 60, 40)), "low": tensor(of_rank(8, 60, 40, 2))}]
        for i, m in enumerate(NAMES)
    }
    logs = exchanged(updates, T=0.98, mode=mode, bits=24)
    assert all(log.width == [{"w": None, "low": 6}] for log in logs.values())
    ranks, first, second = (s.given for s in door if s.party == "east")
    assert set(ranks) == {"parties", "w|rank", "low|rank"}
    assert first["w"].shape == (60, 40) and first["low"].shape == (60, 6)
    assert set(second) == {"records", "low|B"}
    for name, A in aggregate(logs, 0).items():
        np.testing.assert_allclose(4 * logs["east"].mean[0][name], A, atol=1e-3)


def test_when_all_travel_whole_there_is_no_second_sum(door: list[Sum]) -> None:
    exchanged({m: [{"w": tensor(drawn(i, 60, 40))}] for i, m in enumerate(NAMES)}, T=0.98)
    assert len(door) == 2 * len(NAMES)


@pytest.mark.parametrize(("most", "width"), [(1, 1), (7, 7), (50, 23)])
def test_max_rank_caps_the_width_of_what_else_would_travel_whole(
    most: int, width: int, door: list[Sum]
) -> None:
    updates = {m: [{"w": tensor(drawn(i, 60, 40))}] * 3 for i, m in enumerate(NAMES)}
    logs = exchanged(updates, T=0.98, max_rank=most)
    assert logs["east"].width == [{"w": width}] * 3
    shapes = {v.shape for s in door for n, v in s.given.items() if n.startswith("w") and v.ndim}
    assert shapes == {(60, width), (width, 40)}


@pytest.mark.parametrize("mode", MODES)
def test_nobody_learns_anybodys_rank(mode: Protection, door: list[Sum]) -> None:
    """Only ranks' sums are opened: who of the others has which rank makes no difference."""

    def run(ranks: Sequence[int]) -> tuple[list[Sum], dict[str, Log]]:
        door.clear()
        updates = {
            m: [{"w": tensor(of_rank(k, 60, 40, k))}] for m, k in zip(NAMES, ranks, strict=True)
        }
        logs = exchanged(updates, T=0.999, mode=mode)
        return list(door), logs

    (one, logs), (other, same) = run((3, 2, 5, 9)), run((3, 9, 2, 5))
    for seen, ranks in ((one, (3, 2, 5, 9)), (other, (3, 9, 2, 5))):
        first = [s for s in seen if "parties" in s.given]
        assert {s.party: s.given["w|rank"] for s in first} == dict(zip(NAMES, ranks, strict=True))
        assert all(s.given.keys() == {"parties", "w|rank"} for s in first)
        assert all(s.opened == {"parties": 4.0, "w|rank": 19.0} for s in first)
        assert not any("rank" in n for s in seen if s not in first for n in s.given)
        # And what else is sent has the mean's width, not one's own.
        assert {s.given["w"].shape for s in seen if "w" in s.given} == {(60, 9)}
        assert {s.given["w|B"].shape for s in seen if "w|B" in s.given} == {(9, 40)}
    assert all(log.width == [{"w": 9}] for log in [*logs.values(), *same.values()])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_explained_and_not_sent(bad: float) -> None:
    updates = mixed(2, rounds=1)
    updates["south"][0]["tall"][3, 4] = bad
    with raises(PartyFailed, party="south", round=1) as caught:
        exchanged(updates)
    assert caught.value.reason == "training"
