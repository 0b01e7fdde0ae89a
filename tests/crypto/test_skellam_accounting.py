"""ε of Skellam releases, against divergences computed from the distributions themselves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ive
from scipy.stats import norm
from scipy.stats import skellam as skellam_law

from secure_fl.crypto.privacy.accounting import (
    DpSgdSteps,
    Event,
    GaussianRelease,
    SkellamRelease,
    counts_epsilon,
    decode_event,
    epsilon,
    equivalent_std,
    gaussian_epsilon,
)

DELTA = 1e-5


def exact(releases: list[tuple[float, int, int]], delta: float, *, below: bool = False) -> float:
    """ε of (μ, shift, how many), by dp-accounting, rounded upwards or downwards."""
    total = None
    for mu, shift, many in releases:
        k = np.arange(-int(14 * math.sqrt(mu)) - 30, int(14 * math.sqrt(mu)) + 31)
        p = ive(np.abs(k), mu)
        at = {int(a): math.log(b) for a, b in zip(k, p, strict=True) if b > 0}
        one = pld.from_two_probability_mass_functions(
            {a + shift: b for a, b in at.items()},
            at,
            pessimistic_estimate=not below,
            value_discretization_interval=1e-4 if many < 100 else 1e-5,
        ).self_compose(many)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


def hockey_stick(mu: float, shift: tuple[int, ...], eps: float) -> float:
    """δ(ε) of an integer vector: the sum over all points, without any theory of losses."""
    k = np.arange(-int(9 * math.sqrt(mu)) - 12, int(9 * math.sqrt(mu)) + 13)
    one, other = np.ones(1), np.ones(1)
    for v in shift:
        one = np.multiply.outer(one, skellam_law.pmf(k - v, mu / 2, mu / 2)).ravel()
        other = np.multiply.outer(other, skellam_law.pmf(k, mu / 2, mu / 2)).ravel()
    return float(np.maximum(one - math.exp(eps) * other, 0).sum())


# --- the theorem ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.02, 0.4, 1.0, 7.0, 60.0, 900.0, 1e5])
def test_steps_of_the_normal_score_fall_from_the_middle(mu: float) -> None:
    """The lemma: Φ⁻¹(P(X >= k)) falls by 1/σ at k = 0, and by less elsewhere."""
    k = np.arange(int(25 * math.sqrt(mu)) + 80)
    tail = np.cumsum(ive(k, mu)[::-1])[::-1]  # P(X >= k), small terms first
    score = norm.isf(tail[tail > 1e-100])
    steps = np.diff(score)
    assert steps.size > 5 and steps[0] == pytest.approx(1 / equivalent_std(mu), rel=1e-9)
    assert np.all(np.diff(steps) < 1e-12) and np.all(steps[1:] < steps[0] * (1 + 1e-12))


@pytest.mark.parametrize("mu", [10.0, 1e3, 1e6, 1e12])
def test_a_third_of_a_squared_grid_step_is_lost(mu: float) -> None:
    assert equivalent_std(mu) ** 2 == pytest.approx(mu - 1 / 3, abs=0.2 / mu + 1e-10 * mu)
    assert equivalent_std(mu) < math.sqrt(mu)


@pytest.mark.parametrize("mu", [1e-14, 1e-9, 1e-6, 2e-6, 1e-3])
def test_little_noise_protects_little(mu: float) -> None:
    assert 0 < equivalent_std(mu) < equivalent_std(1.01 * mu) < 1
    assert epsilon([SkellamRelease(mu, 1, 1)], DELTA) > 6
    assert epsilon([SkellamRelease(mu, 9, 9)], DELTA) > 100


SHIFTS = [(1,), (4,), (1, 1), (2, 1), (3, -2), (5, 1), (1, 1, 1), (2, 1, -1), (3, 1, 2)]


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("mu", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_no_vector_has_a_larger_divergence(mu: float, shift: tuple[int, ...], delta: float) -> None:
    length = math.hypot(*shift)
    release = SkellamRelease(mu, float(np.abs(shift).sum()), length)
    bound = epsilon([release], delta)
    assert hockey_stick(mu, shift, bound) <= delta
    assert hockey_stick(mu, shift, gaussian_epsilon(release.noise_multiplier, delta)) <= delta
    if release.unit_cells:
        assert hockey_stick(mu, shift, 0.98 * bound - 1e-6) > delta


def test_every_test_of_two_values_is_weaker_than_the_gaussian_s() -> None:
    """Power against size, at all thresholds and shifts."""
    for mu, shift in itertools.product((0.2, 3.0, 50.0), (1, 2, 7)):
        k = np.arange(-int(7 * math.sqrt(mu)) - 9, int(16 * math.sqrt(mu)) + 40)
        tail = np.cumsum(ive(np.abs(k), mu)[::-1])[::-1]  # P(X >= k)
        size, power = tail[shift:], tail[:-shift]
        allowed = norm.sf(norm.isf(size) - shift / equivalent_std(mu))
        some = (size > 1e-40) & (size < 0.9999)
        assert np.all(power[some] <= allowed[some] * (1 + 1e-9)) and some.sum() > 5


# --- composition ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "cells", "delta"),
    [(40.0, 1, 1e-6), (40.0, 2, 1e-6), (5.0, 20, 1e-6), (400.0, 20, 1e-6), (1.0, 3, 1e-5),
     (3e3, 200, 1e-6), (0.1, 4, 1e-5), (2e4, 1, 1e-7)],
)  # fmt: skip
def test_counts_are_exact(mu: float, cells: int, delta: float) -> None:
    ours = epsilon([SkellamRelease(mu, 1, 1, cells)], delta)
    assert exact([(mu, 1, cells)], delta, below=True) <= ours
    assert ours <= 1.005 * exact([(mu, 1, cells)], delta)
    assert ours <= gaussian_epsilon(equivalent_std(mu) / math.sqrt(cells), delta) * (1 + 1e-9)
    if cells < 4:
        once = epsilon([SkellamRelease(mu, cells, math.sqrt(cells))], delta)
        assert once == pytest.approx(ours, rel=1e-6)


def test_counts_with_hardly_any_noise_have_no_bound() -> None:
    assert counts_epsilon({1e-6: 1}, DELTA) < math.inf
    assert counts_epsilon({0.9e-6: 1}, DELTA) == counts_epsilon({}, DELTA) == math.inf


def test_counts_of_different_noise_compose() -> None:
    events = [SkellamRelease(30.0, 1, 1, 4), SkellamRelease(90.0, 2, math.sqrt(2), 5)]
    both = [(30.0, 1, 4), (90.0, 1, 10)]
    assert exact(both, DELTA, below=True) <= epsilon(events, DELTA) <= 1.005 * exact(both, DELTA)
    assert counts_epsilon({30.0: 4, 90.0: 10}, DELTA) == epsilon(events, DELTA)


@pytest.mark.parametrize(
    ("mu", "shift", "count"),
    [(1e4, 256, 1), (2e4, 256, 1), ((4.65 * 256) ** 2, 256, 60), (1e5, 300, 3)],
)
def test_one_coordinate_is_within_three_percent(mu: float, shift: int, count: int) -> None:
    ours = epsilon([SkellamRelease(mu, shift, shift, count)], DELTA)
    lowest = exact([(mu, shift, count)], DELTA, below=True)
    assert lowest <= ours <= 1.03 * exact([(mu, shift, count)], DELTA)


@pytest.mark.parametrize("dimension", [257, 13_058])
def test_gradients_cost_what_a_gaussian_costs(dimension: int) -> None:
    s, σ = 256.0, 4.65
    release = SkellamRelease((σ * s) ** 2, math.sqrt(dimension) * s, s, 60)
    gaussian = epsilon([GaussianRelease(σ, 60)], DELTA)
    assert gaussian == pytest.approx(8.0, abs=0.01)
    assert gaussian < epsilon([release], DELTA) < gaussian * (1 + 1e-6)
    assert epsilon([release], DELTA, accountant="rdp") > 1.05 * gaussian


@pytest.mark.parametrize("make", [lambda n: SkellamRelease(40.0, 1, 1, n),
                                  lambda n: SkellamRelease(900.0, 9, 5, n)])  # fmt: skip
def test_more_releases_cost_more(make: object) -> None:
    spent = [epsilon([make(n)], DELTA) for n in (1, 2, 3, 5, 20, 100, 3000)]  # type: ignore[operator]
    assert spent == sorted(set(spent))


def test_skellam_composes_with_other_events() -> None:
    """Skellam, Gaussian and sampled steps in one account: as with the equivalent Gaussian."""
    skellam = SkellamRelease(2e4, 300.0, 60.0, 3)
    equal = GaussianRelease(skellam.noise_multiplier, 3)
    others: list[Event] = [GaussianRelease(5.0), DpSgdSteps(1.2, 0.02, 100)]
    for some in (others[:1], others):
        both = epsilon([*some, skellam], DELTA)
        assert both == pytest.approx(epsilon([*some, equal], DELTA), rel=1e-9)
        assert max(epsilon(some, DELTA), epsilon([skellam], DELTA)) < both
        assert both <= epsilon([*some, skellam], DELTA, accountant="rdp")
    counts = SkellamRelease(40.0, 1, 1, 2)
    assert epsilon([counts, *others], DELTA) > epsilon([counts], DELTA)


def test_events_of_older_ledgers_are_read() -> None:
    event = decode_event('{"count":2,"kind":"skellam","l1":2.0,"l2":1.4142135623730951,"mu":45.5}')
    assert event == SkellamRelease(45.5, 2.0, math.sqrt(2), 2)
    assert epsilon([event], DELTA) == epsilon([SkellamRelease(45.5, 1, 1, 4)], DELTA)


@pytest.mark.parametrize(("noise", "delta"), [(0.3, 1e-5), (1.0, 1e-9), (40.0, 1e-6), (7e4, 1e-6)])
def test_a_gaussian_release_is_exact(noise: float, delta: float) -> None:
    eps, m = gaussian_epsilon(noise, delta), 1 / noise
    found = norm.cdf(m / 2 - eps / m) - math.exp(eps) * norm.cdf(-m / 2 - eps / m)
    assert found <= delta * (1 + 1e-6)
    if eps > 1e-9:
        less = 0.9999 * eps
        assert norm.cdf(m / 2 - less / m) - math.exp(less) * norm.cdf(-m / 2 - less / m) > delta
