"""What a silo spends: DP events as frozen records, and their one canonical JSON.

An event says only what its privacy depends on. A kind that is not in the table below is
*unsupported*: it can be neither recorded nor composed, and is never guessed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

import msgspec

from secure_fl.errors import BudgetError


@dataclass(frozen=True, slots=True)
class DpSgdSteps:
    """Steps of DP-SGD: Gaussian noise of std σC on a Poisson sample of the records.

    Opacus accounts for adding or removing one record: `adjacency` must be add-remove when q < 1.
    """

    noise_multiplier: float  # σ: noise std over clip norm
    sample_rate: float  # q: the chance of a record to be in a batch
    steps: int

    def __post_init__(self) -> None:
        _noise(self, self.noise_multiplier)
        _count(self, self.steps)
        if not 0 < self.sample_rate <= 1:
            raise _bad(self, f"sample rate {self.sample_rate}")


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
    """Skellam noise of variance μ on integers, `count` times (arXiv 2110.04995, Theorem 3.5).

    RDP(α) <= αΔ₂²/(2μ) + min(((2α-1)Δ₂² + 6Δ₁)/(4μ²), 3Δ₁/(2μ)) for integers α >= 2.
    """

    mu: float  # the variance guaranteed to the party, in squared grid steps
    l1: float  # Δ₁ in grid steps
    l2: float  # Δ₂ in grid steps
    count: int = 1

    def __post_init__(self) -> None:
        _noise(self, self.mu)
        _count(self, self.count)
        if not (0 < self.l2 < math.inf and 0 < self.l1 < math.inf):
            raise _bad(self, f"sensitivities {self.l1}, {self.l2}")

    def rdp(self, order: float) -> float:
        """Bound the Rényi divergence of one release at an order above 1.

        Between integers, (α-1)·RDP(α) is convex, so its chord is a bound (0 at α = 1).
        """
        low = math.floor(order)
        if low == order:
            return self._at(low)
        upper = low * self._at(low + 1)
        lower = (low - 1) * self._at(low) if low > 1 else 0.0
        return ((low + 1 - order) * lower + (order - low) * upper) / (order - 1)

    def _at(self, α: int) -> float:
        gaussian = α * self.l2**2 / (2 * self.mu)
        fine = ((2 * α - 1) * self.l2**2 + 6 * self.l1) / (4 * self.mu**2)
        return gaussian + min(fine, 3 * self.l1 / (2 * self.mu))


Event = DpSgdSteps | GaussianRelease | SkellamRelease

KINDS: dict[str, type[Event]] = {
    "dp-sgd": DpSgdSteps,
    "gaussian": GaussianRelease,
    "skellam": SkellamRelease,
}


def encode_event(event: Event) -> str:
    """Write an event as canonical JSON: sorted keys, no spaces."""
    for kind, cls in KINDS.items():
        if type(event) is cls:
            fields = {"kind": kind, **dataclasses.asdict(event)}
            return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    raise unsupported(type(event).__name__)


def decode_event(text: str) -> Event:
    """Read an event; an unknown kind or field is refused."""
    try:
        fields = json.loads(text)
        cls = KINDS[fields.pop("kind")]
        if set(fields) != {f.name for f in dataclasses.fields(cls)}:
            raise ValueError
        return msgspec.convert(fields, type=cls)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise unsupported(text[:80]) from None


def unsupported(what: str) -> BudgetError:
    """Say that an event cannot be composed."""
    return BudgetError(
        f"{what!r} is not an event this program can account for",
        fix=f"record one of {', '.join(KINDS)}; what cannot be composed must not be released",
        reason="unknown-event",
    )


def _noise(event: Event, value: float) -> None:
    if not 0 < value < math.inf:
        raise _bad(event, f"noise {value}")


def _count(event: Event, value: int) -> None:
    if int(value) != value or value < 1:
        raise _bad(event, f"count {value}")


def _bad(event: Event, what: str) -> BudgetError:
    return BudgetError(
        f"{type(event).__name__} with {what} promises nothing",
        fix="noise and sensitivity must be positive, rates in (0, 1], counts 1 or more",
        reason="no-guarantee",
    )
