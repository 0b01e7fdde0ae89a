"""ε against dp-accounting: never below it by more than numerical error, and close to it."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import skellam

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
    orders,
)
from secure_fl.errors import BudgetError
from tests.support.raising import raises

DELTA = 1e-5
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


def test_auto_takes_prv_until_a_skellam_release_comes() -> None:
    gauss: list[Event] = [GaussianRelease(2.0)]
    mixed: list[Event] = [*gauss, SkellamRelease(1e6, 100.0, 50.0)]
    assert epsilon(gauss, DELTA) == epsilon(gauss, DELTA, accountant="prv")
    assert epsilon(mixed, DELTA) == epsilon(mixed, DELTA, accountant="rdp")
    assert epsilon(mixed, DELTA) > epsilon(gauss, DELTA)
    with raises(BudgetError, "PRV"):
        epsilon(mixed, DELTA, accountant="prv")


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


@pytest.mark.parametrize("mu", [4.0, 30.0, 400.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.parametrize("order", [1.3, 2, 2.5, 3, 8])
def test_the_skellam_bound_holds_for_the_exact_divergence(
    mu: float, shift: int, order: float
) -> None:
    """One coordinate, computed from the two distributions themselves."""
    k = np.arange(-int(60 * math.sqrt(mu)), int(60 * math.sqrt(mu)))
    at, moved = skellam.logpmf(k, mu / 2, mu / 2), skellam.logpmf(k - shift, mu / 2, mu / 2)
    seen = np.isfinite(at) & np.isfinite(moved)
    terms = order * moved[seen] + (1 - order) * at[seen]
    exact = float(np.log(np.sum(np.exp(terms)))) / (order - 1)
    assert exact <= SkellamRelease(mu, shift, shift).rdp(order) + 1e-9


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_calibration_round_trips(accountant: Accountant) -> None:
    found = calibrate(lambda z: [GaussianRelease(z, 4)], 3.0, DELTA, accountant=accountant)
    spent = epsilon([GaussianRelease(found, 4)], DELTA, accountant=accountant)
    assert 3.0 - 1e-3 <= spent <= 3.0
    with raises(BudgetError, reason="unreachable-epsilon"):
        calibrate(lambda z: [GaussianRelease(z)], 1e-9, DELTA, accountant="rdp", high=10.0)
