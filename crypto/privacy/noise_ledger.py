"""Accounts of noised sums: sized before a run, and entered in the ledger before each sum (P8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secure_fl.crypto.privacy.accounting import Adjacency, Event, SkellamRelease, epsilon
from secure_fl.crypto.privacy.ledger import Account, Budget, Ledger, Unit
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.planning import (
    PredictionPlan,
    SizedNoise,
    plan_for_settings,
    size_for_settings,
)
from secure_fl.errors import BudgetError, SettingsError
from secure_fl.protocol.ports import Noise
from secure_fl.settings import NoiseSettings
from secure_fl.thresholds import collusion_bound

UNIT: Unit = "hospital"
ADJACENCY: Adjacency = "add-remove"
ASSUMES = (
    "covers what sums of predictions tell of a party, not the host's own labelled records, nor "
    "scores and losses in logs; public records are public; at most so many parties (`dropouts`, "
    "`colluders`) drop out, and tell the host the noise they added"
)


class NoiseLedger:
    """One party's account of sums whose noise protects the whole party."""

    def __init__(
        self,
        dataset: str,
        settings: NoiseSettings,
        threshold: int,
        *,
        ledger: Ledger | None = None,
        run: str = "",
    ) -> None:
        self.settings, self.ledger, self.run = settings, ledger, run
        self.account = Account(dataset, UNIT, ADJACENCY)
        self.budget = Budget(settings.epsilon, settings.delta)
        self.sized: SizedNoise | None = None  # the one with the weakest signal
        self._threshold = threshold
        self._unkept: list[Event] = []  # without a ledger

    def size(
        self, examples: int, classes: int, releases: int, parties: int
    ) -> tuple[Noise, Mapping[str, Any]]:
        """Size the noise of so many sums, or refuse it."""
        plan = plan_for_settings(
            self.settings,
            examples=examples,
            classes=classes,
            releases=releases,
            parties=parties,
            threshold=self._threshold,
        )
        self._require_masked(plan)
        sized = size_for_settings(self.settings, plan)
        if not self.settings.force:
            sized.require_useful()
        self._require_room(sized.noise, releases)
        known = (sized, *([self.sized] if self.sized else []))
        self.sized = min(known, key=lambda s: s.budget.signal_to_noise)
        return sized.noise, sized.facts()

    def enter(self, noise: Noise, releases: int, round: int) -> None:
        """Reserve `releases` sums under this noise, or raise BudgetError."""
        if not isinstance(noise, SkellamNoise):
            raise BudgetError(
                f"the privacy cost of {type(noise).__name__} is unknown",
                fix="use crypto.privacy.noise.SkellamNoise",
                reason="unknown-event",
            )
        event = noise.event(releases)
        account = Account(self.account.dataset, UNIT, noise.adjacency)
        if self.ledger is not None:
            self.ledger.reserve(event, account, self.budget, run=self.run, round=round or None)
            self.ledger = self.ledger.at_head()
            return
        if account != self.account:
            raise BudgetError(
                f"this account is for {ADJACENCY} neighbours, not {noise.adjacency}",
                reason="adjacency",
            )
        self._require([*self._unkept, event], f"{releases} more sums")
        self._unkept.append(event)

    def spent(self) -> float | None:
        """Return ε of all events of this account; None without any."""
        return self._epsilon(self._events())

    def statement(self) -> dict[str, Any]:
        """Return the spending of this run, and ε of the account with all earlier runs."""
        mine = self._events(self.run)
        return {
            "epsilon": self.spent(),
            "epsilon_of_this_run": self._epsilon(mine),
            "releases": sum(event.count for event in mine if isinstance(event, SkellamRelease)),
            "durable": self.ledger is not None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger's head for checkpoints."""
        return {"head": None if self.ledger is None else self.ledger.pinned_hex}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; refuse a ledger that lacks events from before it."""
        if self.ledger is not None:
            self.ledger = self.ledger.pinned_to(state, self.account)

    def _require_masked(self, plan: PredictionPlan) -> None:
        """Refuse colluders that masks do not withstand, if a share is less than all noise."""
        threshold = min(self._threshold, plan.parties)
        most = max(0, collusion_bound(plan.parties, threshold).lying)
        if plan.parties - plan.dropouts - plan.colluders > 1 and plan.colluders > most:
            raise SettingsError(
                f"with a threshold of {threshold}, {plan.colluders} colluders and a lying "
                f"coordinator could open the predictions of single hospitals of {plan.parties}, "
                "which have a share of the noise only",
                fix=f"set protection.noise.colluders to {most} at most, or raise "
                "protection.threshold",
                field="protection.noise.colluders",
            )

    def _require_room(self, noise: SkellamNoise, releases: int) -> None:
        """Refuse a run that could not be finished, before anything is sent."""
        known = noise.event()
        done = sum(
            event.count
            for event in self._events(self.run)
            if isinstance(event, SkellamRelease)
            and (event.mu, event.l1, event.l2) == (known.mu, known.l1, known.l2)
        )
        if releases > done:
            left = noise.event(releases - done)
            self._require([*self._events(), left], f"the {releases - done} sums of this run")

    def _require(self, events: Sequence[Event], what: str) -> None:
        after, budget = epsilon(events, self.budget.delta), self.budget
        if not after <= budget.epsilon:
            raise BudgetError(
                f"the privacy budget is ε = {budget.epsilon:g} at δ = {budget.delta:g} per "
                f"{UNIT}; {self.spent() or 0:.4g} is spent, and {what} would make it {after:.4g}",
                fix="plan fewer rounds or more noise with `secure-fl budget`; a larger budget is a "
                "decision of those who answer for the data. Nothing was sent",
                party=self.account.dataset,
                reason="spent",
            )

    def _epsilon(self, events: Sequence[Event]) -> float | None:
        return epsilon(events, self.budget.delta) if events else None

    def _events(self, run: str | None = None) -> list[Event]:
        """Return all events of this account, or those of one run."""
        if self.ledger is None:
            return list(self._unkept)
        return self.ledger.events(self.account, run)


def document(settings: NoiseSettings, parties: Mapping[str, NoiseLedger]) -> dict[str, Any]:
    """Return the section of a result about noise on predictions; `parties` excludes the host."""
    statements = [account.statement() for account in parties.values()]
    sized = next((account.sized for account in parties.values() if account.sized), None)
    facts = sized.facts() if sized else {}
    figures = ("std_guaranteed", "std_all_present", "signal", "signal_to_noise", "correct")
    limits = ("dropouts", "colluders", "scale")
    return {
        "unit": UNIT,
        "adjacency": ADJACENCY,
        "mechanism": "distributed Skellam",
        "epsilon": _most(s["epsilon"] for s in statements),
        "epsilon_of_this_run": _most(s["epsilon_of_this_run"] for s in statements),
        "delta": settings.delta,
        "budget": settings.epsilon,
        "releases": max((s["releases"] for s in statements), default=0),
        "drowned": facts.get("drowned"),
        "durable": all(s["durable"] for s in statements),
        "assumes": ASSUMES,
    } | {key: facts.get(key) for key in (*figures, *limits)}


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
