"""Statistics that are valid: exact intervals, thresholds that were fixed before."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import beta, binom, norm, rankdata

Floats = NDArray[np.float64]


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate (Clopper and Pearson, Biometrika 26, 1934)."""
    if not 0 <= hits <= trials or not trials:
        raise ValueError("a rate has 0 to `trials` hits, of at least one trial")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def roc(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Floats, float]:
    """False and true positive rates at every threshold, from none to all, and the AUC (ties: ½)."""
    inside, outside = _sides(scores, members)
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    tpr = [0.0, *_above(inside, cuts)]
    fpr = [0.0, *_above(outside, cuts)]
    return np.array(fpr), np.array(tpr), float(_placements(inside, outside).mean())


def auc_interval(
    scores: ArrayLike, members: ArrayLike, confidence: float = 0.95
) -> tuple[float, float]:
    """An approximate interval of the AUC: DeLong's (Biometrics 44, 1988), or a wider one.

    DeLong's variance vanishes where members and others part completely, so Hanley and McNeil's
    (Radiology 143, 1982) of an AUC half a pair away from 1 takes its place where it is larger.
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
    """The AUC that a guess without information passes with probability `level` at most.

    Scores that have nothing to do with membership have an AUC around ½ of variance
    (m + n + 1)/(12mn) (Mann and Whitney, 1947): only the sizes decide, so it is fixed beforehand.
    """
    spread = math.sqrt((members + others + 1) / (12 * members * others))
    return min(1.0, 0.5 + margin + float(norm.isf(level)) * spread)


@dataclass(frozen=True, slots=True)
class Rate:
    """A true positive rate at a false positive rate, or why there is none."""

    fpr: float  # as asked for
    tpr: float | None
    interval: tuple[float, float] | None = None  # of the TPR, given the threshold
    fpr_interval: tuple[float, float] | None = None  # of what the threshold really lets through
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def tpr_at(fpr: float, scores: ArrayLike, members: ArrayLike, confidence: float = 0.95) -> Rate:
    """The TPR at the lowest threshold that lets through at most this share of non-members.

    It refuses a rate of which not even one non-member is a share: 0.1 % needs 1,000 of them. The
    threshold is a function of the non-members alone, so the TPR's interval is exact given it.
    """
    inside, outside = _sides(scores, members)
    needed = math.ceil(1 / fpr - 1e-9)
    if len(outside) < needed:
        what = f"{len(outside)} non-members; a rate of {100 * fpr:g} % needs {needed:,}"
        return Rate(fpr, None, reason=what)
    allowed = math.floor(fpr * len(outside) + 1e-9)
    cut = np.sort(outside)[::-1][allowed]  # all above it count, it does not
    hits, alarms = int((inside > cut).sum()), int((outside > cut).sum())
    return Rate(
        fpr,
        hits / len(inside),
        clopper_pearson(hits, len(inside), confidence),
        clopper_pearson(alarms, len(outside), confidence),
    )


def spearman(
    x: ArrayLike, y: ArrayLike, rng: np.random.Generator, permutations: int = 9_999
) -> tuple[float, float]:
    """Spearman's correlation, and the two-sided p-value of a permutation test (never 0)."""
    a, b = (rankdata(np.asarray(v, float)) for v in (x, y))
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    if scale == 0:
        return 0.0, 1.0  # one of them never changes
    found = float(a @ b) / scale
    drawn = np.array([float(a @ rng.permutation(b)) for _ in range(permutations)]) / scale
    extreme = int((np.abs(drawn) >= abs(found) - 1e-12).sum())
    return found, (1 + extreme) / (1 + permutations)


def epsilon_lower_bound(
    tp: int, n_in: int, fp: int, n_out: int, delta: float, confidence: float = 0.95
) -> float:
    """Which ε an attack at a threshold that was fixed before disproves.

    (ε, δ)-DP has TPR <= e^ε·FPR + δ, and the same of their complements. Two one-sided
    Clopper-Pearson limits serve both: each of TPR and FPR fails with half of 1 - confidence.
    """
    low, _ = clopper_pearson(tp, n_in, confidence)
    _, high = clopper_pearson(fp, n_out, confidence)
    sides = ((low, high), (1 - high, 1 - low))
    return max([0.0, *(math.log((a - delta) / b) for a, b in sides if a > delta)])


def mu_lower_bound(tp: int, n_in: int, fp: int, n_out: int, confidence: float = 0.95) -> float:
    """Which μ of Gaussian DP the same attack disproves: Φ⁻¹(TPR) - Φ⁻¹(FPR), at the same limits."""
    low, _ = clopper_pearson(tp, n_in, confidence)
    _, high = clopper_pearson(fp, n_out, confidence)
    return max(0.0, float(norm.ppf(low) - norm.ppf(high))) if low > 0 and high < 1 else 0.0


def gdp_epsilon(mu: float, delta: float) -> float:
    """The least ε at δ of μ-Gaussian DP (Dong, Roth, Su, arXiv 1905.02383, Corollary 2.13)."""
    if mu < 0 or not 0 < delta < 1:
        raise ValueError("μ is 0 or more, and δ between 0 and 1")

    def excess(ε: float) -> float:
        spent = math.exp(log_ndtr(-ε / mu + mu / 2)) - math.exp(ε + log_ndtr(-ε / mu - mu / 2))
        return spent - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    high = mu * (mu / 2 + float(norm.isf(delta)))  # there the first term alone is δ
    return float(brentq(excess, 0.0, high, xtol=1e-10))


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the chance of so many right guesses on coins if the mechanism is (ε, δ)-DP.

    Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, arXiv
    2305.08846, Theorem 5.2: at δ = 0 the right guesses are dominated by Binomial(r, q) with
    q = 1/(1 + e^-ε); δ adds 2mδ·maxᵢ P[v > B >= v - i]/i.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ValueError("there are as many guesses as canaries at most, and no more right ones")
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
    """The largest ε that a one-run audit rejects; 0 if it rejects none."""

    def kept(ε: float) -> float:
        return one_run_p_value(canaries, guesses, right, ε, delta) - (1 - confidence)

    if kept(0.0) >= 0:
        return 0.0
    high = 1.0
    while kept(high) < 0:
        high *= 2
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) < 0 else (low, middle)
    return low


def _sides(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Floats]:
    values, inside = np.asarray(scores, float), np.asarray(members, bool)
    if values.shape != inside.shape or not inside.any() or inside.all():
        raise ValueError("one score for each record, of some members and some others")
    if not np.isfinite(values).all():
        raise ValueError("scores are finite numbers")
    return values[inside], values[~inside]


def _above(values: Floats, cuts: Floats) -> Floats:
    found: Floats = (len(values) - np.searchsorted(np.sort(values), cuts)) / len(values)
    return found


def _placements(values: Floats, others: Floats) -> Floats:
    """For each value, the share of the others that lie below it; ties count half."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    found: Floats = (below + upto) / (2 * len(others))
    return found
