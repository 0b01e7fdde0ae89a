"""Intervals, thresholds and lower bounds of audits, valid for any number of samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import beta, binom, norm

Floats = NDArray[np.float64]
LARGEST_MU = 64.0  # of the search
STEPS = 40  # of the search: to 1e-10


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the exact interval of a rate (Clopper and Pearson, Biometrika 26, 1934)."""
    if not 0 <= hits <= trials or not trials:
        raise ValueError("a rate has 0 to `trials` hits, of at least one trial")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def roc(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Floats, float]:
    """Compute false and true positive rates at every threshold, and the AUC (ties: ½)."""
    inside, outside = _sides(scores, members)
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    tpr = [0.0, *_above(inside, cuts)]
    fpr = [0.0, *_above(outside, cuts)]
    return np.array(fpr), np.array(tpr), float(_placements(inside, outside).mean())


def auc_interval(
    scores: ArrayLike, members: ArrayLike, confidence: float = 0.95
) -> tuple[float, float]:
    """Compute an approximate interval of the AUC: DeLong's (Biometrics 44, 1988), or a wider one.

    DeLong's variance vanishes where members and others separate completely. So Hanley and McNeil's
    (Radiology 143, 1982) of an AUC half a pair away from 1 is used where it is larger.
    """
    inside, outside = _sides(scores, members)
    m, n = len(inside), len(outside)
    if min(m, n) < 2:
        return 0.0, 1.0
    v_in, v_out = _placements(inside, outside), 1 - _placements(outside, inside)
    auc = float(v_in.mean())
    delong = float(v_in.var(ddof=1)) / m + float(v_out.var(ddof=1)) / n
    a = (auc * m * n + 0.5) / (m * n + 1)
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)
    hanley = (a * (1 - a) + (m - 1) * (q1 - a * a) + (n - 1) * (q2 - a * a)) / (m * n)
    reach = float(norm.ppf((1 + confidence) / 2)) * math.sqrt(max(delong, hanley))
    return max(0.0, auc - reach), min(1.0, auc + reach)


def auc_threshold(members: int, others: int, *, level: float, margin: float = 0.0) -> float:
    """Compute the AUC that a guess without information exceeds with probability `level` at most.

    Scores that are independent of membership have an AUC around ½ of variance (m + n + 1)/(12mn)
    (Mann and Whitney, 1947). Only the sizes matter, so the threshold is fixed beforehand.
    """
    spread = math.sqrt((members + others + 1) / (12 * members * others))
    return min(1.0, 0.5 + margin + float(norm.isf(level)) * spread)


@dataclass(frozen=True, slots=True)
class Rate:
    """A true positive rate at a false positive rate, or the reason why there is none."""

    fpr: float  # as requested
    tpr: float | None
    interval: tuple[float, float] | None = None  # of the TPR, given the threshold
    fpr_interval: tuple[float, float] | None = None  # of the rate that the threshold reaches
    reason: str = ""


def tpr_at(fpr: float, scores: ArrayLike, members: ArrayLike, confidence: float = 0.95) -> Rate:
    """Compute the TPR at the lowest threshold that passes at most this share of non-members.

    A rate needs at least one non-member of its share: 0.1 % needs 1,000 of them. The threshold
    depends on the non-members alone, so the TPR's interval is exact given the threshold.
    """
    inside, outside = _sides(scores, members)
    needed = math.ceil(1 / fpr - 1e-9)
    if len(outside) < needed:
        reason = f"{len(outside)} non-members; a rate of {100 * fpr:g} % needs {needed:,}"
        return Rate(fpr, None, reason=reason)
    allowed = math.floor(fpr * len(outside) + 1e-9)
    cut = np.sort(outside)[::-1][allowed]  # scores above it count
    hits, alarms = int((inside > cut).sum()), int((outside > cut).sum())
    return Rate(
        fpr,
        hits / len(inside),
        clopper_pearson(hits, len(inside), confidence),
        clopper_pearson(alarms, len(outside), confidence),
    )


def epsilon_lower_bound(
    tp: int, n_in: int, fp: int, n_out: int, delta: float, confidence: float = 0.95
) -> float:
    """Compute the ε that an attack at a fixed threshold disproves.

    (ε, δ)-DP has TPR <= e^ε·FPR + δ, and the same for their complements. Two one-sided
    Clopper-Pearson limits serve both: each of TPR and FPR fails with half of 1 - confidence.
    """
    low, _ = clopper_pearson(tp, n_in, confidence)
    _, high = clopper_pearson(fp, n_out, confidence)
    sides = ((low, high), (1 - high, 1 - low))
    return max([0.0, *(math.log((a - delta) / b) for a, b in sides if a > delta)])


def mu_lower_bound(tp: int, n_in: int, fp: int, n_out: int, confidence: float = 0.95) -> float:
    """Compute the μ of Gaussian DP that it disproves: Φ⁻¹(TPR) - Φ⁻¹(FPR), at the limits."""
    low, _ = clopper_pearson(tp, n_in, confidence)
    _, high = clopper_pearson(fp, n_out, confidence)
    return max(0.0, float(norm.ppf(low) - norm.ppf(high))) if low > 0 and high < 1 else 0.0


def gdp_epsilon(mu: float, delta: float) -> float:
    """Compute the least ε at δ of μ-Gaussian DP (Dong, Roth, Su, arXiv 1905.02383, Cor. 2.13)."""
    if mu < 0 or not 0 < delta < 1:
        raise ValueError("μ must be 0 or more, and δ between 0 and 1")

    def excess(ε: float) -> float:
        spent = math.exp(log_ndtr(-ε / mu + mu / 2)) - math.exp(ε + log_ndtr(-ε / mu - mu / 2))
        return spent - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    high = mu * (mu / 2 + float(norm.isf(delta)))  # there the first term alone is δ
    return float(brentq(excess, 0.0, high, xtol=1e-10))


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the chance of so many right guesses of coins if the mechanism is (ε, δ)-DP.

    Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, arXiv
    2305.08846, Theorem 5.2: at δ = 0 the right guesses are dominated by Binomial(r, q) with
    q = 1/(1 + e^-ε); δ adds 2mδ·maxᵢ P[v > B >= v - i]/i.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ValueError("guesses must not exceed canaries, nor right guesses exceed guesses")
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, q))
    if right == 0:
        return 1.0
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
    worst = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """Find the largest ε that a one-run audit rejects; 0: none."""

    def margin(ε: float) -> float:
        return one_run_p_value(canaries, guesses, right, ε, delta) - (1 - confidence)

    if margin(0.0) >= 0:
        return 0.0
    high = 1.0
    while margin(high) < 0:
        high *= 2
    return _largest(lambda ε: margin(ε) < 0, high, 50)


def one_run_mu(canaries: int, guesses: int, right: int, confidence: float = 0.95) -> float:
    """Find the largest μ of Gaussian DP that so many right guesses of coins reject; 0: none.

    Mahloujifar, Melis, Chaudhuri: Auditing f-Differential Privacy in One Run. ICML 2025, arXiv
    2410.22235, the recursion of its audit for two choices a coin and a fixed number of guesses. The
    hypothesis is the full curve of μ-Gaussian DP, not one point of it, so fewer guesses suffice.
    DP-SGD's own curve approaches a Gaussian one over many steps (Dong, Roth, Su, arXiv 1905.02383,
    § 5). For few steps at a small sample rate it does not, and then this bound is no proof.
    """
    if not 0 <= right <= guesses <= canaries or not guesses:
        raise ValueError("guesses must not exceed canaries, nor right guesses exceed guesses")
    level = 1 - confidence
    if not rejects(canaries, guesses, right, 0.0, level):
        return 0.0
    return _largest(lambda μ: rejects(canaries, guesses, right, μ, level), LARGEST_MU, STEPS)


def one_run_gaussian_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """Compute the ε at δ of the largest rejected μ."""
    return gdp_epsilon(one_run_mu(canaries, guesses, right, confidence), delta)


def rejects(canaries: int, guesses: int, right: int, mu: float, level: float) -> bool:
    """Decide if `right` or more right guesses have a chance below `level` under μ-Gaussian DP.

    r and h are the chances that a given canary is guessed rightly, and wrongly, while at least i
    guesses are right in all. μ bounds h from below by r, and counting shows how both grow as i
    falls. At i = 0 their sum cannot exceed the share of canaries that are guessed.
    """
    r = level * right / canaries
    h = level * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        wrong = max(h, float(ndtr(ndtri(min(r, 1.0)) - mu)))
        r, h = r + i / (guesses - i) * (wrong - h), wrong
        if r + h > guesses / canaries:
            return True
    return r + h > guesses / canaries


def _largest(rejected: Callable[[float], bool], high: float, steps: int) -> float:
    """Find the largest value from 0 to `high` that is rejected, by bisection."""
    low = 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _sides(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Floats]:
    values, inside = np.asarray(scores, float), np.asarray(members, bool)
    if values.shape != inside.shape or not inside.any() or inside.all():
        raise ValueError("scores need one record each, some of members and some of others")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite numbers")
    return values[inside], values[~inside]


def _above(values: Floats, cuts: Floats) -> Floats:
    share: Floats = (len(values) - np.searchsorted(np.sort(values), cuts)) / len(values)
    return share


def _placements(values: Floats, others: Floats) -> Floats:
    """Compute, for each value, the share of the others below it; ties count half."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    share: Floats = (below + upto) / (2 * len(others))
    return share
