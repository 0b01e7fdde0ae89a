"""A pilot with a host in one process, made from the files of its members alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from secure_fl.cli.join import hospital_of
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.vault import Cost
from secure_fl.events import EventLog
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.kits import load_kit
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import load_site
from secure_fl.protocol.frames import Frame
from secure_fl.testing.hospitals import HOST
from tests.support.event_documents import into
from tests.support.pilot_folders import HUB, make_pilot_folders

NAMES = ("hospital-1", "hospital-2", "hospital-3", HOST)
CHEAP = Cost(log_n=10)


class Clinic:
    """Processes of hospitals and a host, each with the files of its folder, as `join` has them."""

    def __init__(self, folder: Path, plan: Plan, rules: str = "") -> None:
        """Make the folders; `rules` are more lines of [site]."""
        self.folder, self.plan = folder, plan
        self.events: list[dict[str, Any]] = []
        pilot = make_pilot_folders(folder, NAMES, plan, port=8443, size=16, cost=CHEAP, host=HOST)
        rules = f'[site]\nprotection = "{plan.protection.mode}"\n{rules}\n'
        self.processes = {}
        for name in pilot.names:
            place = pilot.of(name)
            site = place / "site.toml"
            site.write_text(site.read_text().replace("[site]\n", rules, 1))
            kit = load_kit(place / "kit")
            self.processes[name] = hospital_of(
                load_site(site), kit, place / "passphrase", place / "runs", into(self.events)
            )
        self.roster = kit.roster
        passphrase = (pilot.of(HUB) / "passphrase").read_text()
        self.coordinator = KeyRing(pilot.of(HUB) / "keys", passphrase, CHEAP).identity()

    def connected(self) -> frozenset[str]:
        """Return all members."""
        return frozenset(self.processes)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Pass each frame to its member."""
        for party, frame in frames.items():
            yield party, self.processes[party].step(frame)

    def run(self) -> None:
        """Lead the plan to its end."""
        recorder = EventLog("coordinator", into(self.events))
        RunLeader(self, self.coordinator, self.roster, self.plan, recorder, patience=0).run()

    def close(self) -> None:
        """End the processes."""
        for process in self.processes.values():
            process.close()
