"""Skellam noise: its distribution, its shares, its sensitivity, its ε."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy import stats
from scipy.special import gammaln

from secure_fl.crypto.privacy.accounting import (
    Accountant,
    DpSgdSteps,
    Event,
    GaussianRelease,
    SkellamRelease,
    calibrate,
    decode_event,
    encode_event,
    epsilon,
)
from secure_fl.crypto.privacy.noise import (
    SkellamNoise,
    Uniforms,
    _stirling_error,
    calibrated_gaussian,
    calibrated_skellam,
    clip_norm,
    counts_release,
    poisson,
    prediction_sensitivity,
    secure_uniforms,
    share_variance,
    skellam,
)
from secure_fl.crypto.privacy.opacus_accountants import orders, prv_epsilon, rdp_epsilon
from secure_fl.errors import BudgetError, CryptoError
from tests.support.raising import raises

DELTA = 1e-5


def seeded(seed: int) -> Uniforms:
    generator = np.random.default_rng(seed)
    return lambda n: np.clip(generator.random(n), 1e-300, None)


def make(**changes: object) -> SkellamNoise:
    base = SkellamNoise(
        mu=400.0, scale=64.0, clip=1.0, dimension=100, parties=5, dropouts=1, colluders=1
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def chi_square(sample: np.ndarray, law: stats.rv_discrete) -> float:
    """Give p of the sample under the law, over bins that expect 20 or more."""
    low, high = int(law.ppf(1e-4)), int(law.ppf(1 - 1e-4))
    width = max(1, (high - low) // 60)
    edges = np.arange(low, high + width, width)
    expected = np.diff(law.cdf(edges))
    expected = np.concatenate(([law.cdf(edges[0])], expected, [law.sf(edges[-1])])) * sample.size
    which = np.searchsorted(edges, sample, side="left")
    seen = np.bincount(which, minlength=expected.size).astype(float)
    few = expected < 20
    seen = np.append(seen[~few], seen[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    keep = expected > 0
    return float(stats.chisquare(seen[keep], expected[keep] * seen.sum() / expected[keep].sum())[1])


@pytest.mark.parametrize("mean", [0.3, 5.0, 9.99, 10.0, 42.5, 1e3, 1e6])
def test_poisson_against_theory(mean: float) -> None:
    sample = poisson(mean, 100_000, seeded(1))
    assert chi_square(sample, stats.poisson(mean)) > 1e-4


@pytest.mark.parametrize("variance", [0.5, 8.0, 50.0, 4e4])
def test_skellam_against_theory(variance: float) -> None:
    sample = skellam(variance, 100_000, seeded(2))
    assert abs(sample.mean()) < 5 * math.sqrt(variance / sample.size)
    assert sample.var() == pytest.approx(variance, rel=0.03)
    assert chi_square(sample, stats.skellam(variance / 2, variance / 2)) > 1e-4


@pytest.mark.parametrize("variance", [1e9, 1e12])
def test_large_variances_keep_their_shape(variance: float) -> None:
    sample = skellam(variance, 100_000, seeded(3)) / math.sqrt(variance)
    assert stats.kstest(sample, "norm").pvalue > 1e-4


def test_the_correction_that_decides_about_candidates_is_exact() -> None:
    k = np.arange(1, 200)
    exact = gammaln(k + 1) - (k + 0.5) * np.log(k) + k - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(_stirling_error(k), exact, rtol=0, atol=1e-11)


def test_secure_uniforms_are_uniform_and_fresh() -> None:
    one, two = secure_uniforms()(50_000), secure_uniforms()(50_000)
    assert stats.kstest(one, "uniform").pvalue > 1e-6
    assert 0 < one.min() and one.max() < 1
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03 and not np.any(one == two)


def test_shares_of_n_parties_sum_to_one_skellam() -> None:
    noise = make(mu=36.0, dimension=50_000, parties=4, dropouts=0, colluders=0)
    x = np.zeros(noise.dimension)
    total = sum(noise.share(x, seeded(10 + i)) for i in range(4))
    assert chi_square(np.asarray(total), stats.skellam(18.0, 18.0)) > 1e-4


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_after_dropouts_and_collusion_the_promised_variance_is_left(missing: int) -> None:
    noise = make(mu=900.0, dimension=20_000, parties=6, dropouts=2, colluders=1)
    shares = [noise.share(np.zeros(noise.dimension), seeded(i)) for i in range(6)]
    there = shares[: 6 - missing]
    noise.check_survivors(len(there))
    unknown_to_a_colluder = np.sum(there[1:], axis=0)  # it subtracts its own share
    assert unknown_to_a_colluder.var() >= noise.mu * 0.97
    with raises(BudgetError, reason="too-many-dropouts"):
        noise.check_survivors(3)


def test_shares_of_a_threshold_less_one_colluder_add_up_to_the_release() -> None:
    release = counts_release(1.0, 1e-5, releases=1, change=1.0)
    for parties, threshold in ((2, 2), (4, 3), (9, 7)):
        share = share_variance(release, parties, threshold)
        assert share * (threshold - 1) == pytest.approx(release.mu)
    assert share_variance(release, 1, 1) == release.mu
    assert share_variance(release, 5, 3) == release.mu  # one colluder could open one hospital's


def test_a_share_is_the_rounded_clipped_vector_plus_noise() -> None:
    noise = make(mu=4.0, dimension=3)
    x = np.array([3.0, 0.0, -4.0])
    shares = np.array([noise.share(x) for _ in range(3000)])
    clean = np.rint(64.0 * x / 5)
    assert np.abs(shares.mean(axis=0) - clean).max() < 6 * math.sqrt(noise.share_variance / 3000)
    assert len({tuple(s) for s in shares}) > 50  # never the same noise


def test_no_clipped_vector_exceeds_its_sensitivity() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        noise = make(scale=float(generator.uniform(0.5, 50)))
        x = clip_norm(generator.normal(size=100) * generator.uniform(0, 3), noise.clip)
        k = np.rint(x * noise.scale)
        assert np.linalg.norm(k) <= noise.l2
        assert np.abs(k).sum() <= noise.l1
        two = replace(noise, adjacency="replace-one")
        assert np.linalg.norm(k - np.rint(-x * noise.scale)) <= two.l2 == 2 * noise.l2


def test_clipping_refuses_nan() -> None:
    assert np.linalg.norm(clip_norm(np.array([3.0, 4.0]), 1.0)) <= 1.0
    assert clip_norm(np.array([0.3, 0.4]), 1.0).tolist() == [0.3, 0.4]
    for bad in (math.nan, math.inf):
        with raises(CryptoError, "NaN"):
            clip_norm(np.array([bad, 1.0]), 1.0)


@pytest.mark.parametrize("scale", [16.0, 64.0, 1024.0])
def test_the_noise_is_that_of_a_gaussian_to_four_decimals(scale: float) -> None:
    """The design's example: 1,000 binary predictions, std 13.4 on their sum."""
    bound = prediction_sensitivity(1000, 2)
    noise = make(mu=(13.4 * scale) ** 2, scale=scale, clip=bound, dimension=2000)
    gaussian = math.sqrt(noise.mu) / noise.l2
    assert gaussian > noise.event().noise_multiplier == pytest.approx(gaussian, rel=5e-5)


@pytest.mark.parametrize(("target", "exchanges"), [(1.0, 1), (8.0, 1), (8.0, 20)])
def test_calibration_round_trips(target: float, exchanges: int) -> None:
    noise = calibrated_skellam(make(), target, DELTA, exchanges)
    assert target * (1 - 1e-4) <= noise.epsilon(DELTA, exchanges) <= target
    sigma = calibrated_gaussian(1.0, target, DELTA, exchanges)
    assert epsilon([GaussianRelease(sigma, exchanges)], DELTA) <= target
    assert noise.std / sigma == pytest.approx(69 / 64, rel=3e-4)  # the price of rounding


def test_an_impossible_calibration_is_refused() -> None:
    with raises(BudgetError, reason="unreachable-epsilon"):
        calibrated_skellam(make(scale=1e6), 0.01, DELTA)


def test_size_limits() -> None:
    noise = make(mu=1e4)
    with raises(BudgetError, "1e+12"):
        make(mu=9e11)  # its total of 5 shares for 3
    with raises(BudgetError, reason="no-noise-source"):
        make(dropouts=3, colluders=2)
    with pytest.raises(CryptoError, match="out of range"):
        skellam(2e12, 1)
    with raises(CryptoError, "100"):
        noise.share(np.zeros(3))


# --- ε against dp-accounting --------------------------------------------------------------------


EVENTS: dict[str, list[Event]] = {
    "one Gaussian": [GaussianRelease(0.6)],
    "composed Gaussians": [GaussianRelease(2.0, 3), GaussianRelease(5.0, 20)],
    "DP-SGD": [DpSgdSteps(1.1, 0.01, 800)],
    "both": [DpSgdSteps(0.9, 0.02, 200), GaussianRelease(4.0, 2), DpSgdSteps(2.0, 0.05, 50)],
}


def theirs(events: list[Event]) -> dp_accounting.DpEvent:
    composed = dp_accounting.DpEventBuilder()
    for event in events:
        if isinstance(event, DpSgdSteps):
            one = dp_accounting.PoissonSampledDpEvent(
                event.sample_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
            )
            composed.compose(one, event.steps)
        elif isinstance(event, GaussianRelease):
            composed.compose(dp_accounting.GaussianDpEvent(event.noise_multiplier), event.count)
    return composed.build()


@pytest.mark.parametrize("name", EVENTS)
def test_prv_against_the_pld_of_dp_accounting(name: str) -> None:
    exact = PLDAccountant().compose(theirs(EVENTS[name])).get_epsilon(DELTA)
    ours = epsilon(EVENTS[name], DELTA, accountant="prv")
    assert exact - 1e-3 <= ours <= exact + 0.03  # 0.01 is PRV's own safety margin


@pytest.mark.parametrize("name", EVENTS)
def test_rdp_against_dp_accounting(name: str) -> None:
    same = RdpAccountant(orders()).compose(theirs(EVENTS[name])).get_epsilon(DELTA)
    ours = epsilon(EVENTS[name], DELTA, accountant="rdp")
    assert ours == pytest.approx(same, rel=1e-3)
    assert ours >= epsilon(EVENTS[name], DELTA, accountant="prv") - 0.02


@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize("sigma", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.8])
def test_rdp_is_that_of_opacus(sigma: float, rate: float) -> None:
    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, 30)]
    for orders_used in (None, list(orders())):
        opacus = accountant.get_epsilon(DELTA, alphas=orders_used)
        ours = rdp_epsilon(accountant.history, DELTA, wide=orders_used is not None)
        assert ours == pytest.approx(max(0.0, opacus), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["DP-SGD", "both"])
def test_prv_is_that_of_opacus(name: str) -> None:
    accountant = PRVAccountant()
    steps = [
        (e.noise_multiplier, e.sample_rate, e.steps)
        for e in EVENTS[name]
        if isinstance(e, DpSgdSteps)
    ]
    accountant.history = steps
    ours = prv_epsilon(tuple(steps), DELTA)
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


def test_auto_takes_the_tightest_accountant() -> None:
    gauss: list[Event] = [GaussianRelease(2.0)]
    mixed: list[Event] = [*gauss, SkellamRelease(1e6, 100.0, 50.0)]
    for events in (gauss, mixed):
        assert epsilon(events, DELTA) == epsilon(events, DELTA, accountant="prv")
        assert epsilon(events, DELTA) < epsilon(events, DELTA, accountant="rdp")
    assert epsilon(mixed, DELTA) > epsilon(gauss, DELTA)


def test_order_and_grouping_do_not_matter() -> None:
    parts: list[Event] = [DpSgdSteps(1.0, 0.1, 5), GaussianRelease(3.0), DpSgdSteps(1.0, 0.1, 7)]
    whole: list[Event] = [GaussianRelease(3.0), DpSgdSteps(1.0, 0.1, 12)]
    assert epsilon(parts, DELTA) == epsilon(whole, DELTA)


def test_no_event_means_no_promise() -> None:
    assert epsilon([], DELTA) == math.inf


def test_gdp_and_unknown_accountants_are_refused() -> None:
    with raises(BudgetError, "0.215", "1.03"):
        epsilon([GaussianRelease(1.0)], DELTA, accountant="gdp")  # type: ignore[arg-type]
    with raises(BudgetError, reason="accountant"):
        epsilon([GaussianRelease(1.0)], DELTA, accountant="pld")  # type: ignore[arg-type]


def test_unknown_events_are_unsupported() -> None:
    with raises(BudgetError, "'str'"):
        epsilon(["laplace"], DELTA)  # type: ignore[list-item]
    with raises(BudgetError, reason="unknown-event"):
        encode_event("laplace")  # type: ignore[arg-type]
    for text in ("", "[]", "{}", '{"kind":"laplace","scale":1}', '{"kind":"gaussian","count":1}'):
        with raises(BudgetError, reason="unknown-event"):
            decode_event(text)
    with raises(BudgetError, reason="unknown-event"):
        decode_event('{"count":1,"kind":"gaussian","noise_multiplier":1.0,"scale":1}')


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_impossible_deltas(delta: float) -> None:
    with raises(BudgetError, reason="delta"):
        epsilon([GaussianRelease(1.0)], delta)


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf])
def test_impossible_noise(noise: float) -> None:
    for make in (
        lambda: GaussianRelease(noise),
        lambda: DpSgdSteps(noise, 0.1, 1),
        lambda: SkellamRelease(noise, 1.0, 1.0),
    ):
        with raises(BudgetError, reason="no-guarantee"):
            make()
    for rate, steps in ((0.0, 1), (1.5, 1), (0.1, 0)):
        with raises(BudgetError, reason="no-guarantee"):
            DpSgdSteps(1.0, rate, steps)


@pytest.mark.parametrize("event", [e for events in EVENTS.values() for e in events])
def test_events_survive_json(event: Event) -> None:
    assert decode_event(encode_event(event)) == event
    assert encode_event(decode_event(encode_event(event))) == encode_event(event)


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_gaussian_calibration_round_trips(accountant: Accountant) -> None:
    found = calibrate(lambda z: [GaussianRelease(z, 4)], 3.0, DELTA, accountant=accountant)
    spent = epsilon([GaussianRelease(found, 4)], DELTA, accountant=accountant)
    assert 3.0 - 1e-3 <= spent <= 3.0
    with raises(BudgetError, reason="unreachable-epsilon"):
        calibrate(lambda z: [GaussianRelease(z)], 1e-9, DELTA, accountant="rdp", high=10.0)
