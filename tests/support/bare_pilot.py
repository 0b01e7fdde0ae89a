"""Whole runs of a pilot in one process, with hand-written programs instead of models.

Everything but the model is real: the coordinator's process and gatherings, the hospitals' processes
with their memory and checkpoints on disk, restarts and returns.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, make_roster
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.errors import SecureFLError
from secure_fl.events import Event, EventLog
from secure_fl.federation.assembly import PartyContext, join_run
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.party.cohort import Cohort
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.gathering import HubEngine
from secure_fl.pilot.hospital import HospitalProcess, Invited
from secure_fl.pilot.plan import rules_of_roster
from secure_fl.pilot.progress import EarlierEvents
from secure_fl.pilot.site_memory import OpenedQuestions, RunInputs
from secure_fl.pilot.site_run import HospitalContext, apply_evidence
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Frame, Link
from secure_fl.runs.party_checkpoints import PartyCheckpoints

Program = Callable[[Cohort, "BareRun"], Coroutine[Any, Any, None]]


class Counter:
    """The state of a program: it has no models."""

    def __init__(self) -> None:
        self.rounds = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore the state."""
        self.rounds = state["rounds"]


class BareRun:
    """One run at one hospital, with the interface of `SiteRun`."""

    def __init__(
        self,
        context: HospitalContext,
        plan: Plan,
        members: tuple[str, ...],
        link: Link,
        program: Program,
    ) -> None:
        self.context, self.link, self.name = context, link, plan.run.name
        identity = context.keys.identity
        self.me = me = identity.name
        self.recorder = EventLog(me, context.listen)
        self.error_logged = self.suspects = False
        inputs = RunInputs(plan.run.name, plan.dataset, plan.run.seed)
        context.memory.begin(inputs)
        context.memory.require_same_sites(plan.run.name, context.roster)
        context.memory.note_sites(plan.run.name, context.roster)
        folder = context.folder / plan.run.name / "parties" / me / "checkpoints"
        self.kept = PartyCheckpoints(folder, Counter(), context.memory.opened(inputs))
        apply_evidence(self.kept, context, members)
        rules = replace(rules_of_roster(context.roster, plan, members), goes_back=True)
        noise = None
        if plan.protection.noise is not None:
            ledger = None if me == rules.host else open_ledger(context.ledger / me, me, identity)
            noise = NoiseLedger(
                me, plan.protection.noise, rules.threshold, ledger=ledger, run=self.name
            )

        async def run(cohort: Cohort) -> None:
            await program(cohort, self)

        self.session = join_run(
            run,
            PartyContext(
                context.keys,
                link,
                rules,
                plan.protection,
                recorder=self.recorder,
                checkpoints=self.kept,
                noise=noise,
                hooks=(OpenedQuestions(context.ledger, context.cards),),
            ),
        )

    def note_approvals(self, approvals: object) -> None:
        """There are none."""

    def finish(self) -> None:
        """There is no model to write."""

    def close(self) -> None:
        """There is nothing to close."""


class BareHospital(HospitalProcess):
    """A hospital's process that runs a hand-written program."""

    town: BarePilot

    def _run(self, invited: Invited, members: tuple[str, ...], link: Link) -> Any:
        assert isinstance(invited.plan, Plan)
        program = self.town.programs[self.name]
        run = BareRun(self._context, invited.plan, members, link, program)
        self.town.runs.append((self.name, run))
        return run


@dataclass
class BarePilot:
    """Hospitals with keys and folders, their roster, and the hub between them."""

    folder: Path
    plan: Plan
    keys: Mapping[str, PartyKeys]
    host: str | None
    programs: Mapping[str, Program]
    events: list[Event] = field(default_factory=list)
    runs: list[tuple[str, BareRun]] = field(default_factory=list)
    processes: dict[str, BareHospital] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.coordinator = Identity.generate("coordinator")
        cards = tuple(
            Member(name, "host" if name == self.host else "party", None, held.identity.public)
            for name, held in self.keys.items()
        )
        self.roster = make_roster(cards, self.coordinator.public)
        for name in self.keys:
            self.start(name)

    def start(self, name: str, *, wiped: bool = False) -> None:
        """Start a hospital's process, or start it again from its folder, or without its runs."""
        self.down.discard(name)
        if wiped:
            shutil.rmtree(self.folder / name / self.plan.run.name, ignore_errors=True)
        context = HospitalContext(
            self.keys[name],
            self.roster,
            lambda plan: None,  # type: ignore[arg-type,return-value]
            self.folder / name,
            self.events.append,
        )
        self.processes[name] = BareHospital(context, lambda plan: None)
        self.processes[name].town = self

    def connected(self) -> frozenset[str]:
        """Return the connected members."""
        return frozenset(self.keys) - self.down

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Step the hospitals that are up; one that refuses its frame does not answer."""
        for party, frame in frames.items():
            if party in self.down:
                continue
            try:
                answer = self.processes[party].step(frame)
            except SecureFLError:
                continue
            yield party, answer

    def lead(self, hub: HubEngine) -> RunLeader:
        """Return a leader of the plan, which knows the events of earlier ones."""
        told = [event for event in self.events if event.party == "coordinator"]
        return RunLeader(
            hub,
            self.coordinator,
            self.roster,
            self.plan,
            EventLog("coordinator", self.events.append),
            patience=1.0,
            earlier=EarlierEvents.read(told),
            sleep=lambda seconds: None,
        )
