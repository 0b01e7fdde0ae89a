"""Statistics of audits: they cover the truth as often as they say, and no null passes too often."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, binomtest, mannwhitneyu, norm

from secure_fl.audits import audit_statistics as st
from secure_fl.audits.selftest.one_run import guess_coins, right_guesses

NULLS = 500
ALLOWED = int(binom.ppf(0.999, NULLS, 0.05))  # 5 %, and what chance adds to it once in 1,000 tests


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (57, 400)])
def test_clopper_pearson_is_scipys(hits, trials):
    expected = binomtest(hits, trials).proportion_ci(0.95, method="exact")
    assert st.clopper_pearson(hits, trials) == pytest.approx(tuple(expected), abs=1e-9)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_clopper_pearson_covers(rate):
    inside = 0.0  # the exact coverage: a sum over everything that can be observed
    for hits in range(41):
        low, high = st.clopper_pearson(hits, 40)
        inside += float(binom.pmf(hits, 40, rate)) * (low <= rate <= high)
    assert inside >= 0.95


def test_clopper_pearson_refuses_what_is_no_rate():
    for hits, trials in ((1, 0), (-1, 5), (6, 5)):
        with pytest.raises(ValueError, match="rate"):
            st.clopper_pearson(hits, trials)


def test_roc_by_hand():
    scores, members = [3.0, 2.0, 2.0, 1.0], [True, True, False, False]
    fpr, tpr, auc = st.roc(scores, members)
    assert fpr.tolist() == [0, 0, 0.5, 1]
    assert tpr.tolist() == [0, 0.5, 1, 1]
    assert auc == (1 + 1 + 0.5 + 1) / 4  # pairs won; the tie counts half


def test_auc_is_mann_whitneys():
    rng = np.random.default_rng(1)
    scores, members = rng.integers(9, size=80), rng.random(80) < 0.4
    u = mannwhitneyu(scores[members], scores[~members]).statistic
    finding = u / (members.sum() * (~members).sum())
    fpr, tpr, auc = st.roc(scores, members)
    assert auc == pytest.approx(finding)
    assert np.trapezoid(tpr, fpr) == pytest.approx(finding)


@pytest.mark.parametrize("distance", [0.0, 1.2, 2.5])
def test_the_auc_interval_covers(distance):
    rng, truth = np.random.default_rng(2), float(norm.cdf(distance / math.sqrt(2)))
    members = np.arange(60) < 30
    inside = 0
    for _ in range(NULLS):
        low, high = st.auc_interval(rng.normal(size=60) + distance * members, members)
        inside += low <= truth <= high
    assert inside >= binom.ppf(0.001, NULLS, 0.94)  # it is approximate: 94 % is asked for


def test_a_perfect_auc_has_an_interval():
    low, high = st.auc_interval([1, 2, 3, 4, 5, 6], [False] * 3 + [True] * 3)
    assert low < 0.95
    assert high == 1


def test_scores_without_information_seldom_pass_the_auc_threshold():
    rng, members = np.random.default_rng(3), np.arange(50) < 20
    threshold = st.auc_threshold(20, 30, level=0.05)
    passed = sum(st.roc(rng.normal(size=50), members)[2] >= threshold for _ in range(NULLS))
    assert passed <= ALLOWED
    shifted = (rng.normal(size=50) + members for _ in range(NULLS))
    passed = sum(st.roc(scores, members)[2] >= threshold for scores in shifted)
    assert passed > 0.8 * NULLS  # and information does


def test_tpr_at_a_rate_by_hand():
    outside = np.arange(200.0)
    inside = np.array([197.5, 198.5, 150.0, 300.0])
    scores = np.concatenate([outside, inside])
    rate = st.tpr_at(0.01, scores, np.arange(204) >= 200)
    assert rate.tpr == 3 / 4  # 1 % are two others, 198 and 199: the threshold lies below them
    assert rate.interval == st.clopper_pearson(3, 4)
    assert rate.fpr_interval == st.clopper_pearson(2, 200)


def test_tpr_at_refuses_a_rate_that_cannot_be_seen():
    scores, members = np.arange(1099.0), np.arange(1099) >= 999
    refused = st.tpr_at(0.001, scores, members)
    assert refused.tpr is None
    assert "1,000" in refused.reason
    allowed = st.tpr_at(0.001, np.arange(1100.0), np.arange(1100) >= 1000)
    assert allowed.tpr == 1.0


def bounds_of(bound, hits, alarms, trials, *delta):
    both = zip(hits, alarms, strict=True)
    return np.array([bound(int(a), trials, int(b), trials, *delta) for a, b in both])


def test_no_leak_gives_an_epsilon_in_one_of_twenty_at_most():
    rng = np.random.default_rng(5)
    hits, alarms = rng.binomial(300, 0.2, (2, NULLS))
    bounds = bounds_of(st.epsilon_lower_bound, hits, alarms, 300, 1e-5)
    assert (bounds > 0).sum() <= ALLOWED


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_not_accused(epsilon):
    rng, truthful = np.random.default_rng(6), 1 / (1 + math.exp(-epsilon))
    hits = rng.binomial(2000, truthful, NULLS)
    alarms = rng.binomial(2000, 1 - truthful, NULLS)
    bounds = bounds_of(st.epsilon_lower_bound, hits, alarms, 2000, 0.0)
    assert (bounds > epsilon).sum() <= ALLOWED
    assert np.median(bounds) > 0.7 * epsilon  # and most of it is found


def test_epsilon_counts_both_kinds_of_error():
    low, high = st.clopper_pearson(100, 100)[0], st.clopper_pearson(0, 100)[1]
    expected = pytest.approx(math.log((low - 0.1) / high))
    assert st.epsilon_lower_bound(100, 100, 0, 100, 0.1) == expected
    rare = st.epsilon_lower_bound(1000, 1000, 900, 1000, 0.0)  # members are never denied
    fpr, fnr = st.clopper_pearson(900, 1000)[1], 1 - st.clopper_pearson(1000, 1000)[0]
    assert rare == pytest.approx(math.log((1 - fpr) / fnr))
    assert st.epsilon_lower_bound(0, 10, 10, 10, 0.9) == 0.0


def test_mu_lower_bound_stays_below_the_truth():
    rng, mu = np.random.default_rng(7), 1.5
    hits = rng.binomial(1000, norm.sf(-mu / 2), NULLS)
    alarms = rng.binomial(1000, norm.sf(mu / 2), NULLS)
    bounds = bounds_of(st.mu_lower_bound, hits, alarms, 1000)
    assert (bounds > mu).sum() <= ALLOWED
    assert np.median(bounds) > 0.85 * mu
    assert st.mu_lower_bound(0, 10, 10, 10) == 0.0


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_gdp_epsilon_gives_delta_back(mu):
    epsilon = st.gdp_epsilon(mu, 1e-5)

    def exceeds(x: float) -> float:  # max(p - e^ε·q, 0) of N(μ, 1) and N(0, 1)
        return max(float(norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x)), 0.0)

    start = epsilon / mu + mu / 2
    assert quad(exceeds, start, start + 12)[0] == pytest.approx(1e-5, rel=1e-4)
    assert st.gdp_epsilon(0.0, 1e-5) == 0.0
    assert st.gdp_epsilon(0.01, 0.5) == 0.0


def test_one_run_without_delta_is_a_binomial_test():
    q = 1 / (1 + math.exp(-1.0))
    expected = binomtest(80, 100, q, alternative="greater").pvalue
    assert st.one_run_p_value(200, 100, 80, 1.0, 0.0) == pytest.approx(expected)
    finding = st.one_run_epsilon(200, 100, 90, 0.0)
    assert st.one_run_p_value(200, 100, 90, finding, 0.0) == pytest.approx(0.05, abs=1e-6)


def test_one_run_pays_for_delta_as_the_theorem_says():
    m, r, v, delta = 60, 20, 17, 1e-3
    q = 1 / (1 + math.exp(-0.5))
    pmf = [float(binom.pmf(k, r, q)) for k in range(r + 1)]
    worst = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
    expected = sum(pmf[v:]) + 2 * m * delta * worst
    assert st.one_run_p_value(m, r, v, 0.5, delta) == pytest.approx(expected)


def test_one_run_accuses_neither_chance_nor_randomised_response():
    rng = np.random.default_rng(8)
    least = [st.one_run_epsilon(250, 100, v, 1e-5) for v in range(101)]
    assert sum(least[v] > 0 for v in rng.binomial(100, 0.5, NULLS)) <= ALLOWED
    decoded = rng.binomial(100, 1 / (1 + math.exp(-1.0)), NULLS)
    least = [st.one_run_epsilon(100, 100, v, 0.0) for v in range(101)]
    bounds = np.array(least)[decoded]
    assert (bounds > 1.0).sum() <= ALLOWED
    assert np.median(bounds) > 0.4


def test_scores_must_be_usable():
    with pytest.raises(ValueError, match="members"):
        st.roc([1.0, 2.0], [True, True])
    with pytest.raises(ValueError, match="finite"):
        st.roc([1.0, math.nan], [True, False])


# --- the one-run bound on μ: valid on mechanisms of a known μ, and tighter than that on (ε, δ) ----

CANARIES, RUNS, DELTA = 500, 400, 1e-5
mu_of = cache(st.one_run_mu)


def apart(coins: np.ndarray, mu: float, rng: np.random.Generator) -> int:
    """Each canary moves a number of its own by μ, under noise of deviation 1: μ-Gaussian DP."""
    scores = mu * coins + rng.normal(size=len(coins))
    return right_guesses(guess_coins(scores), coins.astype(bool))


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
    true, gaussian, plain = st.gdp_epsilon(mu, DELTA), [], []
    for _ in range(50):
        coins = rng.integers(2, size=CANARIES)
        counts = (CANARIES, int(0.4 * CANARIES), apart(coins, mu, rng))
        gaussian.append(st.gdp_epsilon(mu_of(*counts), DELTA))
        plain.append(st.one_run_epsilon(*counts, DELTA))
    assert np.mean(plain) < 0.65 * np.mean(gaussian)  # 0.83, 2.1, 5.2 in place of 0.47, 1.2, 2.9
    assert 0.4 * true < np.mean(gaussian) < true  # 2.0, 4.4, 10.0
    assert all(g >= p for g, p in zip(gaussian, plain, strict=True))


def test_more_right_guesses_reject_more() -> None:
    finding = [st.one_run_mu(200, 100, right) for right in range(0, 101, 5)]
    assert finding == sorted(finding) and finding[0] == 0.0 < finding[-1]
    assert st.one_run_mu(200, 100, 90, 0.99) < st.one_run_mu(200, 100, 90, 0.95)
    edge = st.one_run_mu(200, 100, 90)
    assert st.rejects(200, 100, 90, edge - 1e-6, 0.05)
    assert not st.rejects(200, 100, 90, edge + 1e-6, 0.05)


def test_what_is_known_exactly() -> None:
    """One canary and one guess: at μ it is right with chance Φ(μ/2), which never is below 5 %."""
    assert st.one_run_mu(1, 1, 1) == 0.0
    assert st.one_run_gaussian_epsilon(100, 50, 25, DELTA) == 0.0
    for wrong in ((10, 11, 5), (10, 5, 6), (10, 0, 0)):
        with pytest.raises(ValueError, match="guesses"):
            st.one_run_mu(*wrong)
