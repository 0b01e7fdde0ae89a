"""The one-run bound on μ: valid on mechanisms of a known μ, and tighter than that on (ε, δ)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from secure_fl.audits.audit_statistics import (
    gdp_epsilon,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_mu,
    rejects,
)
from secure_fl.audits.selftest.one_run import guess_coins

CANARIES, RUNS, DELTA = 500, 400, 1e-5
mu_of = cache(one_run_mu)


def apart(coins: np.ndarray, mu: float, rng: np.random.Generator) -> int:
    """Each canary moves a number of its own by μ, under noise of deviation 1: μ-Gaussian DP."""
    scores = mu * coins + rng.normal(size=len(coins))
    return guess_coins(scores).right(coins.astype(bool))


def together(coins: np.ndarray, mu: float, rng: np.random.Generator) -> int:
    """All canaries move one number: as private, and then all guesses are right, or all wrong."""
    total = mu / 2 * float((2 * coins - 1).sum()) + rng.normal()
    guess = np.ones(len(coins), bool) if total > 0 else np.zeros(len(coins), bool)
    return int((guess == coins.astype(bool)).sum())


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("mechanism", "share"), [(apart, 0.4), (together, 1.0)])
def test_the_truth_is_rejected_no_more_often_than_the_confidence_allows(
    mu: float, mechanism: Callable[[np.ndarray, float, np.random.Generator], int], share: float
) -> None:
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(RUNS):
        coins = rng.integers(2, size=CANARIES)
        right = mechanism(coins, mu, rng)
        wrong += mu_of(CANARIES, int(share * CANARIES), right) > mu
    # With 400 runs a rate of 5 % gives 33 or more in one of a hundred trials.
    assert wrong <= 32


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_it_is_tighter_than_the_bound_on_epsilon(mu: float) -> None:
    rng = np.random.default_rng(8)
    true, gaussian, plain = gdp_epsilon(mu, DELTA), [], []
    for _ in range(50):
        coins = rng.integers(2, size=CANARIES)
        counts = (CANARIES, int(0.4 * CANARIES), apart(coins, mu, rng))
        gaussian.append(gdp_epsilon(mu_of(*counts), DELTA))
        plain.append(one_run_epsilon(*counts, DELTA))
    assert np.mean(plain) < 0.65 * np.mean(gaussian)  # 0.83, 2.1, 5.2 in place of 0.47, 1.2, 2.9
    assert 0.4 * true < np.mean(gaussian) < true  # 2.0, 4.4, 10.0
    assert all(g >= p for g, p in zip(gaussian, plain, strict=True))


def test_more_right_guesses_reject_more() -> None:
    found = [one_run_mu(200, 100, right) for right in range(0, 101, 5)]
    assert found == sorted(found) and found[0] == 0.0 < found[-1]
    assert one_run_mu(200, 100, 90, 0.99) < one_run_mu(200, 100, 90, 0.95)
    edge = one_run_mu(200, 100, 90)
    assert rejects(200, 100, 90, edge - 1e-6, 0.05) and not rejects(200, 100, 90, edge + 1e-6, 0.05)


def test_what_is_known_exactly() -> None:
    """One canary and one guess: at μ it is right with chance Φ(μ/2), which never is below 5 %."""
    assert one_run_mu(1, 1, 1) == 0.0
    assert one_run_gaussian_epsilon(100, 50, 25, DELTA) == 0.0
    for wrong in ((10, 11, 5), (10, 5, 6), (10, 0, 0)):
        with pytest.raises(ValueError, match="guesses"):
            one_run_mu(*wrong)
