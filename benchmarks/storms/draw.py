"""The choices of one storm by its seed: the liar, the lie, and the kills."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.storms.lies import AT_GATHERINGS, BY_MEMBERS, COORDINATOR, LIES
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.policy.plan import Plan
from secure_fl.settings import DPSettings, ProtectionSettings
from tests.support.local_pilot import plan_of

ROUNDS, KILLS = 3, 3
EXCHANGES = 10 * ROUNDS  # of an undisturbed run, about
EPSILON = 60.0


@dataclass(frozen=True, slots=True)
class StormDraw:
    """One storm before it begins; lies take turns, all other choices are random."""

    liar: str  # a member, or COORDINATOR
    lie: str
    first: int  # the first of its chances that it takes
    once: bool
    private: bool  # by DP-SGD with a budget
    kills: Sequence[tuple[int, str]]  # number of exchanges, and the machine

    @classmethod
    def of(
        cls, seed: int, members: Sequence[str], mortal: Sequence[str], within: int = EXCHANGES
    ) -> StormDraw:
        """Draw a storm over these members; `mortal` machines may be killed within some exchanges.

        Disturbed runs have more exchanges; a kill after the end does not happen.
        """
        rng = random.Random(seed)  # noqa: S311 - a seed chooses attacks
        lie = LIES[seed % len(LIES)]
        late = lie in AT_GATHERINGS  # about finished rounds, so some machine has to be killed
        liar = rng.choice(members) if lie in BY_MEMBERS else COORDINATOR
        earliest = within // 3 if late else 1
        kills = sorted(
            (rng.randint(earliest, within), rng.choice(mortal))
            for _ in range(rng.randint(int(late), KILLS))
        )
        first = 1 if late else rng.randint(1, 2 * ROUNDS)
        return cls(liar, lie, first, rng.random() < 0.5, rng.random() < 0.5, kills)

    def plan(self) -> Plan:
        """Make the plan of the run."""
        plan = plan_of(FedAvg(rounds=ROUNDS), protection=ProtectionSettings(min_cohort=3))
        if not self.private:
            return plan
        dp = DPSettings(epsilon=EPSILON, noise_multiplier=1.0, delta=1e-3, accountant="rdp")
        return plan.model_copy(update={"training": plan.training.model_copy(update={"dp": dp})})
