"""Shared noise: integers within their bound, shares that add up, no overflow, ε of the theorem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from scipy.special import ive

from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon, equivalent_std
from secure_fl.crypto.privacy.noise import LARGEST_VARIANCE
from secure_fl.crypto.privacy.shared_noise import (
    FINEST,
    MORE_NOISE,
    PER_VALUE,
    SharedNoise,
    on_grid,
    variance_for,
)
from secure_fl.crypto.privacy.shared_planning import SharedPlan
from secure_fl.crypto.sealing.packing import pack, unpack
from secure_fl.crypto.sealing.transcript import Scales
from secure_fl.errors import BudgetError, CryptoError
from secure_fl.protocol.ports import Group, Rule
from secure_fl.settings import DPSettings
from tests.support.raising import raises

DELTA = 1e-5
NOISE = SharedNoise(multiplier=2.0, dimension=193, units=960, parties=4, dropouts=0, colluders=1)


def squares(row: Sequence[int]) -> int:
    """Square a row of integers exactly."""
    return sum(int(k) ** 2 for k in row)


# --- integers ------------------------------------------------------------------------------------

SIZES = st.floats(1e-300, 1e150) | st.sampled_from([5e-324, 1e-310, 0.1, 0.5, 1.0, 3e38])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    columns=st.sampled_from([1, 2, 4, 16, 193, 1024]),
    size=SIZES,
    bound=st.floats(1e-30, 1e30),
    single=st.booleans(),
)
def test_no_row_is_longer_than_the_grid(
    seed: int, rows: int, columns: int, size: float, bound: float, single: bool
) -> None:
    """Also rows of one value, of equal values, and floats that were rounded to 32 bits."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) * size
    x[0] = size * rng.choice([-1.0, 0.0, 1.0], columns)
    if single:
        x = np.clip(x, -3e38, 3e38).astype(np.float32).astype(np.float64)
    steps = on_grid(x, bound, FINEST)
    assert steps.dtype == np.int64 and max(map(squares, steps)) <= FINEST**2
    exact = x * (FINEST / np.maximum(np.linalg.norm(x, axis=1), bound))[:, None]
    assert (np.abs(steps) <= np.abs(exact) * (1 + 1e-12)).all()  # towards zero
    assert (np.abs(exact - steps) < 1 + 1e-9 * FINEST).all()
    assert (steps * x >= 0).all()


@pytest.mark.parametrize("columns", [1, 4, 16, 64, 1024])
@pytest.mark.parametrize("bound", [0.1, 0.3, 0.5, 1.0, 7.7])
def test_rows_at_their_bound_do_not_exceed_it_by_rounding(columns: int, bound: float) -> None:
    """Equal values whose integers have exactly the length of the grid, and their neighbours."""
    each = bound / math.sqrt(columns)
    x = np.full((41, columns), each) * (1 + np.arange(-20, 21) * 2.0**-52)[:, None]
    steps = on_grid(np.concatenate([x, 1e30 * x]), bound, FINEST)
    assert max(map(squares, steps)) <= FINEST**2
    assert steps.min() >= FINEST / math.sqrt(columns) - 1  # and loses one step at most


def test_a_row_that_floats_make_too_long_is_shortened() -> None:
    """A norm that is rounded down makes a row too long. Other rows are not touched."""
    short = np.array([[0.3, 0.4, 0.0], [-0.2, 0.1, 0.45]])
    before = on_grid(short, 1.0, FINEST)
    many = np.full((1, 4096), 1.0)
    with pytest.MonkeyPatch.context() as patch:
        honest = np.linalg.norm
        patch.setattr(np.linalg, "norm", lambda *a, **k: honest(*a, **k) * (1 - 2.0**-48))
        (steps,) = on_grid(many, 1.0, FINEST)
        assert squares(steps) <= FINEST**2 and steps.min() >= FINEST // 64 - 1
        assert np.array_equal(on_grid(short, 1.0, FINEST), before)


def test_integers_are_cut_towards_zero_and_not_to_the_nearest() -> None:
    x = np.array([[0.9999, -0.9999, 0.0001, -0.0001]]) / 10
    assert on_grid(x * 10 / FINEST, 1.0, FINEST).tolist() == [[0, 0, 0, 0]]
    steps = on_grid(np.array([[2.9999, -2.9999]]) / FINEST, 1.0, FINEST)
    assert steps.tolist() == [[2, -2]]


def test_nothing_to_clip_and_nothing_at_all() -> None:
    assert on_grid(np.zeros((2, 3)), 0.5, FINEST).tolist() == [[0] * 3] * 2
    assert on_grid(np.zeros((0, 3)), 0.5, FINEST).sum(axis=0).tolist() == [0] * 3
    assert on_grid(np.full((1, 3), 5e-324), 0.5, FINEST).tolist() == [[0] * 3]


@pytest.mark.parametrize(
    ("row", "bound"),
    [([math.nan, 0.0], 0.5), ([math.inf, 0.0], 0.5), ([1e200, 1e200], 0.5), ([0.0, 0.0], 1e-320)],
)
def test_gradients_that_no_bound_covers_are_zero(row: list[float], bound: float) -> None:
    """A norm that overflows, and a bound so small that its inverse does, too.

    An error would tell all hospitals about the record.
    """
    found = on_grid(np.array([[0.1, 0.1], row]), bound, FINEST)
    assert found[0].any() and not found[1].any()


@pytest.mark.parametrize("dimension", [1, 193, 4096, 4097, 1_000_000])
def test_truncation_costs_nothing(dimension: int) -> None:
    """A step of the grid is small against a value of a gradient at its bound."""
    grid = replace(NOISE, dimension=dimension).grid
    assert grid >= FINEST and grid >= PER_VALUE * math.sqrt(dimension)
    assert grid & (grid - 1) == 0


# --- shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_shares_add_up_to_the_noise_of_the_plan(dropped: int) -> None:
    """Colluders subtract their shares, and the shares of dropouts are missing."""
    size = 40_000
    noise = SharedNoise(2.0, size, 1, parties=6, dropouts=2, colluders=1)
    shares = [noise.noised(np.zeros(size, np.int64), 2.0) for _ in range(6 - dropped)]
    unknown = np.sum(shares[1:], axis=0)
    promised = (noise.multiplier * noise.grid) ** 2
    expected = promised * (5 - dropped) / 3
    assert unknown.var() == pytest.approx(expected, rel=6 * math.sqrt(2 / size))
    assert unknown.var() >= promised * (1 - 6 * math.sqrt(2 / size))
    assert abs(unknown.mean()) < 6 * math.sqrt(expected / size)
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(shares, 2))


def test_a_sum_is_cut_before_its_noise() -> None:
    total = np.array([10**12, -(10**12), 5], np.int64)
    small = replace(NOISE, multiplier=1e-3, units=2, dimension=3)
    out = small.noised(total, 1e-3)
    assert np.abs(out - np.array([small.limit, -small.limit, 5])).max() < 50
    assert small.limit == 2 * small.grid


@given(std=st.floats(1e-3, 1e5))
@settings(max_examples=60, deadline=None)
def test_a_variance_is_equivalent_to_its_gaussian_and_hardly_more(std: float) -> None:
    variance = variance_for(std)
    assert equivalent_std(variance) >= std
    assert variance <= (std**2 + 1 / 3) * (1 + 1e-9) + 0.5 / (1 + std**2)


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 2.2, 2.8])
def test_own_noise_is_what_this_hospital_needs_and_never_less_than_a_share(
    multiplier: float,
) -> None:
    own, share = NOISE.own(multiplier), NOISE.share_variance
    assert own >= share * (1 - 1e-12)
    assert (own > share * 1.01) == (multiplier > 2.0)
    total = own + (NOISE.honest - 1) * share
    assert equivalent_std(total) >= max(multiplier, 2.0) * NOISE.grid * (1 - 1e-12)


def test_too_much_own_noise_is_refused_and_the_most_fits() -> None:
    most = math.sqrt((NOISE.honest - 1 + MORE_NOISE) / NOISE.honest)
    assert NOISE.own(2.0 * most * 0.999) <= MORE_NOISE * NOISE.share_variance
    with raises(BudgetError, reason="needs-more-noise"):
        NOISE.own(2.0 * most * 1.001)
    with raises(BudgetError, reason="needs-more-noise"):
        NOISE.noised(np.zeros(193, np.int64), 100.0)


@pytest.mark.parametrize("multiplier", [2.0, 2.4])
def test_other_views_have_the_shares_that_they_do_not_know(multiplier: float) -> None:
    """More own noise is added, and not multiplied, by the shares of others."""
    noise = replace(NOISE, parties=7, dropouts=1, colluders=2)
    own, share = noise.own(multiplier), noise.share_variance
    for colluders in range(6):
        expected = math.sqrt(own + (5 - colluders) * share) / noise.grid
        assert noise.towards(multiplier, colluders) == pytest.approx(expected, rel=1e-5)
    assert noise.towards(multiplier, 6) == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"colluders": 4}, "no-noise-source"),
        ({"colluders": 2, "dropouts": 2}, "no-noise-source"),
        ({"colluders": -1}, "no-noise-source"),
        ({"dropouts": -1}, "no-noise-source"),
        ({"multiplier": 0.0}, "no-guarantee"),
        ({"multiplier": math.nan}, "no-guarantee"),
        ({"multiplier": math.inf}, "no-guarantee"),
        ({"dimension": 0}, "no-guarantee"),
        ({"units": 0}, "no-guarantee"),
        ({"multiplier": 1e4}, "variance-too-large"),
        ({"dimension": 10**9, "multiplier": 2.0}, "variance-too-large"),
    ],
)
def test_sizes_without_a_guarantee_are_refused(changes: dict[str, Any], reason: str) -> None:
    with raises(BudgetError, reason=reason):
        replace(NOISE, **changes)


def test_dropouts_beyond_the_plan_and_values_without_noise_are_refused() -> None:
    noise = replace(NOISE, parties=5, dropouts=1)
    noise.check_survivors(4)
    with raises(BudgetError, "sized for 1 dropouts", reason="too-many-dropouts"):
        noise.check_survivors(3)
    with raises(CryptoError, "of integers"):
        noise.share(np.zeros(193))  # type: ignore[arg-type]


# --- packing -------------------------------------------------------------------------------------

EXTREMES = [
    NOISE,
    replace(NOISE, parties=2, units=1),
    replace(NOISE, parties=64, units=200_000, dimension=1537),
    replace(NOISE, multiplier=50.0, parties=20, dropouts=5, units=10_000),
    replace(NOISE, dimension=100_000, units=64, multiplier=20.0),
    replace(NOISE, multiplier=math.sqrt(LARGEST_VARIANCE / 5) / 2 / FINEST, parties=3),
]


@pytest.mark.parametrize("noise", EXTREMES)
@pytest.mark.parametrize("bits", [8, 16])
def test_sums_of_the_largest_integers_do_not_overflow(noise: SharedNoise, bits: Any) -> None:
    """All parties at ±reach, in the layout of a sealed sum; one more is refused."""
    names = tuple(f"h{i}" for i in range(noise.parties))
    reach, rule = int(noise.reach), Rule(bound=noise.reach, noise=noise)
    values = np.array([reach, -reach, 0, 1, -1, reach] * 40, np.int64)
    codec = Scales(bits).layout(Group(names, {"gradient": values}), rule, noise.parties).codec
    total = np.sum([pack(codec, values) for _ in names], axis=0) % np.uint64(codec.modulus)
    assert np.array_equal(unpack(codec, total, noise.parties, values.size), values * noise.parties)
    with pytest.raises(CryptoError, match="exceeds its field"):
        pack(codec, np.array([2 * codec.offset], np.int64))


@pytest.mark.parametrize("noise", EXTREMES)
def test_noise_beyond_the_reach_is_never_drawn(noise: SharedNoise) -> None:
    """At the most own noise, 12 standard deviations are left above the largest sum."""
    most = MORE_NOISE * noise.share_variance
    assert noise.reach >= noise.limit + 12 * math.sqrt(most)
    largest = np.full(noise.dimension, noise.limit, np.int64)
    assert np.abs(noise.noised(largest, noise.multiplier)).max() < noise.reach


# --- ε against dp-accounting and Opacus ----------------------------------------------------------


def skellam(variance: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    k = np.arange(-int(10 * math.sqrt(variance)) - 30, int(10 * math.sqrt(variance)) + 31)
    return k, ive(np.abs(k), variance)


def exact(
    noise: SharedNoise, shift: Sequence[int], rate: float, steps: int, *, below: bool = False
) -> float:
    """ε of one unit's integers under the shares of the honest hospitals, from probabilities."""
    k, p = skellam(noise.share_variance * noise.honest)
    total = None
    for part in shift:
        moved = np.interp(k - part, k, p, left=0.0, right=0.0)
        mixed = rate * moved + (1 - rate) * p
        plain, other = (
            {int(a): math.log(b) for a, b in zip(k, q, strict=True) if b > 1e-280}
            for q in (p, mixed)
        )
        one = pld.from_two_probability_mass_functions(
            plain, other, pessimistic_estimate=not below, value_discretization_interval=2e-5
        ).self_compose(steps)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize("multiplier", [10.777, 3.0])
@pytest.mark.parametrize("shift", [(256,), (181, -181)])
def test_claimed_epsilon_is_exact_for_full_batches(multiplier: float, shift: Any) -> None:
    """One value, and a unit that is spread over several."""
    noise = replace(NOISE, multiplier=multiplier, parties=5, dropouts=1)
    assert noise.grid == 256
    steps = round(multiplier**2 / 2)
    claimed = epsilon([DpSgdSteps(multiplier, 1.0, steps)], DELTA, accountant="prv")
    assert exact(noise, shift, 1.0, steps, below=True) <= claimed
    assert claimed <= 1.03 * exact(noise, shift, 1.0, steps)


def test_claimed_epsilon_of_samples_is_never_below_and_three_percent_above() -> None:
    σ, rate, steps = 1.5, 0.1, 60
    noise = replace(NOISE, multiplier=σ)
    claimed = epsilon([DpSgdSteps(σ, rate, steps)], DELTA, accountant="prv")
    for way in (1, -1):
        assert exact(noise, (way * noise.grid,), rate, steps, below=True) <= claimed
    assert claimed <= 1.03 * exact(noise, (noise.grid,), rate, steps)
    opacus = PRVAccountant()
    opacus.history = [(σ, rate, steps)]
    assert claimed == pytest.approx(opacus.get_epsilon(DELTA), rel=0.03)


def test_colluders_cost_what_the_result_reports() -> None:
    """Without another hospital's share, ε is that of the multiplier of this view."""
    noise = replace(NOISE, multiplier=4.0)
    view = noise.towards(4.0, 2)
    fewer = replace(noise, multiplier=view, colluders=2)
    assert fewer.share_variance == pytest.approx(noise.share_variance, rel=1e-6)
    reported = epsilon([DpSgdSteps(view, 1.0, 8)], DELTA)
    assert (
        exact(fewer, (noise.grid,), 1.0, 8, below=True)
        <= reported
        <= 1.03 * exact(fewer, (noise.grid,), 1.0, 8)
    )


@pytest.mark.parametrize(("probe", "rate"), [(True, 1.0), (False, 0.1)])
def test_noise_that_leaves_nothing_to_learn_is_described_with_its_numbers(
    probe: bool, rate: float
) -> None:
    dp = DPSettings(epsilon=3.0, noise="shared", noise_multiplier=10.0)
    few = SharedPlan(dp, 4, 0, 80, rate, 60, probe=probe)
    text = few.warning()
    assert text is not None and "80 records of 4 hospitals" in text
    assert replace(few, units=8_000_000).warning() is None
