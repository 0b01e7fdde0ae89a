"""Factor exchanges: as good as an SVD, nothing is lost, nobody's rank or values are revealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.algorithms.updates import Update
from secure_fl.errors import PartyFailed
from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine
from tests.support.exchanging import (
    MODES,
    NAMES,
    SHAPES,
    WAYS,
    Log,
    Matrix,
    Sum,
    aggregate,
    basis,
    drawn,
    exchanged,
    mixed,
    of_rank,
    summed,
    tensor,
)
from tests.support.raising import raises

# --- what all ways have in common -----------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_all_parties_get_the_same_bits(way: FactorMode, mode: Protection) -> None:
    weights = dict(zip(NAMES, (1.0, 3.0, 2.0, 5.0), strict=True))
    logs = exchanged(mixed(0), way, mode=mode, weights=weights)
    for t in range(3):
        for name, mean in logs["east"].mean[t].items():
            assert mean.shape == SHAPES[name]
            assert all(torch.equal(mean, log.mean[t][name]) for log in logs.values())


@pytest.mark.parametrize("mode", ["none", "secagg"])
@pytest.mark.parametrize("way", ["joint", "per_party"])
@pytest.mark.parametrize("max_rank", [None, 1])
def test_what_does_not_get_through_is_kept(
    way: FactorMode, mode: Protection, max_rank: int | None
) -> None:
    """Σᵢ gᵢ = Σᵢ wᵢ · mean + Σᵢ kept, whatever was cut off, clipped or rounded."""
    weights = dict(zip(NAMES, (1.0, 3.0, 2.0, 5.0), strict=True))
    logs = exchanged(
        mixed(1, rounds=4), way, T=0.9, mode=mode, bits=8, weights=weights, max_rank=max_rank
    )
    lost = 0.0
    for t in range(4):
        whole = aggregate(logs, t)
        kept = summed([log.kept[t] for log in logs.values()])
        for name, mean in logs["east"].mean[t].items():
            got = 11 * mean.double().numpy() + kept[name]
            scale = sum(float(log.given[t][name].norm()) for log in logs.values())
            assert np.linalg.norm(got - whole[name]) < 1e-6 * scale
            lost = max(lost, float(np.linalg.norm(kept[name]) / scale))
    assert lost > 0.03  # something was cut off: the test says something


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("way", WAYS)
def test_nobody_moved_and_then_all_do(way: FactorMode, mode: Protection) -> None:
    """No NaN of zeros; and what comes after them gets through, at the latest with its scale."""
    zeros = {n: torch.zeros(shape) for n, shape in SHAPES.items()}
    moves = mixed(3, rounds=1)
    updates = {n: [zeros, zeros, *moves[n], zeros, zeros, zeros] for n in NAMES}
    logs = exchanged(updates, way, T=0.999, mode=mode)
    whole = summed([moves[n][0] for n in NAMES])
    for name, A in whole.items():
        means = [mean[name].double().numpy() for mean in logs["east"].mean]
        assert not np.any(means[:2])
        assert np.linalg.norm(4 * sum(means) - A) < 0.05 * np.linalg.norm(A)


# --- joint ----------------------------------------------------------------------------------------


def slow(rounds: int, P: int, Q: int, noise: float, rank: int = 6) -> dict[str, list[Update]]:
    """An aggregate whose singular vectors turn slowly, in noise; nobody's own is of low rank."""
    rng, S = np.random.default_rng(4), np.linspace(10, 6, rank)
    U, V = basis(rng.normal(size=(P, rank))), basis(rng.normal(size=(Q, rank)))
    updates: dict[str, list[Update]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        U = basis(U + 0.1 * rng.normal(size=U.shape) / sqrt(P))
        V = basis(V + 0.1 * rng.normal(size=V.shape) / sqrt(Q))
        A, own = (U * S) @ V.T, [3 * rng.normal(size=(P, Q)) for _ in NAMES]
        for name, g in zip(NAMES, own, strict=True):  # own parts cancel in the sum
            g = g - sum(own) / 4 + A / 4 + noise / 2 * rng.normal(size=(P, Q))
            updates[name].append({"w": tensor(g)})
    return updates


def test_joint_factors_are_as_good_as_an_svd_of_the_aggregate() -> None:
    """Within 1.1 of the least error of equal rank, by the subspace of earlier rounds."""
    logs = exchanged(slow(8, 96, 64, noise=0.01), T=0.95, max_rank=10)
    for t in range(3, 8):
        A, rank = aggregate(logs, t)["w"], logs["east"].width[t]["w"]
        S = np.linalg.svd(A, compute_uv=False)
        error = np.linalg.norm(A - 4 * logs["east"].mean[t]["w"].double().numpy())
        assert rank == 10
        assert error <= 1.1 * np.linalg.norm(S[rank:])


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.05), (24, 1e-4)])
def test_sealed_factors_equal_clear_ones_but_for_rounding(bits: Any, bound: float) -> None:
    """An aggregate of rank 4 is exact in the clear; sealing it adds the codec's rounding only."""
    A = basis(drawn(0, 60, 4)) @ np.diag([4.0, 3, 2, 1]) @ basis(drawn(1, 40, 4)).T
    updates = {m: [{"w": tensor(k * A / 10)}] for k, m in enumerate(NAMES, 1)}
    clear, sealed = (exchanged(updates, mode=m, bits=bits) for m in ("none", "he+secagg"))
    np.testing.assert_allclose(4 * clear["east"].mean[0]["w"], A, atol=1e-5)
    error = np.linalg.norm(4 * sealed["east"].mean[0]["w"].double().numpy() - A)
    assert 0 < error < bound * np.linalg.norm(A)


# --- error feedback -------------------------------------------------------------------------------


def bias(rounds: int, way: FactorMode) -> list[float]:
    """Return the distance of the mean of the means from a constant update, after each round."""
    updates = {m: [{"w": tensor(drawn(i, 9, 7))}] * rounds for i, m in enumerate(NAMES[:3])}
    logs = exchanged(updates, way, T=0.9, max_rank=1)
    truth = summed([own[0] for own in updates.values()])["w"] / 3
    means = np.cumsum([mean["w"].double().numpy() for mean in logs["east"].mean], axis=0)
    scale = np.linalg.norm(truth)
    return [float(np.linalg.norm(m / t - truth) / scale) for t, m in enumerate(means, 1)]


@pytest.mark.parametrize("way", ["joint", "per_party"])
def test_over_rounds_the_mean_of_means_is_the_update(way: FactorMode) -> None:
    """The bias is what is kept, over the rounds: it falls like 1/rounds, of rank one even."""
    found = bias(60, way)
    assert max(t * found[t - 1] for t in (40, 50, 60)) < 2 * max(
        t * found[t - 1] for t in (10, 20, 30)
    )
    assert found[59] < 0.25 < found[9]


# --- per_party and none ---------------------------------------------------------------------------


def cut_by_svd(G: Matrix, T: float) -> Matrix:
    """Eq. 8 by NumPy."""
    U, S, V = np.linalg.svd(G, full_matrices=False)
    K = int(np.argmax(np.cumsum(S**2) / np.sum(S**2) >= T)) + 1
    product: Matrix = (U[:, :K] * S[:K]) @ V[:K]
    return product


@pytest.mark.parametrize("mode", MODES)
def test_per_party_is_the_papers_server_at_every_party(mode: Protection) -> None:
    """Lines 8-21 by NumPy, from spectra that fall fast enough to be cut at one place."""
    P, Q, spectrum = 40, 24, 2.0 ** -np.arange(8)
    G = {
        name: (basis(drawn(i, P, 8)) * spectrum) @ basis(drawn(i + 9, Q, 8)).T
        for i, name in enumerate(NAMES)
    }
    weights = dict(zip(NAMES, (1.0, 2.0, 3.0, 4.0), strict=True))
    updates = {n: [{"w": tensor(g), "b": tensor(drawn(3, 11))}] for n, g in G.items()}
    logs = exchanged(updates, "per_party", T=0.9, mode=mode, weights=weights)
    whole = np.sum([cut_by_svd(weights[n] * g, 0.9) for n, g in G.items()], axis=0)
    expected = cut_by_svd(whole, 0.9) / 10
    assert np.linalg.norm(expected - whole / 10) > 0.05 * np.linalg.norm(expected)
    for log in logs.values():
        np.testing.assert_allclose(log.mean[0]["w"], expected, atol=2e-6)
        np.testing.assert_allclose(log.mean[0]["b"], drawn(3, 11), rtol=1e-6)


def test_none_is_the_weighted_mean() -> None:
    updates, weights = mixed(6, rounds=2), dict(zip(NAMES, (1.0, 2.0, 3.0, 4.0), strict=True))
    taken = deepcopy(updates)  # what is sent is multiplied where it lies
    logs = exchanged(taken, "none", T=0.01, weights=weights)
    for t in range(2):
        for name in SHAPES:
            expected = sum(weights[n] * updates[n][t][name].double() for n in NAMES) / 10
            torch.testing.assert_close(
                logs["west"].mean[t][name].double(), expected, atol=1e-6, rtol=0
            )


# --- dropouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", (4, 5, 8, 10, 12, 15))  # ranks, Y and B, of two rounds
def test_every_mean_after_a_dropout_is_of_some_parties(exchange: int) -> None:
    """Lost at any exchange: every mean is that of some parties, whole, or waits for the next."""
    names = (*NAMES, "hub")
    A = basis(drawn(0, 40, 3)) @ basis(drawn(1, 24, 3)).T  # of rank three: met exactly
    sizes = dict(zip(names, (1.0, 2.0, 3.0, 4.0, 50.0), strict=True))
    updates = {n: [{"w": tensor(s * A), "b": tensor(np.full(12, s))}] * 2 for n, s in sizes.items()}
    logs = exchanged(
        updates,
        T=0.9,
        mode="he+secagg",
        bits=24,
        threshold=3,
        engine=lambda sessions: LossyEngine(sessions, lose={"hub": exchange}),
    )
    everyone, rest = (sum(sizes[n] for n in group) / len(group) for group in (names, NAMES))
    assert set(logs) >= set(NAMES)
    waits = 0.0
    for t in range(2):
        means = [logs[n].mean[t] for n in NAMES]
        assert all(torch.equal(m[k], means[0][k]) for m in means for k in m)
        factored, whole = float(torch.sum(means[0]["w"] * tensor(A)) / 3), means[0]["b"].mean()
        assert min(abs(whole - everyone), abs(whole - rest)) < 1e-3
        if factored == 0:  # between both sums: what the others have left of it, they send later
            assert not waits
            waits = rest
        else:
            assert min(abs(factored - waits - everyone), abs(factored - waits - rest)) < 1e-3
            waits = 0.0


@pytest.mark.parametrize("exchange", range(2, 11))
def test_no_value_of_who_leaves_is_in_two_sums_of_others(exchange: int, door: list[Sum]) -> None:
    """Lost between the sums of ranks, of Y, of B: their difference must not be the leaver's."""
    names = (*NAMES, "hub")
    updates = {m: [{"w": tensor(of_rank(i, 40, 24, i + 2))}] for i, m in enumerate(names)}
    exchanged(
        updates,
        T=0.9,
        mode="he+secagg",
        weights=dict.fromkeys(names, 3.0),
        threshold=3,
        engine=lambda sessions: LossyEngine(sessions, lose={"hub": exchange}),
    )
    over = {}  # names of a sum -> how many are in it
    for part in (s for s in door if s.party == "east" and s.opened):
        count = part.opened["parties" if "parties" in part.opened else "records"]
        over[frozenset(part.opened)] = float(count) / (1 if "parties" in part.opened else 3)
    ranks, Y, B = ({"parties", "w|rank"}, {"records", "w"}, {"records", "w|B"})
    assert over.keys() >= {frozenset(ranks), frozenset(Y)} and set(over.values()) <= {4.0, 5.0}
    assert not ranks & (Y | B)  # so they may be over others
    assert over.get(frozenset(B), over[frozenset(Y)]) == over[frozenset(Y)]


# --- widths ---------------------------------------------------------------------------------------


def captured(logs: Mapping[str, Log], round: int) -> float:
    """The share of the aggregate's energy that got through."""
    A = aggregate(logs, round)["w"]
    error = np.linalg.norm(A - len(logs) * logs["east"].mean[round]["w"].double().numpy())
    return float(1 - (error / np.linalg.norm(A)) ** 2)


@pytest.mark.parametrize("T", [0.95, 0.98])
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_the_width_transmits_the_share_of_the_aggregates_energy(noise: float, T: float) -> None:
    """T, in one pass, of new directions in every round: what the last one taught does not help."""
    found, (P, Q) = [], (96, 64)
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
