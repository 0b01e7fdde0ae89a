"""Plans of noised predictions and of DP-SGD: signal, noise and ε before a run, and advice.

The noise follows from the settings, the number of parties and the threshold alone, so parties and
host find the same noise, in a resumed run too. A ledger only decides which party may take part.
`secure-fl budget` and the refusal of a run print the results as rows of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from textwrap import wrap
from typing import Any

import numpy as np
from scipy.special import ndtr

from secure_fl.crypto.privacy.accounting import (
    Accountant,
    DpSgdSteps,
    GaussianRelease,
    calibrate,
    epsilon,
)
from secure_fl.crypto.privacy.noise import (
    SkellamNoise,
    calibrated_gaussian,
    calibrated_skellam,
    prediction_sensitivity,
)
from secure_fl.errors import BudgetError
from secure_fl.settings import NoiseSettings

USEFUL = 0.9  # wanted chance that a unanimous vote is read correctly
# Noise of a run's DP-SGD over its largest update; with more, pretrained models learn little.
WORKABLE = 0.003
WEAK = 20.0  # an ε above which advice would no longer protect


@dataclass(frozen=True, slots=True)
class PredictionPlan:
    """Plan of FedID's noised ensemble predictions, which protect a hospital.

    Each exchange sums the class probabilities (minus 1/C) of one public batch over the parties.
    """

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
        """The number of opened sums: T exchanges in each of R rounds."""
        return self.exchanges * self.rounds

    @property
    def sensitivity(self) -> float:
        """The L2 share of one hospital in one sum: √(B(1-1/C))."""
        return prediction_sensitivity(self.batch, self.classes)

    @property
    def signal(self) -> float:
        """The centred sum of a class on which all parties agree: n(1-1/C)."""
        return self.parties * (1 - 1 / self.classes)

    def noise(self, mu: float = 1.0) -> SkellamNoise:
        """Return the distributed noise of one exchange."""
        size = self.batch * self.classes
        return SkellamNoise(
            mu, self.scale, self.sensitivity, size, self.parties, self.dropouts, self.colluders
        )


@dataclass(frozen=True, slots=True)
class PredictionBudget:
    """Noise, signal and ε of a plan, and changes that would make it useful."""

    signal: float  # a unanimous class, on the sum
    sensitivity: float
    releases: int
    epsilon: float
    delta: float
    std_central: float  # a trusted centre's Gaussian with exact accounting
    std: float  # distributed Skellam: guaranteed after dropouts and collusion
    std_all_present: float  # noise in the sum without dropouts
    signal_to_noise: float
    correct: float  # chance that argmax reads a unanimous vote right
    std_useful: float  # the noise at which that chance is USEFUL
    parties_useful: int  # at the same ε
    examples_useful: int  # at the same ε
    opened_useful: int  # predictions over all exchanges, at the same ε
    epsilon_useful: float  # with the same parties and examples

    @property
    def drowned(self) -> bool:
        """True if the noise without dropouts hides even a unanimous vote."""
        return self.std_all_present > self.std_useful


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    """Noise multiplier and ε per record of DP-SGD at one silo."""

    noise_multiplier: float
    epsilon: float
    delta: float
    sample_rate: float
    steps: int
    records: int  # or patients

    @property
    def relative_noise(self) -> float:
        """The noise of all steps in one trained value, over the largest update of the run.

        A step moves a value by C at most, and its noise is σC/B, for the clip norm C and a batch
        of B. Over T steps the movement grows with T, and the noise with √T.
        """
        return self.noise_multiplier / (self.sample_rate * self.records * math.sqrt(self.steps))

    @property
    def drowned(self) -> bool:
        """True if the noise is too large for so few records."""
        return self.relative_noise > WORKABLE

    def advice(self, unit: str = "record") -> str:
        """List changes that would make the noise workable, each alone.

        The relative noise falls nearly as 1/(records · ε).
        """
        factor = self.relative_noise / WORKABLE
        needed = _rounded_up(self.records * factor)
        ε = self.epsilon * factor
        choices = [f"{needed} {unit}s at each hospital", *([f"ε = {ε:.2g}"] if ε <= WEAK else [])]
        return f"{' or '.join(choices)}; larger batches help, too"


def size_noise(
    plan: PredictionPlan, *, epsilon: float | None = None, std: float | None = None
) -> SkellamNoise:
    """Compute the noise of one exchange: the least within ε, or of a guaranteed std."""
    if (epsilon is None) == (std is None):
        raise BudgetError(
            "give either ε or the noise", fix="--epsilon or --noise-std", reason="plan"
        )
    if epsilon is None:
        assert std is not None  # noqa: S101 - checked above
        return plan.noise((std * plan.scale) ** 2)
    return calibrated_skellam(plan.noise(), epsilon, plan.delta, plan.releases)


def plan_predictions(
    plan: PredictionPlan, *, epsilon: float | None = None, std: float | None = None
) -> PredictionBudget:
    """Compute the budget of a plan, from ε or from a guaranteed noise std on the sum."""
    noise = size_noise(plan, epsilon=epsilon, std=std)
    if epsilon is None:
        epsilon = noise.epsilon(plan.delta, plan.releases)
    real = math.sqrt(noise.total_variance) / plan.scale
    useful = _useful_std(plan.parties, plan.classes)
    opened = plan.batch * plan.releases
    return PredictionBudget(
        signal=plan.signal,
        sensitivity=plan.sensitivity,
        releases=plan.releases,
        epsilon=epsilon,
        delta=plan.delta,
        std_central=calibrated_gaussian(plan.sensitivity, epsilon, plan.delta, plan.releases),
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
    step_rate: float | None = None,
) -> TrainingBudget:
    """Compute ε of DP-SGD with a noise multiplier, or the least multiplier for ε.

    As in Opacus' loader, 1/⌈N/B⌉ is the sample rate, and an epoch has ⌈N/B⌉ steps. `step_rate`: the
    sample rate of an algorithm whose rounds are single steps.
    """
    if min(records, batch, epochs, rounds) < 1 or batch > records:
        raise BudgetError(
            "records, batch, epochs and rounds must be 1 or more, batch <= records", reason="plan"
        )
    per_epoch = math.ceil(records / batch)
    rate, steps = 1 / per_epoch, per_epoch * epochs * rounds
    if step_rate is not None:
        rate, steps = step_rate, rounds

    def events(σ: float) -> list[DpSgdSteps]:
        return [DpSgdSteps(σ, rate, steps)]

    if epsilon_target is not None and noise_multiplier is None:
        noise_multiplier = _least_noise_multiplier(events, epsilon_target, delta, accountant)
    elif noise_multiplier is None or epsilon_target is not None:
        raise BudgetError(
            "give either ε or the noise", fix="--epsilon or --noise-multiplier", reason="plan"
        )
    spent = epsilon(events(noise_multiplier), delta, accountant=accountant)
    return TrainingBudget(noise_multiplier, spent, delta, rate, steps, records)


def _least_noise_multiplier(
    events: Callable[[float], list[DpSgdSteps]], target: float, delta: float, accountant: Accountant
) -> float:
    """Search the least noise multiplier whose ε is at most the target.

    RDP brackets quickly and never reports less, so PRV searches below its answer.
    """
    high = calibrate(events, target, delta, accountant="rdp", low=0.2, high=1e4)
    return calibrate(
        events, target, delta, accountant=accountant, low=high / 2, high=high, precision=1e-3
    )


def chance_correct(margin: float, classes: int) -> float:
    """Compute the chance that argmax picks the class that leads by `margin` noise stds.

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


def _gaussian_epsilon(plan: PredictionPlan, std: float) -> float:
    return epsilon([GaussianRelease(std / plan.sensitivity, plan.releases)], plan.delta)


Rows = list[tuple[str, str]]
PREDICTIONS = "ensemble predictions, per hospital"


def prediction_rows(plan: PredictionPlan, budget: PredictionBudget) -> Rows:
    """Format the cost of noised predictions, the remaining signal, and advice."""
    rows = [
        ("ε", f"{budget.epsilon:.3f} at δ = {budget.delta:g}"),
        ("exchanges in all", f"{budget.releases}, L2 sensitivity {budget.sensitivity:.2f} each"),
        ("unanimous signal", f"{budget.signal:.2f} on a sum over {plan.parties} parties"),
        ("noise, a trusted centre", f"std {budget.std_central:.1f} (Gaussian)"),
        (
            "noise, distributed",
            f"std {budget.std:.1f} guaranteed with {_count(plan.dropouts, 'dropout')} and "
            f"{_count(plan.colluders, 'colluder')}; {budget.std_all_present:.1f} when all are "
            "present",
        ),
        ("signal to noise", f"{budget.signal_to_noise:.2f}"),
        (
            "a unanimous vote is read right",
            f"{budget.correct:.1%} (guessing: {1 / plan.classes:.1%})",
        ),
    ]
    if not budget.drowned:
        return [*rows, ("useful", "yes")]
    opened = plan.batch * budget.releases
    fewer = f"{budget.opened_useful} predictions opened in all instead of {opened}"
    advice = [
        f"{budget.parties_useful} parties",
        *([fewer] if budget.opened_useful else []),
        f"ε = {budget.epsilon_useful:.3g}",
        "or DP-SGD at each hospital instead",
    ]
    return [*rows, ("useful (90% right) with", f"one of: {'; '.join(advice)}")]


def training_rows(budget: TrainingBudget, unit: str = "record") -> Rows:
    """Format the cost of DP-SGD at one silo."""
    share = f"{100 * budget.relative_noise:.2g} % of the largest possible update, in each value"
    rows = [
        ("ε", f"{budget.epsilon:.3f} at δ = {budget.delta:g} (adding or removing a {unit})"),
        ("noise multiplier", f"{budget.noise_multiplier:.4f}"),
        ("steps", f"{budget.steps} at sample rate {budget.sample_rate:.5g}"),
        ("noise of the run", f"{share}; a pretrained model can learn with {100 * WORKABLE:g} %"),
    ]
    return [*rows, ("TOO MUCH NOISE", f"needed: {budget.advice(unit)}")] if budget.drowned else rows


def training_warning(budget: TrainingBudget, unit: str) -> str | None:
    """Describe noise that is too large for the records; None if it is workable."""
    if not budget.drowned:
        return None
    return (
        f"the model will hardly learn: at ε = {budget.epsilon:.3g} with {budget.records} {unit}s, "
        f"the noise of the run is {100 * budget.relative_noise:.2g} % of the largest possible "
        f"update in each value, and a pretrained model can learn with {100 * WORKABLE:g} %. "
        f"Needed: {budget.advice(unit)}"
    )


def table(title: str, rows: Sequence[tuple[str, str]], columns: int = 80) -> str:
    """Format a title and rows below it; long values are wrapped."""
    width = max(len(name) for name, _ in rows)
    below = f"\n{'':{width + 4}}"
    wide = max(columns - width - 4, 20)
    wrapped = ((name, below.join(wrap(value, wide))) for name, value in rows)
    return title + "".join(f"\n  {name:<{width}}  {value}" for name, value in wrapped)


def _rounded_up(count: float) -> int:
    """Round up to two digits."""
    unit = int(10.0 ** max(math.floor(math.log10(count)) - 1, 0))
    return math.ceil(count / unit) * unit


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class SizedNoise:
    """The noise of every sum of a plan, with its budget."""

    noise: SkellamNoise
    plan: PredictionPlan
    budget: PredictionBudget

    def facts(self) -> dict[str, Any]:
        """Return the public figures that decide if the sums are useful."""
        budget = self.budget
        return {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "releases": budget.releases,
            "std_guaranteed": budget.std,
            "std_all_present": budget.std_all_present,
            "signal": budget.signal,
            "signal_to_noise": budget.signal_to_noise,
            "correct": budget.correct,
            "drowned": budget.drowned,
            "dropouts": self.plan.dropouts,
            "colluders": self.plan.colluders,
            "scale": self.plan.scale,
        }

    def require_useful(self) -> None:
        """Raise BudgetError with the table if the noise hides the signal."""
        if self.budget.drowned:
            text = table(PREDICTIONS, prediction_rows(self.plan, self.budget))
            raise BudgetError(
                f"the noise drowns the signal that the parties agree on\n{text}",
                fix="change the plan as the last line says, or set protection.noise.force = true",
                reason="noise-hides-signal",
            )


def plan_for_settings(
    settings: NoiseSettings,
    *,
    examples: int,
    classes: int,
    releases: int,
    parties: int,
    threshold: int,
) -> PredictionPlan:
    """Make the plan of so many sums of so many predictions each."""
    dropouts = max(0, parties - threshold) if settings.dropouts is None else settings.dropouts
    return PredictionPlan(
        parties=parties,
        classes=classes,
        examples=examples,
        batch=examples,
        rounds=1,
        exchanges=releases,
        delta=settings.delta,
        dropouts=dropouts,
        colluders=settings.colluders,
        scale=settings.scale,
    )


def size_for_settings(settings: NoiseSettings, plan: PredictionPlan) -> SizedNoise:
    """Compute the noise for the settings."""
    target = settings.epsilon if settings.target_epsilon is None else settings.target_epsilon
    return _sized(plan, None if settings.std is not None else target, settings.std)


@lru_cache(maxsize=64)  # members of a simulated run have equal plans
def _sized(plan: PredictionPlan, epsilon: float | None, std: float | None) -> SizedNoise:
    noise = size_noise(plan, epsilon=epsilon, std=std)
    return SizedNoise(noise, plan, plan_predictions(plan, epsilon=epsilon, std=std))
