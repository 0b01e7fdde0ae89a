"""The ways of students' updates: as good as an SVD, nothing is lost, and all parties end equal."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl.algorithms.fedkd.factor_exchange import FactorExchange, factor_exchange
from secure_fl.algorithms.fedkd.lowrank import Subspace
from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.algorithms.updates import Update
from secure_fl.crypto.sealing.segments import CLIP_IN_RMS
from secure_fl.events import EventLog
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import federate
from tests.support.exchanging import (
    MODES,
    NAMES,
    SHAPES,
    WAYS,
    Matrix,
    aggregate,
    basis,
    drawn,
    exchanged,
    mixed,
    summed,
    tensor,
)

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


@pytest.mark.parametrize("way", WAYS)
def test_a_party_that_has_nothing_to_say(way: FactorMode) -> None:
    updates = mixed(2)
    updates["west"] = [{n: torch.zeros_like(δ) for n, δ in Δ.items()} for Δ in updates["west"]]
    logs = exchanged(updates, way, T=0.99, mode="he+secagg")
    for t in range(3):
        for name, A in aggregate(logs, t).items():
            mean = logs["west"].mean[t][name].double().numpy()
            assert np.linalg.norm(4 * mean - A) < 0.2 * np.linalg.norm(A)


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


@pytest.mark.parametrize(("P", "Q"), [(96, 64), (64, 96)])
def test_joint_factors_are_as_good_as_an_svd_of_the_aggregate(P: int, Q: int) -> None:
    """Within 1.1 of the least error of equal rank, from a subspace that the last rounds left."""
    logs = exchanged(slow(8, P, Q, noise=0.01), T=0.95, max_rank=10)
    for t in range(3, 8):
        A, rank = aggregate(logs, t)["w"], logs["east"].width[t]["w"]
        S = np.linalg.svd(A, compute_uv=False)
        error = np.linalg.norm(A - 4 * logs["east"].mean[t]["w"].double().numpy())
        assert rank == 10
        assert error <= 1.1 * np.linalg.norm(S[rank:])
        assert 1 - (error / np.linalg.norm(A)) ** 2 > 0.94


def test_without_a_memory_factors_are_worse() -> None:
    """The same rounds, each from random directions: what the test above would catch."""

    def forget(way: FactorExchange) -> None:
        for subspace in way.shared.values():  # type: ignore[attr-defined]
            subspace.B = torch.zeros_like(subspace.B)

    logs = exchanged(slow(4, 96, 64, noise=0.01), T=0.95, max_rank=10, after=forget)
    A, rank = aggregate(logs, 3)["w"], logs["east"].width[3]["w"]
    S = np.linalg.svd(A, compute_uv=False)
    error = np.linalg.norm(A - 4 * logs["east"].mean[3]["w"].double().numpy())
    assert rank == 10 and error > 1.5 * np.linalg.norm(S[10:])


@pytest.mark.parametrize("bits", [8, 16, 24])
@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_sealed_factors_equal_clear_ones_within_the_codecs_bound(
    mode: Protection, bits: Any
) -> None:
    """A of rank r is met exactly in the clear; rounding moves it by so much and no more.

    A codec's step is clip / levels, and a party's value is off by less than one step. With
    Ŷ = AΩ + D and B̂ = ÛᵀA + E, where |D| and |E| have entries below n steps,
    ‖ÛB̂ − A‖ <= ‖(I − ÛÛᵀ)A‖ + ‖E‖, and (I − ÛÛᵀ)Ŷ = 0 makes the first ‖(I − ÛÛᵀ)DM‖ <= ‖D‖·‖M‖,
    M the inverse of A's row space seen through Ω.
    """
    P, Q, r, n = 60, 40, 4, len(NAMES)
    V = basis(drawn(1, Q, r))
    A = basis(drawn(0, P, r)) @ np.diag([4.0, 3, 2, 1]) @ V.T
    own = [basis(drawn(7 + i, P, r)) @ V.T for i in range(n)]  # they share A's rows
    updates = {
        m: [{"w": tensor(A / n + g - sum(own) / n)}] for m, g in zip(NAMES, own, strict=True)
    }
    clear, sealed = (exchanged(updates, mode=m, bits=bits) for m in ("none", mode))
    A = aggregate(sealed, 0)["w"]
    np.testing.assert_allclose(4 * clear["east"].mean[0]["w"], A, atol=1e-5)

    ready = Subspace(torch.Size((P, Q)))
    seeds: list[torch.Generator] = []

    async def look(cohort: Cohort) -> None:
        way: Any = factor_exchange("joint", cohort, EventLog("x"), updates["east"][0], 5, None)
        way.shared.count = 1  # of the first exchange
        seeds.append(way.shared.generator("w"))

    federate(dict.fromkeys(NAMES, look))
    w = sealed["east"].width[0]["w"]
    assert w == r + 4  # the rank of every party's own, and some more
    Ω = ready.probe(w, seeds[0]).double().numpy()
    levels = 2 ** (bits - 1) - 1

    def step(norms: Sequence[float], size: int) -> float:
        return float(CLIP_IN_RMS[bits] / levels * sqrt(sum(norms) / (n * size)) * (1 + 1e-5))

    G = [log.given[0]["w"].double().numpy() for log in sealed.values()]
    D = n * step([float(np.sum((g @ Ω) ** 2)) for g in G], P * w) * sqrt(P * w)
    E = n * step([float(np.sum(g**2)) for g in G], w * Q) * sqrt(w * Q)  # ‖Ûᵀg‖ <= ‖g‖
    M = 1 / np.linalg.svd(V.T @ Ω, compute_uv=False)[-1]
    error = np.linalg.norm(4 * sealed["east"].mean[0]["w"].double().numpy() - A)
    assert error <= D * M + E + 1e-5
    assert error > (D * M + E) / 200 or bits == 24  # no bound that anything would meet


# --- error feedback -------------------------------------------------------------------------------


def bias(
    rounds: int, way: FactorMode, after: Any = lambda way: None, **options: Any
) -> list[float]:
    """How far the mean of the means is from a constant update, after each round."""
    names = NAMES[:3]
    updates = {m: [{"w": tensor(drawn(i, 9, 7))}] * rounds for i, m in enumerate(names)}
    logs = exchanged(updates, way, T=0.9, max_rank=1, after=after, **options)
    truth = summed([updates[n][0] for n in names])["w"] / 3
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


@pytest.mark.parametrize("way", ["joint", "per_party"])
def test_without_what_is_kept_it_is_not(way: FactorMode) -> None:
    found = bias(60, way, after=lambda way: way.personal.clear())
    assert found[59] > 0.3 and found[59] > 0.8 * found[29]


@pytest.mark.parametrize("way", ["joint", "none"])
def test_rounding_and_clipping_are_fed_back_too(way: FactorMode) -> None:
    names, size = NAMES[:3], 400  # a tensor that is not factorised
    updates = {m: [{"b": tensor(drawn(i, size))}] * 24 for i, m in enumerate(names)}
    logs = exchanged(updates, way, mode="secagg", bits=8)
    truth = summed([updates[n][0] for n in names])["b"] / 3
    means = np.cumsum([mean["b"].double().numpy() for mean in logs["east"].mean], axis=0)
    first, last = (np.linalg.norm(means[t - 1] / t - truth) for t in (1, 24))
    assert 0 < last < first / 12


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
