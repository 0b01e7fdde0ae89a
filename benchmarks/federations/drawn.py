"""What a seed chooses of a storm: the lie and its teller, and who is killed when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.federations.lies import AT_GATHERINGS, BY_MEMBERS, COORDINATOR, LIES
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.policy.rules import Plan
from secure_fl.settings import DPSettings, ProtectionSettings
from tests.support.local_pilot import plan_of

ROUNDS, KILLS = 3, 3
EXCHANGES = 10 * ROUNDS  # of a run that nothing happens to, about
EPSILON = 60.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """One storm, before it begins; lies take turns, all else is random."""

    liar: str  # a member, or COORDINATOR
    lie: str
    first: int  # of its chances, the first that it takes
    once: bool
    private: bool  # whether records are protected by DP-SGD with a budget
    kills: Sequence[tuple[int, str]]  # after so many exchanges, whom

    @classmethod
    def of(
        cls, seed: int, members: Sequence[str], mortal: Sequence[str], within: int = EXCHANGES
    ) -> Drawn:
        """Draw a storm over these members, in which these may be killed within so many exchanges.

        Runs that go wrong have more of them than others: a kill that falls behind the end is none.
        """
        rng = random.Random(seed)  # noqa: S311 - a seed chooses attacks
        lie = LIES[seed % len(LIES)]
        late = lie in AT_GATHERINGS  # about rounds that have ended: somebody has to be killed then
        liar = rng.choice(members) if lie in BY_MEMBERS else COORDINATOR
        earliest = within // 3 if late else 1
        kills = sorted(
            (rng.randint(earliest, within), rng.choice(mortal))
            for _ in range(rng.randint(int(late), KILLS))
        )
        first = 1 if late else rng.randint(1, 2 * ROUNDS)
        return cls(liar, lie, first, rng.random() < 0.5, rng.random() < 0.5, kills)

    def plan(self) -> Plan:
        """What is trained."""
        plan = plan_of(FedAvg(rounds=ROUNDS), protection=ProtectionSettings(min_cohort=3))
        if not self.private:
            return plan
        dp = DPSettings(epsilon=EPSILON, noise_multiplier=1.0, delta=1e-3, accountant="rdp")
        return plan.model_copy(update={"training": plan.training.model_copy(update={"dp": dp})})
