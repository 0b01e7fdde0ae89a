"""Noised sums in the ledger: sized before the run, entered before they are computed (P8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from secure_fl.crypto.privacy.accounting import Event, SkellamRelease, decode_event, epsilon
from secure_fl.crypto.privacy.ledger import Account, Adjacency, Budget, Ledger, Unit
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.planning import Sized, planned, sized
from secure_fl.errors import BudgetError
from secure_fl.protocol.ports import Noise
from secure_fl.settings import NoiseSettings

UNIT: Unit = "hospital"
ADJACENCY: Adjacency = "add-remove"
ASSUMES = (
    "covers what sums of predictions tell of a party, not the host's own labelled records, nor "
    "scores and losses in logs; public records are public; at most so many parties (`dropouts`, "
    "`colluders`) drop out, and tell the host the noise they added"
)


class NoiseLedger:
    """One party's account for sums that protect it as a whole."""

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
        self.sized: Sized | None = None  # of several, the one whose signal is weakest
        self._threshold = threshold
        self._unkept: list[Event] = []  # without a ledger

    def size(
        self, examples: int, classes: int, releases: int, parties: int
    ) -> tuple[Noise, Mapping[str, Any]]:
        """Size the noise of so many sums, or refuse it."""
        plan = planned(
            self.settings,
            examples=examples,
            classes=classes,
            releases=releases,
            parties=parties,
            threshold=self._threshold,
        )
        found = sized(self.settings, plan)
        if not self.settings.force:
            found.require_useful()
        self._require_room(found.noise, releases)
        weakest = (found, *([self.sized] if self.sized else []))
        self.sized = min(weakest, key=lambda s: s.budget.signal_to_noise)
        return found.noise, found.facts()

    def enter(self, noise: Noise, releases: int, round: int) -> None:
        """Reserve `releases` sums under this noise, or raise BudgetError."""
        if not isinstance(noise, SkellamNoise):
            raise BudgetError(
                f"what {type(noise).__name__} spends is not known",
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
        """ε of everything this account ever reserved; None: nothing was released under noise."""
        return self._epsilon(self._events())

    def statement(self) -> dict[str, Any]:
        """What this run reserved at this party, and the account's ε with all before."""
        mine = self._events(self.run)
        return {
            "epsilon": self.spent(),
            "epsilon_of_this_run": self._epsilon(mine),
            "releases": sum(event.count for event in mine if isinstance(event, SkellamRelease)),
            "durable": self.ledger is not None,
        }

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints: the ledger's head, by which an older copy of it is known."""
        head = self.ledger.pinned if self.ledger is not None else None
        return {"head": None if head is None else head.hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; refuse a ledger that lacks what was spent when it was saved."""
        if self.ledger is not None and (head := state.get("head")) is not None:
            self.ledger = replace(self.ledger, pinned=bytes.fromhex(head))
            self.ledger.held()

    def _require_room(self, noise: SkellamNoise, releases: int) -> None:
        """Refuse a run that could not be finished, before anything of it is sent."""
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
        """All that was reserved for this account, or by one run."""
        if self.ledger is None:
            return list(self._unkept)
        chain = self.ledger.held()
        if chain is None:
            return []
        mine = ("reserved", self.account.dataset, UNIT)
        return [
            decode_event(e.event)
            for e in chain.entries
            if (e.state, e.dataset, e.unit) == mine and run in (None, e.run)
        ]


def document(settings: NoiseSettings, parties: Mapping[str, NoiseLedger]) -> dict[str, Any]:
    """What a result says about noise on predictions; `parties` leaves out the host."""
    said = [account.statement() for account in parties.values()]
    found = next((account.sized for account in parties.values() if account.sized), None)
    facts = found.facts() if found else {}
    figures = ("std_guaranteed", "std_all_present", "signal", "signal_to_noise", "correct")
    limits = ("dropouts", "colluders", "scale")
    return {
        "unit": UNIT,
        "adjacency": ADJACENCY,
        "mechanism": "distributed Skellam",
        "epsilon": _most(one["epsilon"] for one in said),
        "epsilon_of_this_run": _most(one["epsilon_of_this_run"] for one in said),
        "delta": settings.delta,
        "budget": settings.epsilon,
        "releases": max((one["releases"] for one in said), default=0),
        "drowned": facts.get("drowned"),
        "durable": all(one["durable"] for one in said),
        "assumes": ASSUMES,
    } | {key: facts.get(key) for key in (*figures, *limits)}


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
