"""Exact arithmetic: right, and the same bits whatever threads, processors and libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from secure_fl.algorithms.exact import orthonormal, product

MACHINES = (  # what a processor, a library or an operator may choose otherwise
    {"OMP_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "2"},
    {"MKL_CBWR": "COMPATIBLE"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX512F,AVX2,FMA3"},
)
DIGESTS = """
import numpy as np, torch
from secure_fl.algorithms.exact import orthonormal, product
from secure_fl.algorithms.fedadam import ServerAdam
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


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


@lru_cache
def told(machine: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """The digests of exact and of common arithmetic, in a process that computes this way."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DIGESTS],
        env={**os.environ, **dict(machine)},
        capture_output=True,
        text=True,
        check=True,
    )
    exact, common = done.stdout.split()
    return exact, common


def test_all_machines_find_the_same_bits_and_common_arithmetic_does_not() -> None:
    found = [told(tuple(machine.items())) for machine in MACHINES]
    assert len({exact for exact, _ in found}) == 1
    if len({common for _, common in found}) == 1:
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
