"""A pilot with a host: identities, a ceremony, kits, rules of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from secure_fl.cli.join import hospital_of
from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, make_roster
from secure_fl.crypto.keys.vault import Cost
from secure_fl.crypto.sealing import secret
from secure_fl.data.silo import Silo
from secure_fl.data.splits import write
from secure_fl.events import EventLog
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.hospital import HospitalProcess
from secure_fl.pilot.kits import load_kit, write_kits
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import load_site
from secure_fl.protocol.frames import Frame
from secure_fl.testing.hospitals import HOST, members
from tests.support.event_documents import into

PASSPHRASE = "correct horse battery"
HUB = "hub"
SITE = """\
[site]
algorithms = ["{algorithm}"]
caveats = ["{algorithm}"]
models = ["tiny"]
datasets = ["notes"]
rosters = ["{roster}"]
hosts = ["{host}"]
may_be_host = {may}
protection = "{protection}"
until = {until}
{rules}
[site.dp]
required = false
[site.noise]
required = false
[[data.set]]
name = "notes"
train = "train.jsonl"
dev = "dev.jsonl"
test = 0.0
public = "public.jsonl"
[keys]
folder = "keys"
"""


@dataclass
class Clinic:
    """Machines in folders; a seat at each is made from its files alone, as `join` does."""

    folder: Path
    plan: Plan
    port: int = 8443
    rules: str = ""  # more lines of [site]
    events: list[dict[str, Any]] = field(default_factory=list)
    processes: dict[str, HospitalProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        silos = {silo.name: silo for silo in members()}
        rings = {name: self._ring(name) for name in (HUB, *silos)}
        cards = {name: ring.identity() for name, ring in rings.items()}
        roster = make_roster(
            tuple(Member(n, silo.role, None, cards[n].public) for n, silo in silos.items()),
            cards[HUB].public,
            days=30,
        )
        for name in silos:
            roster = roster.sign(cards[name])
        bundles = rings["hospital-1"].ceremony(roster, secret.generate().to_bytes())
        for name, bundle in bundles.items():
            rings[name].accept(roster, bundle)
        self.roster, self.coordinator = roster, cards[HUB]
        write_kits(roster, self.folder / "kits", ("localhost", "127.0.0.1"), self.port)
        for silo in silos.values():
            self._site(silo)
        write_atomic(self.folder / HUB / "plan.toml", write_plan(self.plan).encode())

    def _ring(self, name: str) -> KeyRing:
        ring = KeyRing(self.folder / name / "keys", PASSPHRASE, Cost(log_n=10))
        ring.create(Identity.generate(name))
        write_atomic(self.folder / name / "passphrase", PASSPHRASE.encode(), mode=0o600)
        return ring

    def _site(self, silo: Silo) -> None:
        place = self.folder / silo.name
        for split in ("train", "dev", "public"):
            write(getattr(silo, split), place / f"{split}.jsonl")
        text = SITE.format(
            algorithm=self.plan.algorithm.name,
            roster=self.roster.fingerprint(),
            host=HOST,
            may=str(silo.name == HOST).lower(),
            protection=self.plan.protection.mode,
            rules=self.rules,
            until=(datetime.now(UTC).date() + timedelta(days=9)).isoformat(),
        )
        write_atomic(place / "site.toml", text.encode())

    def open(self) -> None:
        """Let every member take its seat."""
        for name in self.roster.names:
            place = self.folder / name
            rules, kit = load_site(place / "site.toml"), load_kit(self.folder / "kits" / name)
            self.processes[name] = hospital_of(
                rules, kit, place / "passphrase", place / "runs", into(self.events)
            )

    def connected(self) -> frozenset[str]:
        return frozenset(self.processes)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for party, frame in frames.items():
            yield party, self.processes[party].step(frame)

    def run(self) -> None:
        """Lead the plan to its end."""
        self.open()
        recorder = EventLog("coordinator", into(self.events))
        RunLeader(self, self.coordinator, self.roster, self.plan, recorder, patience=0).run()

    def close(self) -> None:
        for seat in self.processes.values():
            seat.close()
