"""A pilot in one process: hospitals that restart from disk, and a coordinator that gathers them.

A run from its invitation to its result:

    pilot = local_pilot(folder)
    pilot.lead().run()
    pilot.model("hospital-1")
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator.assembly import links_to
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.data.silo import Silo
from secure_fl.errors import SecureFLError
from secure_fl.events import Event, EventLog, Listener
from secure_fl.federation.assembly import make_keys
from secure_fl.federation.run_feature import SiteLimits
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.hospital import Approved, HospitalProcess
from secure_fl.pilot.site_run import HospitalContext, Records
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Frame, Link
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.harness import Faults, misbehave
from secure_fl.testing.hospitals import LABELS, silos

Approve = Callable[[Plan], None]
Approvals = Callable[[Plan], list[Approved]]


def plan_of(algorithm: Algorithm | None = None, **changes: Any) -> Plan:
    """What `testing.hospitals.small` trains, as a plan."""
    given = {
        "task": TaskSettings(labels=LABELS, max_length=32),
        "model": ModelSettings(layers=1),
        "training": TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu"),
    } | changes
    return Plan(algorithm=algorithm or FedAvg(rounds=2), dataset="notes", **given)


@dataclass
class LocalPilot:
    """Hospitals with keys and folders, their roster, and the hub between them.

    `before` and `after` are called when a frame reaches a party, and when it was answered; they may
    `kill` it, and `start` it again.
    """

    folder: Path
    plan: Plan
    members: Mapping[str, Silo]
    approve: Mapping[str, Approve] = field(default_factory=dict)
    records: Mapping[str, Records] = field(default_factory=dict)
    listeners: Mapping[str, Listener] = field(default_factory=dict)
    approvals: dict[str, Approvals] = field(default_factory=dict)
    faults: dict[str, Faults] = field(default_factory=dict)  # the steps at which parties misbehave
    threshold: int | None = None
    goes_back: bool = False  # what operators say
    sharing: frozenset[str] = frozenset()  # whose rules share their own scores
    events: list[dict[str, Any]] = field(default_factory=list)  # as the events file holds them
    processes: dict[str, HospitalProcess] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    exchanges: int = 0
    before: Callable[[LocalPilot, str], None] = lambda pilot, party: None
    after: Callable[[LocalPilot, str], None] = lambda pilot, party: None

    def __post_init__(self) -> None:
        self.coordinator = Identity.generate("coordinator")
        host = next((s.name for s in self.members.values() if s.role == "host"), None)
        self.keys = make_keys(self.plan.protection.mode, list(self.members), host)
        cards = tuple(
            Member(name, silo.role, silo.tier, self.keys[name].identity.public)
            for name, silo in self.members.items()
        )
        self.roster: Roster = make_roster(cards, self.coordinator.public, threshold=self.threshold)
        for name in self.members:
            self.start(name)

    def start(self, name: str) -> None:
        """A hospital's process begins, or begins again: all that it knows is on disk."""
        self.down.discard(name)
        self.processes[name] = HospitalProcess(
            HospitalContext(
                self.keys[name],
                self.roster,
                self.records.get(name, lambda plan: self.members[name]),
                self.folder / name,
                self.listener(name),
                limits=SiteLimits(options={"share_scores": name in self.sharing}),
                goes_back=self.goes_back,
            ),
            self.approve.get(name, lambda plan: None),
            approvals=self.approvals.get(name, lambda plan: []),
        )

    def listener(self, name: str) -> Listener:
        """What hears the events of a hospital's process."""
        return self.listeners.get(name, self.record)

    def record(self, event: Event) -> None:
        """Keep an event's document."""
        self.events.append(event.document())

    def kill(self, name: str) -> None:
        """A hospital's process ends, wherever it is."""
        self.down.add(name)
        self.processes[name].close()

    def restart(self, name: str) -> None:
        """A hospital's process ends, and begins again before the hub notices."""
        self.kill(name)
        self.start(name)

    def close(self) -> None:
        """Close the folders of all hospitals."""
        for process in self.processes.values():
            process.close()

    def finished(self) -> set[str]:
        """The hospitals that ended the run."""
        return {name for name, process in self.processes.items() if process.done}

    def connected(self) -> frozenset[str]:
        """Who is up."""
        return frozenset(self.members) - self.down

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Carry frames to those who are up; one that refuses its frame does not answer."""
        self.exchanges += 1
        for party, frame in frames.items():
            self.before(self, party)
            if party in self.down:
                continue
            try:
                answer = self.processes[party].step(frame)
            except SecureFLError as error:
                self.events.append({"event": "unanswered", "party": party, "why": str(error)})
                continue
            if party in self.faults:
                answer = misbehave(answer, self.keys[party].identity, self.faults[party])
            self.after(self, party)
            if party not in self.down:
                yield party, answer

    def lead(self, **options: Any) -> RunLeader:
        """What leads a run of the plan to its end; options are `RunLeader`'s."""
        recorder = EventLog("coordinator", self.record)
        return RunLeader(
            self, self.coordinator, self.roster, self.plan, recorder, sleep=self.nap, **options
        )

    def nap(self, seconds: float) -> None:
        """Who is down comes back while the coordinator waits."""
        for name in sorted(self.down):
            self.start(name)

    def link(self, run: bytes, name: str) -> Link:
        """A coordinator's end of a link to a hospital."""
        card = self.roster.member(name).identity
        return links_to({name: card}, self.coordinator, run)[name]

    def seen(self, kind: str, party: str = "") -> list[dict[str, Any]]:
        """The events of a kind, in order, of all or of one party."""
        found = [event for event in self.events if event["event"] == kind]
        return [event for event in found if event["party"] == party] if party else found

    def model(self, name: str) -> bytes:
        """The newest checkpoint of a hospital: its weights, as they lie on disk."""
        rounds = sorted((self.folder / name / "run").rglob("checkpoints/round-*"))
        return rounds[-1].read_bytes()


def at_frames(
    party: str, frames: Container[int], act: Callable[[LocalPilot, str], object]
) -> Callable[[LocalPilot, str], None]:
    """Make a hook that acts at some of the frames that a party gets, counted from 1."""
    count = itertools.count(1)

    def hook(town: LocalPilot, name: str) -> None:
        if name == party and next(count) in frames:
            act(town, name)

    return hook


def local_pilot(
    folder: Path, plan: Plan | None = None, count: int = 3, **options: Any
) -> LocalPilot:
    """A pilot of some small hospitals."""
    members = {silo.name: silo for silo in silos(parties=count, size=16)}
    return LocalPilot(folder, plan or plan_of(), members, **options)


def repeats_round_two(folder: Path, plan: Plan) -> LocalPilot:
    """Run a pilot in which hospital-3 is killed after its upload, and all repeat round 2."""
    made, killed = local_pilot(folder, plan), list[str]()

    def after(town: LocalPilot, party: str) -> None:
        notes = list((folder / "hospital-1").rglob("opened/*/*.jsonl"))
        opened = any('"round": 2' in file.read_text() for file in notes)
        if opened and party == "hospital-3" and not killed:
            killed.append(party)
            town.kill(party)

    made.after = after
    made.lead(patience=50).run()
    assert killed and len(made.seen("gathered")) == 2
    return made
