"""Small hospitals with keys and a signed roster, and a hub between them, all in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from secure_fl import corpora
from secure_fl.algorithms.base import Algorithm
from secure_fl.config.build import RunSettings
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.roster import Member, make_roster
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog, Listener
from secure_fl.federation.keys import make_keys
from secure_fl.pilot.lead import RunLeader
from secure_fl.pilot.seat import HospitalProcess
from secure_fl.policy.rules import Plan
from secure_fl.protocol.frames import Frame
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings

LABELS = ("ade", "no-ade")


def plan_of(algorithm: Algorithm, *, layers: int = 1, length: int = 32, run: str = "run") -> Plan:
    """Training of a small built-in model on built-in notes."""
    return Plan(
        run=RunSettings(name=run),
        algorithm=algorithm,
        task=TaskSettings(labels=LABELS, max_length=length),
        model=ModelSettings(layers=layers),
        training=TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu"),
        dataset="notes",
    )


def names_of(parties: int) -> tuple[str, ...]:
    """What they are called."""
    return tuple(f"hospital-{number}" for number in range(1, parties + 1))


class Hospitals:
    """Seats that approve of anything, one after the other in this process."""

    def __init__(self, folder: Path, plan: Plan, records: int, parties: int = 3) -> None:
        self.plan = plan
        written = corpora.make("ade", parties=parties, seed=0, size=records)
        silos = {
            name: Silo(name, made.train, made.dev, made.test)
            for name, made in zip(names_of(parties), written, strict=True)
        }
        self.me = Identity.generate("coordinator")
        keys = make_keys(plan.protection.mode, list(silos), None)
        cards = tuple(Member(n, "party", None, keys[n].identity.public) for n in silos)
        self.roster = make_roster(cards, self.me.public)
        self.seats = {
            name: HospitalProcess(
                keys[name],
                self.roster,
                lambda plan: None,
                lambda plan, name=name: silos[name],  # type: ignore[misc]
                folder / name,
            )
            for name in silos
        }

    def connected(self) -> frozenset[str]:
        """All of them, always."""
        return frozenset(self.seats)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Each answers at once."""
        for party, frame in frames.items():
            yield party, self.seats[party].step(frame)

    def lead(self, listen: Listener | None = None) -> RunLeader:
        """What leads a run of the plan to its end."""
        return RunLeader(self, self.me, self.roster, self.plan, EventLog("coordinator", listen))
