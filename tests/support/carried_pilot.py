"""A pilot whose frames another engine carries: folders, and the services of its sites."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from secure_fl import Script
from secure_fl.crypto.keys.vault import Cost
from secure_fl.integrations import program, site_service
from secure_fl.integrations.site_messages import Reply, Request, SiteClient, Turn
from secure_fl.integrations.site_names import Node
from secure_fl.integrations.site_service import serve
from secure_fl.policy.plan import Plan
from secure_fl.settings import ProtectionSettings
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import KEYS, start_program

NAMES = ("east", "north", "west")
FOUR = (*NAMES, "young")
START = {"0": np.zeros((3, 2), np.float32), "1": np.ones(2, np.float32)}
VALUES = {"0": (3, 2), "1": (2,), "loss": ()}
ALLOWED = "[site]\nbits = [16]\nmeans_to_coordinator = true\n"


def carried_plan(rounds: int = 3, *, opened: bool = False, **values: tuple[int, ...]) -> Plan:
    """Make the plan of a script with these values."""
    script = Script(rounds=rounds, values=values or VALUES, means_to_coordinator=opened)
    return plan_of(script, protection=ProtectionSettings(bits=16))


def moved(name: str, round: int, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Train a step that differs between sites."""
    step = (FOUR.index(name) + 1) / round / 8
    return {key: (value + step).astype(value.dtype) for key, value in arrays.items()}


def expected(*rounds: Sequence[str]) -> dict[str, Any]:
    """Federated averaging by hand, over the sites of each round."""
    mean: dict[str, Any] = dict(START)
    for round, names in enumerate(rounds, start=1):
        weights = [FOUR.index(name) + 1 for name in names]
        sent = [moved(name, round, mean) for name in names]
        mean = {
            key: np.average([one[key] for one in sent], axis=0, weights=weights) for key in mean
        }
    return mean


@dataclass
class CarriedPilot:
    """Folders of a pilot, with a running service for each site."""

    trial: PilotFolders
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # those to kill
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)

    @property
    def hub(self) -> Path:
        """The coordinator's folder."""
        return self.trial.of(HUB)

    def socket(self, name: str) -> Path:
        """Return the socket of a site."""
        return self.trial.of(name) / "site.sock"

    def begin(self, name: str) -> None:
        """Start the service of a site in a thread of this process."""
        thread = threading.Thread(target=self._serve, args=(name,), daemon=True)
        self.threads[name] = thread
        thread.start()
        self._wait_for(name, thread.is_alive)

    def _serve(self, name: str) -> None:
        here = self.trial.of(name)
        files: dict[str, Any] = {
            "kit": here / "kit",
            "passphrase_file": here / "passphrase",
            "out": here / "runs",
        }
        try:
            serve(here / "site.toml", self.socket(name), **files)
        except BaseException as error:
            self.errors[name] = error

    def start(self, name: str) -> None:
        """Start the service of a site in a process."""
        command = ("serve", "site.toml", "--socket", "site.sock", *KEYS)
        self.running[name] = start_program(self.trial.of(name), *command, log="serve.log")
        self._wait_for(name, lambda: self.running[name].poll() is None)

    def _wait_for(self, name: str, runs: Callable[[], bool]) -> None:
        until = time.monotonic() + 120
        while not self.socket(name).exists():
            assert runs() and time.monotonic() < until, (self.errors, self.log(name))
            time.sleep(0.05)

    def ended(self) -> bool:
        """Wait for the end of all services; True if none failed."""
        for thread in self.threads.values():
            thread.join(60)
        codes = [process.wait(60) for process in self.running.values()]
        return not self.errors and not any(codes)

    def kill(self, name: str) -> None:
        """Kill the service of a site."""
        self.running[name].kill()
        self.running[name].wait()
        self.socket(name).unlink(missing_ok=True)

    def log(self, name: str) -> str:
        """Read the log of a site's service."""
        file = self.trial.of(name) / "serve.log"
        return file.read_text() if file.exists() else ""


@contextmanager
def carried_pilot(
    folder: Path, plan: Plan, names: Collection[str] = NAMES, processes: Collection[str] = ()
) -> Iterator[CarriedPilot]:
    """Make the folders, and run the services of all sites; `processes`: those that tests kill."""
    trial = make_pilot_folders(folder, tuple(names), plan, port=1, size=8, cost=Cost(log_n=10))
    pilot = CarriedPilot(trial)
    for name in names:
        rules = trial.of(name) / "site.toml"
        rules.write_text(rules.read_text().replace("[site]\n", ALLOWED, 1))
    try:
        with patch.object(site_service, "LINGER", 1.0):
            for name in names:
                (pilot.start if name in processes else pilot.begin)(name)
            yield pilot
    finally:
        for process in pilot.running.values():
            process.kill()
            process.wait()


Trains = Callable[[str, int, Turn], program.Trained]


@dataclass
class LocalCarrier:
    """A carrier in this process; `alter` may change or drop what a site's node replies."""

    pilot: CarriedPilot
    train: Trains
    alter: Callable[[str, Request, Reply], Reply | None] = lambda name, request, reply: reply

    def nodes(self) -> list[Node]:
        """Return the nodes: one for each site."""
        return list(range(len(self.pilot.trial.names)))

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        """Pass requests to the services, one after the other, and yield the replies."""
        for node, request in requests.items():
            name = self.pilot.trial.names[int(node)]

            def train(turn: Turn, name: str = name) -> program.Trained:
                return self.train(name, round, turn)

            client = SiteClient(self.pilot.socket(name))
            reply = program.answer(partial(_same, client), request, train if round else None)
            changed = self.alter(name, request, reply)
            if changed is not None:
                yield node, changed


def _same(client: SiteClient) -> SiteClient:
    return client
