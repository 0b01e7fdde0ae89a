"""Privacy events and their composition to ε: exact, or by Opacus' accountants.

An event contains only parameters on which its privacy depends, and has one canonical JSON. Events
of a kind that is not in the table `KINDS` can be neither recorded nor composed.

A Skellam release counts as its equivalent Gaussian (proof in docs/shared-noise.md). Gaussians
compose exactly. PRV (numerically tight, arXiv 2106.02848) composes them with DP-SGD events. If
PRV's grids would grow too large (ε > 64), RDP at Opacus' orders does, which is looser and never
under-reports. GDP's limit theorem is refused: at q < 1 it reports 0.215 where 1.03 is exact.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.privacy.opacus_accountants import Steps, prv_epsilon, rdp_epsilon
from secure_fl.errors import BudgetError


@dataclass(frozen=True, slots=True)
class DpSgdSteps:
    """Steps of DP-SGD: Gaussian noise of std σC on a Poisson sample of the records.

    Opacus accounts for adding or removing one record: `adjacency` must be add-remove when q < 1.
    """

    noise_multiplier: float  # σ: noise std over clip norm
    sample_rate: float  # q: the chance of a record to be in a batch
    steps: int
    views: tuple[float, ...] = field(default=(), compare=False)  # σ towards 0, 1, 2, ... colluders

    def __post_init__(self) -> None:
        for σ in (self.noise_multiplier, *self.views):
            _noise(self, σ)
        _count(self, self.steps)
        if not LEAST <= self.sample_rate <= 1:
            raise _bad(self, f"sample rate {self.sample_rate}")

    def towards(self, colluders: int) -> DpSgdSteps | None:
        """Return the steps as so many colluders see them; None: no noise may be left."""
        if not self.views:  # the noise is this hospital's alone
            return self
        if colluders >= len(self.views):
            return None
        return DpSgdSteps(self.views[colluders], self.sample_rate, self.steps)


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """Gaussian noise on a whole vector of known L2 sensitivity Δ, `count` times."""

    noise_multiplier: float  # σ/Δ
    count: int = 1

    def __post_init__(self) -> None:
        _noise(self, self.noise_multiplier)
        _count(self, self.count)


@dataclass(frozen=True, slots=True)
class SkellamRelease:
    """Skellam noise of variance μ on integers, `count` times.

    k cells that a record changes by 1 are k releases with Δ₁ = Δ₂ = 1: their ε is exact.
    """

    mu: float  # the variance guaranteed to the party, in squared grid steps
    l1: float  # Δ₁ in grid steps
    l2: float  # Δ₂ in grid steps
    count: int = 1

    def __post_init__(self) -> None:
        _noise(self, self.mu)
        _count(self, self.count)
        if not (LEAST <= self.l2 <= LARGEST and LEAST <= self.l1 <= LARGEST):
            raise _bad(self, f"sensitivities {self.l1}, {self.l2}")

    @property
    def noise_multiplier(self) -> float:
        """σ/Δ₂ of a Gaussian release that is no more private."""
        return equivalent_std(self.mu) / self.l2

    @property
    def unit_cells(self) -> int | None:
        """How many cells a record changes, by 1 each; None if it may change one by more."""
        squared = self.l2**2 * (1 + 1e-9)  # √3² is below 3 in floats
        return int(min(squared, self.l1 * (1 + 1e-9))) if squared < 4 else None


Event = DpSgdSteps | GaussianRelease | SkellamRelease

KINDS: dict[str, type[Event]] = {
    "dp-sgd": DpSgdSteps,
    "gaussian": GaussianRelease,
    "skellam": SkellamRelease,
}


def encode_event(event: Event) -> str:
    """Encode an event as canonical JSON: sorted keys, no spaces."""
    for kind, cls in KINDS.items():
        if type(event) is cls:
            fields = {"kind": kind, **dataclasses.asdict(event)}
            if fields.get("views") == ():  # not in ledgers of local noise
                del fields["views"]
            return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    raise unsupported(type(event).__name__)


def decode_event(text: str) -> Event:
    """Decode an event; an unknown kind or field is refused."""
    try:
        fields = json.loads(text)
        cls = KINDS[fields.pop("kind")]
        names = {f.name for f in dataclasses.fields(cls)}
        if not names - {"views"} <= set(fields) <= names:
            raise ValueError
        return msgspec.convert(fields, type=cls)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise unsupported(text[:80]) from None


def unsupported(what: str) -> BudgetError:
    """Build the error for an event that cannot be composed."""
    return BudgetError(
        f"{what!r} is not an event this program can account for",
        fix=f"record one of {', '.join(KINDS)}; what cannot be composed must not be released",
        reason="unknown-event",
    )


LEAST, LARGEST = 1e-50, 1e50  # of noise, sensitivities and rates: no formula divides by 0


def _noise(event: Event, value: float) -> None:
    if not LEAST <= value <= LARGEST:
        raise _bad(event, f"noise {value}")


def _count(event: Event, value: int) -> None:
    if not 1 <= value <= 2**53 or int(value) != value:
        raise _bad(event, f"count {str(value)[:20]}")


def _bad(event: Event, what: str) -> BudgetError:
    return BudgetError(
        f"{type(event).__name__} with {what} gives no privacy guarantee",
        fix="noise and sensitivity must be positive, rates in (0, 1], counts from 1 to 2^53; "
        f"numbers below {LEAST:g} or above {LARGEST:g} are refused",
        reason="no-guarantee",
    )


Adjacency = Literal["add-remove", "replace-one"]
Accountant = Literal["auto", "prv", "rdp"]
PRV_KINDS, PRV_STEPS, PRV_EPSILON = 32, 200_000, 64.0  # with more, its grids outgrow memory


def epsilon(events: Iterable[Event], delta: float, *, accountant: Accountant = "auto") -> float:
    """Compose events into ε at δ; without any event the result is ∞."""
    if not 0 < delta < 1:
        raise BudgetError(
            f"δ is {delta}", fix="choose δ below one over the number of records", reason="delta"
        )
    _check_accountant(accountant)
    events = list(events)
    steps = _merge(events)
    if not steps:
        return math.inf
    if accountant != "rdp" and unsampled(events):
        return min(gaussian_epsilon(steps[0][0], delta), counts_epsilon(_cells(events), delta))
    bound = rdp_epsilon(steps, delta)
    if accountant == "rdp" or not _in_prv_range(steps, bound):
        return bound
    exact = prv_epsilon(tuple(steps), delta)
    return bound if exact is None else min(bound, exact)


def unsampled(events: Iterable[Event]) -> bool:
    """Return true if every record is in every step: ε then has a formula, without Opacus."""
    return all(q == 1 for _, q, _ in _merge(events))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return ε of one Gaussian release, by Balle and Wang's formula (arXiv 1805.06530)."""
    from scipy.special import log_ndtr

    m = 1 / noise_multiplier
    low, high = 0.0, m * m / 2 + m * math.sqrt(2 * math.log(1 / delta))
    if not high < math.inf:
        return math.inf
    while high > 1e-12 and high - low > 1e-10 * high:  # `high` stays within δ
        middle = (low + high) / 2
        one, other = log_ndtr(m / 2 - middle / m), middle + log_ndtr(-m / 2 - middle / m)
        if -math.exp(one) * math.expm1(other - one) <= delta * (1 - 1e-9):
            high = middle
        else:
            low = middle
    return high


def calibrate(
    make: Callable[[float], Sequence[Event]],
    target: float,
    delta: float,
    *,
    accountant: Accountant = "auto",
    low: float = 1e-2,
    high: float = 1e6,
    precision: float = 1e-6,
) -> float:
    """Find the least noise whose events stay within ε; `make` maps a noise level to its events."""
    if epsilon(make(high), delta, accountant=accountant) > target:
        raise BudgetError(
            f"even noise {high:g} exceeds ε = {target:g} at δ = {delta:g}",
            fix="allow a larger ε, or fewer releases",
            reason="unreachable-epsilon",
        )
    if epsilon(make(low), delta, accountant=accountant) <= target:
        return low
    while high / low > 1 + precision:  # ε falls as noise grows; `high` stays within the target
        middle = math.sqrt(low * high)
        if epsilon(make(middle), delta, accountant=accountant) > target:
            low = middle
        else:
            high = middle
    return high


def _check_accountant(name: str) -> None:
    if name == "gdp":
        raise BudgetError(
            "the GDP accountant is refused: its central limit theorem under-reports at a sample "
            "rate below 1 (0.215 where 1.03 is exact)",
            fix="use auto, prv or rdp",
            reason="accountant",
        )
    if name not in ("auto", "prv", "rdp"):
        raise BudgetError(
            f"{name!r} is not an accountant", fix="use auto, prv or rdp", reason="accountant"
        )


def _cells(events: Sequence[Event]) -> dict[float, int]:
    """Cells that a record changes by 1, by μ; empty if any event is of another kind."""
    cells: Counter[float] = Counter()
    for event in events:
        unit = event.unit_cells if isinstance(event, SkellamRelease) else None
        if unit is None or not isinstance(event, SkellamRelease):
            return {}
        cells[event.mu] += event.count * unit
    return cells


def _merge(events: Iterable[Event]) -> Steps:
    steps: Counter[tuple[float, float]] = Counter()
    for event in events:
        match event:
            case DpSgdSteps(noise_multiplier=σ, sample_rate=q, steps=count):
                steps[(σ, q)] += count
            case GaussianRelease(noise_multiplier=σ, count=count):
                steps[(σ, 1.0)] += count
            case SkellamRelease(count=count):
                steps[(event.noise_multiplier, 1.0)] += count
            case _:
                raise unsupported(type(event).__name__)
    sampled = [(σ, q, count) for (σ, q), count in sorted(steps.items()) if q < 1]
    # Gaussians compose exactly to one: Σ 1/σᵢ² = 1/σ²
    precision = math.fsum(count / σ**2 for (σ, q), count in sorted(steps.items()) if q == 1)
    return [*sampled, (precision**-0.5, 1.0, 1)] if precision else sampled


def _in_prv_range(steps: Steps, bound: float) -> bool:
    few = len(steps) <= PRV_KINDS and sum(count for _, _, count in steps) <= PRV_STEPS
    return few and bound <= PRV_EPSILON


# --- Skellam noise of variance μ, with probabilities p: docs/shared-noise.md ----------------------

Floats = NDArray[np.float64]
GRID = 0.05  # distance of grid points, in standard deviations of one cell's loss
LARGEST_GRID = 2**20
LARGEST_MEAN = 1e6  # above this μ, the equivalent Gaussian is exact to 0.1 %


def equivalent_std(mu: float) -> float:
    """Return σ of the theorem: Gaussian noise that is no more private than Skellam noise.

    1/σ = 2Φ⁻¹(½ + ½p(0)), and σ² = μ - ⅓ + O(1/μ).
    """
    from scipy.special import erfcinv, erfinv, i0e

    # at tiny μ, 1 - p(0) would be lost to rounding; μ/2 is below it
    score = erfinv(i0e(mu)) if mu > 1e-4 else erfcinv(mu / 2)
    return float((1 - 1e-12) / (2 * math.sqrt(2) * score))


def counts_epsilon(cells: Mapping[float, int], delta: float) -> float:
    """Compose cells that a record changes by 1: so many of each μ. ∞ if there are too many."""
    if not cells or min(cells) < 1e-6 or max(cells) > LARGEST_MEAN:
        return math.inf
    step = min(0.01, GRID / math.sqrt(max(cells)))
    losses = {mu: _cell_loss(mu, step) for mu in cells}
    size = sum(n * (losses[mu][1].size - 1) for mu, n in cells.items()) + 1
    if size > LARGEST_GRID:
        return math.inf
    from scipy.fft import irfft, next_fast_len, rfft

    padded = next_fast_len(size, real=True)
    spectrum = np.ones(padded // 2 + 1, complex)
    for mu, n in cells.items():
        spectrum *= rfft(losses[mu][1], padded) ** n
    mass = np.maximum(irfft(spectrum, padded)[:size], 0.0)
    first = sum(n * losses[mu][0] for mu, n in cells.items())
    # rounding of the transforms, and the masses that a cell's range leaves out
    rounding = 1e-15 * sum(cells.values()) * math.sqrt(padded)
    return _epsilon_of(mass, first, step, delta - rounding)


def _cell_loss(mu: float, step: float) -> tuple[int, Floats]:
    """Return the losses of one cell on the grid: the first point's number, and the masses.

    A cell that a record changes by 1 has the loss log p(k)/p(k+1) with probability p(k).
    """
    from scipy.special import ive

    k = np.arange(math.ceil(12 * math.sqrt(mu)) + 40)
    p = ive(k, mu)
    p = p[p > 1e-30]
    p = np.concatenate((p[:0:-1], p))
    loss = np.log(p[:-1] / p[1:]) / step
    at = np.floor(loss).astype(np.int64)
    upper = p[:-1] * np.expm1((at - loss) * step) / np.expm1(-step)
    mass = np.zeros(at.max() - at.min() + 2)
    np.add.at(mass, at - at.min(), p[:-1] - upper)
    np.add.at(mass, at - at.min() + 1, upper)
    return int(at.min()), mass


def _epsilon_of(mass: Floats, first: int, step: float, delta: float) -> float:
    """Return the least ε of a loss distribution at δ."""
    if delta <= 0:
        return math.inf
    loss = (first + np.arange(mass.size)) * step
    mass, loss = mass[loss > 0], loss[loss > 0]
    above = np.cumsum(mass[::-1])[::-1]  # under one distribution, and under the other
    other = np.cumsum((mass * np.exp(-loss))[::-1])[::-1]
    with np.errstate(over="ignore", invalid="ignore"):
        within = np.flatnonzero(above - np.exp(loss) * other <= delta)
    if not within.size:  # losses too large for floats
        return math.inf
    ratio = (above[within[0]] - delta) / other[within[0]]
    return max(0.0, math.log(ratio)) * (1 + 1e-9) if ratio > 0 else 0.0
