"""What a privacy budget buys, computed before a run: signal, noise, ε, and what would help."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from secure_fl.crypto.privacy.accounting import Accountant, calibrate, epsilon
from secure_fl.crypto.privacy.events import DpSgdSteps, GaussianRelease
from secure_fl.crypto.privacy.noise import (
    SkellamNoise,
    calibrated_gaussian,
    calibrated_skellam,
    prediction_sensitivity,
)
from secure_fl.errors import BudgetError

USEFUL = 0.9  # an ensemble that agrees should be read correctly this often


@dataclass(frozen=True, slots=True)
class Predictions:
    """FedID's noised ensemble predictions, protecting a hospital: each exchange sums the class
    probabilities (minus 1/C) of one public batch over the parties.
    """  # noqa: D205

    parties: int
    classes: int
    examples: int
    batch: int
    rounds: int
    exchanges: int  # per round; one pass over the examples by default
    delta: float
    dropouts: int
    colluders: int
    scale: float = 64.0  # grid steps per unit of probability

    def __post_init__(self) -> None:
        least = min(self.parties, self.examples, self.batch, self.rounds, self.exchanges)
        if least < 1 or self.classes < 2 or self.batch > self.examples or self.scale <= 0:
            raise BudgetError(
                "this plan has no parties, examples, rounds or classes, or too large a batch",
                fix="counts are 1 or more, classes 2 or more, a batch at most all examples",
                reason="plan",
            )

    @property
    def releases(self) -> int:
        """How many sums are opened in all: T exchanges in each of R rounds."""
        return self.exchanges * self.rounds

    @property
    def sensitivity(self) -> float:
        """One hospital's part of one sum, in L2: √(B(1-1/C))."""
        return prediction_sensitivity(self.batch, self.classes)

    @property
    def signal(self) -> float:
        """The centred sum for a class on which all parties agree: n(1-1/C)."""
        return self.parties * (1 - 1 / self.classes)

    def noise(self, mu: float = 1.0) -> SkellamNoise:
        """Size the distributed noise of one exchange."""
        size = self.batch * self.classes
        return SkellamNoise(
            mu, self.scale, self.sensitivity, size, self.parties, self.dropouts, self.colluders
        )


@dataclass(frozen=True, slots=True)
class PredictionBudget:
    """The answer for a plan."""

    signal: float  # a unanimous class, on the sum
    sensitivity: float
    releases: int
    epsilon: float
    delta: float
    std_central: float  # a trusted centre's Gaussian with exact accounting
    std: float  # distributed Skellam: guaranteed after dropouts and collusion
    std_all_present: float  # what is really in the sum when nobody drops out
    signal_to_noise: float
    correct: float  # chance that argmax reads a unanimous vote right
    std_useful: float  # the noise at which that chance is USEFUL
    parties_useful: int  # at the same ε
    examples_useful: int  # at the same ε
    opened_useful: int  # predictions over all exchanges, at the same ε
    epsilon_useful: float  # with the same parties and examples

    @property
    def drowned(self) -> bool:
        """Whether the noise hides even what all parties agree on, when all are present."""
        return self.std_all_present > self.std_useful


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    """DP-SGD at one silo: its noise multiplier and ε per record."""

    noise_multiplier: float
    epsilon: float
    delta: float
    sample_rate: float
    steps: int


def size_noise(
    plan: Predictions, *, epsilon: float | None = None, std: float | None = None
) -> SkellamNoise:
    """Find the noise of one exchange: the least within ε, or of a guaranteed std on the sum."""
    if (epsilon is None) == (std is None):
        raise BudgetError(
            "give either ε or the noise", fix="--epsilon or --noise-std", reason="plan"
        )
    if epsilon is None:
        assert std is not None  # noqa: S101 - checked above
        return plan.noise((std * plan.scale) ** 2)
    return calibrated_skellam(plan.noise(), epsilon, plan.delta, plan.releases)


def plan_predictions(
    plan: Predictions, *, epsilon: float | None = None, std: float | None = None
) -> PredictionBudget:
    """Find the noise for a budget ε, or the ε of a given guaranteed noise std on the sum."""
    noise = size_noise(plan, epsilon=epsilon, std=std)
    if epsilon is None:
        epsilon = noise.epsilon(plan.delta, plan.releases)
    central = calibrated_gaussian(plan.sensitivity, epsilon, plan.delta, plan.releases)
    real = math.sqrt(noise.total_variance) / plan.scale
    useful = _useful_std(plan.parties, plan.classes)
    opened = plan.batch * plan.releases
    return PredictionBudget(
        signal=plan.signal,
        sensitivity=plan.sensitivity,
        releases=plan.releases,
        epsilon=epsilon,
        delta=plan.delta,
        std_central=central.sigma,
        std=noise.std,
        std_all_present=real,
        signal_to_noise=plan.signal / real,
        correct=chance_correct(plan.parties / real, plan.classes),
        std_useful=useful,
        parties_useful=max(plan.parties, math.ceil(plan.parties * real / useful)),
        examples_useful=min(plan.examples, math.floor(plan.examples * (useful / real) ** 2)),
        opened_useful=math.floor(opened * min(1.0, (useful / real) ** 2)),
        epsilon_useful=_gaussian_epsilon(plan, useful * noise.std / real),
    )


def plan_training(
    records: int,
    batch: int,
    epochs: int,
    rounds: int,
    delta: float,
    *,
    noise_multiplier: float | None = None,
    epsilon_target: float | None = None,
    accountant: Accountant = "auto",
) -> TrainingBudget:
    """Find ε of DP-SGD with a noise multiplier, or the least multiplier for ε.

    As Opacus' loader does it: 1/⌈N/B⌉ is the sample rate, and an epoch has ⌈N/B⌉ steps.
    """
    if min(records, batch, epochs, rounds) < 1 or batch > records:
        raise BudgetError(
            "records, batch, epochs and rounds must be 1 or more, batch <= records", reason="plan"
        )
    if (noise_multiplier is None) == (epsilon_target is None):
        raise BudgetError(
            "give either ε or the noise", fix="--epsilon or --noise-multiplier", reason="plan"
        )
    per_epoch = math.ceil(records / batch)
    rate, steps = 1 / per_epoch, per_epoch * epochs * rounds

    def events(σ: float) -> list[DpSgdSteps]:
        return [DpSgdSteps(σ, rate, steps)]

    if noise_multiplier is None:
        assert epsilon_target is not None  # noqa: S101 - checked above
        # RDP brackets quickly and never reports less, so PRV searches below its answer
        high = calibrate(events, epsilon_target, delta, accountant="rdp", low=0.2, high=1e4)
        noise_multiplier = calibrate(
            events,
            epsilon_target,
            delta,
            accountant=accountant,
            low=high / 2,
            high=high,
            precision=1e-3,
        )
    spent = epsilon(events(noise_multiplier), delta, accountant=accountant)
    return TrainingBudget(noise_multiplier, spent, delta, rate, steps)


def chance_correct(margin: float, classes: int) -> float:
    """Chance that argmax picks the class that leads all others by `margin` noise stds.

    ∫ φ(z) Φ(z + margin)^(C-1) dz for independent Gaussian noise on C scores.
    """
    z = np.linspace(-9, 9, 4001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(density * ndtr(z + margin) ** (classes - 1), z))


def _useful_std(parties: int, classes: int) -> float:
    low, high = 1e-6, 1e6  # noise stds; the chance falls as noise grows
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        if chance_correct(parties / middle, classes) >= USEFUL:
            low = middle
        else:
            high = middle
    return low


def _gaussian_epsilon(plan: Predictions, std: float) -> float:
    return epsilon([GaussianRelease(std / plan.sensitivity, plan.releases)], plan.delta)
