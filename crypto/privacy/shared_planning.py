"""Plans of steps with shared noise: both ε, the noise against the signal, and advice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon
from secure_fl.crypto.privacy.planning import WEAK, WORKABLE, Rows
from secure_fl.crypto.privacy.shared_noise import SharedNoise
from secure_fl.crypto.privacy.training_account import multiplier_for
from secure_fl.settings import DPSettings

# Points that a probe loses to noise, times its signal: an upper estimate from two tasks with 600
# records at each of 4 hospitals (benchmarks/results/dp).
LOST_ACCURACY, LOST_AUROC = 900.0, 3000.0
NOTICED = 2.0  # points of AUROC
HOPELESS = 10.0  # points of AUROC, from which a probe under DP is not worth its training
LEVEL = 4000.0  # signal of 8,000 records at ε = 8: adapters of two layers were level with a probe
TOO_MUCH = "TOO MUCH NOISE"
STEPS, SAMPLED = 60, 0.1  # of both methods; records of a step of adapters


@dataclass(frozen=True, slots=True)
class Suited:
    """The methods that suit a number of records, hospitals and an ε, by their noise."""

    records: int  # of each hospital
    hospitals: int
    epsilon: float
    lost_shared: float  # points of AUROC that a probe loses to shared noise, at most
    lost_local: float  # the same with the noise of each hospital alone
    adapters: float  # signal of adapters with shared noise

    @classmethod
    def of(cls, records: int, hospitals: int, epsilon: float) -> Suited:
        """Estimate by the noise of 60 steps, for one colluder and no dropout."""
        dp = DPSettings(epsilon=epsilon, noise="shared", dropouts=0, colluders=1)
        units = records * hospitals
        probe = SharedPlan(dp, hospitals, 0, units, 1.0, STEPS, probe=True)
        alone = replace(probe, dp=dp.model_copy(update={"colluders": hospitals - 1}))
        adapters = replace(probe, rate=SAMPLED, probe=False)
        shared, local = LOST_AUROC / probe.signal, LOST_AUROC / alone.signal
        return cls(records, hospitals, epsilon, shared, local, adapters.signal)

    @property
    def method(self) -> str:
        """Name the method, with the points that its noise costs if they are noticed."""
        if self.lost_shared > HOPELESS:
            return "more records"
        if self.lost_shared > NOTICED:
            return f"shared probe (-{self.lost_shared:.0f})"
        probe = "any probe" if self.lost_local <= NOTICED else "shared probe"
        return f"{probe}, LoRA" if self.adapters >= LEVEL else probe


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """The steps of a run with shared noise over all hospitals' units."""

    dp: DPSettings
    hospitals: int
    dropouts: int
    units: int
    rate: float
    steps: int
    probe: bool

    def noise(self, colluders: int | None = None) -> SharedNoise:
        """Return the noise of a step, of one value; the plan's colluders are subtracted."""
        c = self.dp.colluders if colluders is None else colluders
        return SharedNoise(self.multiplier, 1, 1, self.hospitals, self.dropouts, c)

    @property
    def multiplier(self) -> float:
        """σ that is guaranteed with the plan's dropouts and colluders."""
        return self.dp.noise_multiplier or multiplier_for(self.dp, self.rate, self.steps)

    def epsilon(self, colluders: int) -> float | None:
        """ε if so many hospitals reveal their noise; None: nobody is left to add noise."""
        planned = self.noise()
        honest = self.hospitals - self.dropouts - colluders
        if honest < 1:
            return None
        σ = self.multiplier * math.sqrt(honest / planned.honest)
        return epsilon(
            [DpSgdSteps(σ, self.rate, self.steps)], self.dp.delta, accountant=self.dp.accountant
        )

    @property
    def signal(self) -> float:
        """All units' bounds over the noise of all steps together, if nobody drops out."""
        return self.units * math.sqrt(self.steps) * self.rate / self.noise().present

    @property
    def weak(self) -> bool:
        """True if the noise costs much accuracy."""
        if self.probe:
            return LOST_AUROC / self.signal > NOTICED
        return 1 / self.signal > WORKABLE

    def rows(self) -> Rows:
        """Format both ε, the noise, its price, and what would lower it."""
        c, d, unit = self.dp.colluders, self.dropouts, self.dp.unit
        others = {c + 1, self.hospitals - d - 1} - {c}
        more = {k: self.epsilon(k) for k in sorted(others) if k > c}
        members = self.epsilon(max(1, c))  # every hospital knows its own noise
        rows = [
            (
                "ε towards other hospitals",
                ("no protection" if members is None else f"{members:.3f}")
                + f" at δ = {self.dp.delta:g} (adding or removing a {unit})",
            ),
            ("ε towards readers of the model", f"{self.epsilon(0):.3f}"),
            (
                "ε if more reveal their noise",
                "; ".join(f"{ε:.3g} with {k}" for k, ε in more.items() if ε is not None)
                or "no protection",
            ),
            (
                "noise multiplier",
                f"{self.multiplier:.4g} with {d} dropout{'s' * (d != 1)} and {c} "
                f"colluder{'s' * (c != 1)}; {self.noise().present:.4g} when all are present",
            ),
            ("steps", f"{self.steps}, each over {100 * self.rate:g} % of {self.units} {unit}s"),
        ]
        return [*rows, ("loss to noise", self._price()), *self._advice()]

    def warning(self) -> str | None:
        """Describe noise that leaves little to learn; None if the plan can work."""
        for title, choices in self._advice():
            if title == TOO_MUCH:
                return (
                    f"at ε = {self.epsilon(self.dp.colluders):.3g}, the noise is too large "
                    f"for {self.units} {self.dp.unit}s of {self.hospitals} hospitals. Loss to "
                    f"noise: {self._price()}. Needed: one of {choices}"
                )
        return None

    def _price(self) -> str:
        if self.probe:
            accuracy, auroc = (_points(lost / self.signal) for lost in (LOST_ACCURACY, LOST_AUROC))
            return f"about {accuracy} points of accuracy, {auroc} of AUROC"
        return (
            f"{100 / self.signal:.2g} % of the largest possible update, in each value; a "
            f"pretrained model can learn with {100 * WORKABLE:g} %"
        )

    def _advice(self) -> Rows:
        if not self.weak:
            return []
        price = LOST_AUROC / NOTICED if self.probe else 1 / WORKABLE
        factor = price / self.signal
        choices = [
            f"{math.ceil(factor * self.hospitals)} hospitals",
            f"{math.ceil(factor * self.units)} {self.dp.unit}s in all",
        ]
        if (ε := (self.dp.target_epsilon or self.dp.epsilon) * factor) <= WEAK:
            choices.append(f"ε = {ε:.2g}")
        if self.dropouts:
            fewer = replace(self, dropouts=0)
            choices.append(f"dropouts = 0 ({fewer.signal / self.signal - 1:.0%} less noise)")
        if not self.probe:
            choices.append('algorithm.name = "probe"')
        return [(TOO_MUCH if factor > 5 else "would help", "; ".join(choices))]


def _points(lost: float) -> str:
    """Round points of a score to one digit; guessing has lost all 50."""
    return "50 or more" if lost >= 50 else f"{float(f'{lost:.1g}'):g}"
