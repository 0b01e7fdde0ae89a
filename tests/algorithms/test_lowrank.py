"""Low rank: Eqs. 8 and 9 at their edges, factors against NumPy's SVD, subspaces that are learnt."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secure_fl.algorithms.exact import orthonormal, product
from secure_fl.algorithms.fedkd.lowrank import (
    Subspace,
    energy_rank,
    energy_threshold,
    factorise,
    right_singular,
    singular_values,
    useful_rank,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def with_spectrum(P: int, Q: int, spectrum: Any, seed: int = 0) -> Tensor:
    """A matrix with these singular values and random directions."""
    U, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(P, len(spectrum))))
    V, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(Q, len(spectrum))))
    return torch.from_numpy((U * np.asarray(spectrum)) @ V.T).float()


def coins(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- Eqs. 8 and 9 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("S", "T", "K"),
    [
        ([2, 1, 1], 0.6, 1),  # shares of the energy 6: 4/6, 5/6, 6/6
        ([2, 1, 1], 0.7, 2),
        ([2, 1, 1], 5 / 6, 2),
        ([2, 1, 1], 1.0, 3),
        ([2, 1, 0], 1.0, 2),
        ([1] * 10, 0.5, 5),  # flat: a share T needs a share T of the values
        ([1] * 10, 0.51, 6),
        ([1] * 10, 0.95, 10),
        ([0, 0, 0], 0.95, 1),  # nothing at all: never 0
        ([7], 1e-9, 1),
        ([1e-30, 1e-31], 0.9, 1),  # squares below float32
    ],
)
def test_energy_rank(S: list[float], T: float, K: int) -> None:
    assert energy_rank(torch.tensor(S, dtype=torch.float32), T) == K


def test_energy_that_is_not_shown_counts() -> None:
    S = torch.tensor([3.0, 2.0, 1.0])  # energies 9, 13, 14
    ranks = [energy_rank(S, 0.9, total) for total in (9.0, 10.0, 14.0, 15.0, 100.0)]
    assert ranks == [1, 1, 2, 3, 3] and energy_rank(torch.zeros(4), 0.9, 0.0) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.floats(0.01, 0.999))
def test_energy_rank_is_the_least_that_reaches_the_share(values: list[float], T: float) -> None:
    S = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    K = energy_rank(S, T)
    energy = np.square(S.numpy())
    assert energy[:K].sum() >= T * energy.sum() * (1 - 1e-9)
    assert K == 1 or energy[: K - 1].sum() < T * energy.sum()


def test_energy_threshold_rises_to_its_end() -> None:
    """Eq. 9, with the paper's 0.95 and 0.98."""
    found = [energy_threshold(0.95, 0.98, t) for t in (0.0, 1 / 3, 0.5, 1.0)]
    assert found == pytest.approx([0.95, 0.96, 0.965, 0.98])
    assert energy_threshold(1.0, 1.0, 0.7) == 1.0


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_useful_factors_are_smaller_than_the_matrix(P: int, Q: int) -> None:
    K = useful_rank(torch.Size((P, Q)))
    assert K == 0 or K * (P + Q) < P * Q
    assert (K + 1) * (P + Q) >= P * Q


@pytest.mark.parametrize("shape", [(), (7,), (1, 50), (50, 1), (3, 4, 5)])
def test_what_is_no_matrix_has_no_factors(shape: tuple[int, ...]) -> None:
    assert useful_rank(torch.Size(shape)) == 0


# --- factors against NumPy ------------------------------------------------------------------------

SPECTRA = {
    "falling": 0.8 ** np.arange(40),
    "slow": 1 / (1 + np.arange(40)),
    "low rank and noise": np.concatenate([np.full(5, 10.0), np.full(35, 0.3)]),
    "flat": np.ones(40),
}


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("P", "Q"), [(60, 40), (40, 60), (200, 50)])
def test_factors_are_as_good_as_numpys(spectrum: str, P: int, Q: int) -> None:
    G = with_spectrum(P, Q, SPECTRA[spectrum])
    S = np.linalg.svd(G.numpy(), compute_uv=False)
    for T in (0.5, 0.95, 0.98):
        found = factorise(G, T, useful_rank(G.shape), coins())
        K = len(found.S)
        wanted = int(np.argmax(np.cumsum(S**2) >= T * (1 - 1e-6) * (S**2).sum())) + 1
        assert min(wanted, useful_rank(G.shape)) <= K <= min(wanted + 1, useful_rank(G.shape))
        best = np.linalg.norm(S[K:])
        assert float((G - found.product()).norm()) <= 1.05 * best + 1e-4 * np.linalg.norm(S)
        assert found.U.shape == (P, K) and found.V.shape == (K, Q)
        torch.testing.assert_close(found.U.T @ found.U, torch.eye(K), atol=1e-4, rtol=0)
        torch.testing.assert_close(found.V @ found.V.T, torch.eye(K), atol=1e-4, rtol=0)
        assert (found.S[:-1] >= found.S[1:]).all()


def test_factors_are_cut_at_most_there_and_zeros_have_some() -> None:
    G = with_spectrum(30, 20, SPECTRA["flat"][:20])
    assert len(factorise(G, 0.98, 3, coins()).S) == 3
    assert len(factorise(G, 1.0, 1, coins()).S) == 1
    nothing = factorise(torch.zeros(30, 20), 0.95, 8, coins())
    assert len(nothing.S) == 1 and torch.equal(nothing.product(), torch.zeros(30, 20))
    line = torch.outer(torch.arange(1.0, 7.0), torch.ones(5))
    torch.testing.assert_close(factorise(line, 0.99, 2, coins()).product(), line)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (12, 12)])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_singular_values_are_numpys(shape: tuple[int, int], scale: float) -> None:
    G = drawn(*shape)
    expected = np.linalg.svd(G.double().numpy(), compute_uv=False)
    energies = np.square((singular_values(scale * G) / scale).numpy())
    np.testing.assert_allclose(energies, expected**2, rtol=1e-4, atol=1e-6 * expected[0] ** 2)


@pytest.mark.parametrize("odd", [0.0, float("nan"), float("inf")])
def test_nothing_and_what_is_not_finite_have_no_singular_values(odd: float) -> None:
    """It is the door that refuses the latter, with an explanation."""
    G = torch.zeros(6, 9)
    G[2, 3] = odd
    assert torch.equal(singular_values(G), torch.zeros(6))
    assert energy_rank(singular_values(G), 0.95) == 1


@pytest.mark.parametrize("shape", [(7, 40), (12, 12)])
def test_right_singular_vectors_are_numpys(shape: tuple[int, int]) -> None:
    B = drawn(*shape)
    V = right_singular(B)
    _, _, Vt = np.linalg.svd(B.double().numpy())
    assert V.shape == (shape[1], shape[0])
    aligned = np.abs(np.sum(Vt[: shape[0]].T * V.numpy(), axis=0))
    np.testing.assert_allclose(aligned, 1, atol=1e-6)  # equal up to signs, in one order
    assert not right_singular(torch.zeros(shape)).any()


def test_void_right_singular_vectors_are_zero_and_last() -> None:
    V = right_singular(drawn(6, 2) @ drawn(2, 30, seed=1))
    assert V[:, :2].norm(dim=0).tolist() == pytest.approx([1, 1]) and not V[:, 2:].any()


# --- widths, probes and what they learn -----------------------------------------------------------

SHAPE = torch.Size((60, 40))  # whose useful rank is 23


@pytest.mark.parametrize(
    ("most", "widths"),  # for these ranks of an aggregate
    [
        (None, {1.0: 5, 5.0: 9, 5.01: 10, 19.0: 23, 19.25: None, 40.0: None}),
        (1, {1.0: 1, 40.0: 1}),
        (8, {2.0: 6, 5.0: 8, 40.0: 8}),
        (99, {40.0: 23}),
    ],
)
def test_the_width_is_the_rank_and_some_more_up_to_a_cap(
    most: int | None, widths: dict[float, int | None]
) -> None:
    assert useful_rank(SHAPE) == 23
    assert {rank: Subspace(SHAPE, most).width(rank) for rank in widths} == widths


def warm(G: Tensor, width: int = 10, rounds: int = 3) -> Subspace:
    """A subspace that knows where G's energy is."""
    subspace = Subspace(G.shape)
    for seed in range(rounds):
        subspace.learn(orthonormal(G @ subspace.probe(width, coins(seed))).T @ G)
    return subspace


@pytest.mark.parametrize("width", [1, 2, 7, 10, 23])
@pytest.mark.parametrize("known", [False, True])
def test_a_probe_is_orthonormal_keeps_what_is_known_and_looks_further(
    known: bool, width: int
) -> None:
    G = with_spectrum(60, 40, SPECTRA["low rank and noise"])
    subspace = warm(G) if known else Subspace(SHAPE)
    Ω = subspace.probe(width, coins())
    assert Ω.shape == (40, width)
    torch.testing.assert_close(Ω.T @ Ω, torch.eye(width), atol=1e-5, rtol=0)
    held = subspace.known() - Ω @ (Ω.T @ subspace.known())  # what of the known directions it lacks
    whole = int((held.norm(dim=0) < 1e-4).sum())
    assert whole == (min(10, width - max(1, round(0.15 * width))) if known else 0)
    same, other = subspace.probe(width, coins()), subspace.probe(width, coins(1))
    assert torch.equal(same, Ω) and not torch.allclose(other, Ω, atol=1e-2)


def test_what_is_remembered_meets_the_best_error_and_forgetting_does_not() -> None:
    G, width = with_spectrum(60, 40, SPECTRA["falling"]), 10
    best = np.linalg.norm(0.8 ** np.arange(width, 40))

    def error(subspace: Subspace) -> float:
        U = orthonormal(G @ subspace.probe(width, coins(9)))
        return float((G - U @ (U.T @ G)).norm())

    assert error(warm(G)) <= 1.1 * best * 0.8 ** -max(1, round(0.15 * width))  # of the known ones
    assert error(Subspace(SHAPE)) > 1.2 * error(warm(G))


@pytest.mark.parametrize("before", [False, True])
def test_an_aggregate_of_zeros_teaches_nothing(before: bool) -> None:
    subspace = warm(with_spectrum(60, 40, SPECTRA["falling"])) if before else Subspace(SHAPE)
    V = subspace.known()
    subspace.learn(torch.zeros(10, 40))
    assert torch.equal(subspace.known(), V) and V.shape[1] == (10 if before else 0)
    assert subspace.probe(7, coins()).isfinite().all()


def test_directions_without_energy_are_not_remembered() -> None:
    subspace = warm(with_spectrum(60, 40, [3.0, 2.0]))
    assert subspace.known().shape[1] == 2
    Ω = subspace.probe(10, coins())
    torch.testing.assert_close(Ω.T @ Ω, torch.eye(10), atol=1e-5, rtol=0)


def test_no_more_is_remembered_than_factors_hold() -> None:
    subspace = Subspace(SHAPE)
    subspace.learn(drawn(38, 40))
    assert subspace.known().shape == (40, 23) and subspace.probe(23, coins()).shape == (40, 23)


@pytest.mark.parametrize("offset", range(0, 16, 3))
def test_its_state_is_all_there_is_wherever_it_lies_in_memory(offset: int) -> None:
    """Bit for bit, or who resumes would find another Ω: a file's tensors lie at any address."""
    subspace = warm(with_spectrum(60, 40, SPECTRA["low rank and noise"]))
    B = subspace.state_dict()["B"]
    place = torch.empty(B.numel() + 16)[offset : offset + B.numel()].view(B.shape)
    other = Subspace(SHAPE)
    other.load_state_dict({"B": place.copy_(B)})
    for width in (5, 8, 12):
        assert torch.equal(subspace.probe(width, coins()), other.probe(width, coins()))


# --- exact arithmetic ---------------------------------------------------------------------------


OTHER_MACHINE = {  # what a processor, a library or an operator may choose otherwise
    "OMP_NUM_THREADS": "2",
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F,AVX2,FMA3",
}
DIGESTS = """
import numpy as np, torch
from secure_fl.algorithms.exact import orthonormal, product
from secure_fl.algorithms.server_optimizers import ServerAdam
from secure_fl.algorithms.inclusivefl.mixing import momentum
from secure_fl.algorithms.updates import digest

rng = np.random.default_rng(0)
drawn = lambda *shape: torch.from_numpy(rng.integers(-999, 999, shape).astype(np.float32) * 0.37)
Y, B = drawn(384, 100) * 2.0 ** -torch.arange(100).remainder(9), drawn(100, 512)
U, g = orthonormal(Y), {f"l.{n}.w": drawn(1003) for n in range(5)}
server = ServerAdam(2e-3, 0.9, 0.99, 1e-3)
moves = [server.step({"w": drawn(10_003) * 1e-6}) for _ in range(4)]
m = momentum(g, range(5), {f"l.{n}.w": n for n in range(5)})
print(digest({"U": U, "mean": product(U, B), "m": m["w"], **moves[-1]}).hex())
print(digest({"G": (Y.double().T @ Y.double()), "mean": U @ B}).hex())
"""


def test_all_machines_find_the_same_bits_and_common_arithmetic_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Digests of exact and of common arithmetic: here, and in a process that computes otherwise."""
    exec(DIGESTS, {})  # noqa: S102 - our own
    exact, common = capsys.readouterr().out.split()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DIGESTS],
        env=os.environ | OTHER_MACHINE,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[0] == exact
    if done.stdout.split()[1] == common:
        pytest.skip("this machine's libraries round alike however they are asked to compute")


@pytest.mark.parametrize("shape", [(5, 1, 7), (40, 30, 20), (3, 5000, 4)])
def test_a_product_is_as_good_as_float32s(shape: tuple[int, int, int]) -> None:
    P, K, Q = shape
    A, B = drawn(P, K), drawn(K, Q, seed=1)
    true = A.double() @ B.double()
    bound = 2.0**-18 * float(A.abs().max() * B.abs().max()) * K**0.5
    assert float((product(A, B) - true).abs().max()) < bound
    assert product(A, B).dtype == A.dtype


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_scales_do_not_matter(scale: float) -> None:
    A, B = drawn(9, 6), drawn(6, 5, seed=1)
    torch.testing.assert_close(product(scale * A, B), scale * product(A, B), rtol=1e-4, atol=0)
    torch.testing.assert_close(orthonormal(scale * A), orthonormal(A) * bool(scale))


def test_an_orthonormal_basis_of_the_same_range() -> None:
    Y = drawn(50, 8) * torch.logspace(0, -3, 8)
    U = orthonormal(Y)
    torch.testing.assert_close(U.T @ U, torch.eye(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(U @ (U.T @ Y), Y, atol=1e-5, rtol=0)


def test_void_directions_are_left_out() -> None:
    Y = drawn(30, 3) @ drawn(3, 6, seed=1)  # six columns of rank three
    U = orthonormal(Y)
    values = np.linalg.svd(U.numpy(), compute_uv=False)
    np.testing.assert_allclose(values, [1, 1, 1, 0, 0, 0], atol=1e-3)
    torch.testing.assert_close(U @ (U.T @ Y), Y, atol=1e-4, rtol=1e-4)
    assert torch.equal(orthonormal(torch.zeros(9, 4)), torch.zeros(9, 4))
    assert orthonormal(torch.zeros(9, 0)).shape == (9, 0)


@pytest.mark.parametrize("width", [16, 23, 100])
def test_what_is_projected_has_rows_of_like_energy(width: int) -> None:
    """One scale serves them all. Without the turns the last rows would hold next to nothing."""
    rng = torch.Generator().manual_seed(0)
    turn, _ = torch.linalg.qr(torch.randn(width, width, generator=rng))
    Y = drawn(200, width) * torch.logspace(0, -2, width) @ turn
    rows = (orthonormal(Y).T @ Y).norm(dim=1)
    R = np.linalg.qr(Y.numpy(), mode="r")
    bare = np.linalg.norm(R, axis=1)
    assert rows.max() < 6 * rows.min() and bare.max() > 12 * bare.min()
