"""Keys, rules and services of a simulated cohort, for trials of an engine on one machine.

A real cohort never has the keys of two machines in one place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, make_roster
from secure_fl.crypto.keys.vault import Cost
from secure_fl.crypto.sealing import secret
from secure_fl.errors import CohortError, SettingsError
from secure_fl.features.scripts.algorithm import Script
from secure_fl.integrations.hub import COORDINATOR
from secure_fl.integrations.program import SITE
from secure_fl.pilot.kits import write_kits
from secure_fl.pilot.site_file import Rules, write_site
from secure_fl.policy.plan import Plan

SERVER = "server"
MADE = "simulation"  # file in a folder that a simulation made
DAYS = 1
QUICK = Cost(log_n=10)  # of a passphrase that is stored next to its keys
START = 180.0  # seconds for a service to start
GRACE = 10.0  # seconds for a service to end


class Sandbox:
    """A folder for each machine, and a running service for each site.

    FOLDER/NAME has keys/, kit/, passphrase and a site's site.toml, service.log and runs/. The next
    simulation replaces the folder.
    """

    def __init__(self, folder: Path, sites: Sequence[str], plan: Plan) -> None:
        """`plan`: the rules of the sites allow it."""
        self.folder, self._sites, self._plan = folder, tuple(sites), plan
        self._sockets = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, str | None] = {}
        self._handler: Any = signal.SIG_DFL

    def __enter__(self) -> Self:
        """Write the folders, start the services and set the environment."""
        _require_own(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / MADE, b"The next simulation replaces this folder.\n")
        write_machines(self.folder, self._sites, self._plan)
        self._sockets = tempfile.mkdtemp(prefix="sfl")  # paths of sockets are short
        self._handler = signal.signal(signal.SIGTERM, _exit)
        own = {SITE: f"{self._sockets}/{{name}}", COORDINATOR: str(self.folder / SERVER)}
        self._before = {name: os.environ.get(name) for name in own}
        try:
            for name in self._sites:
                self._processes[name] = self._serve(name)
            os.environ.update(own)
            self._until_started()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the services."""
        signal.signal(signal.SIGTERM, self._handler)
        with ExitStack() as stack:
            for process in self._processes.values():
                stack.callback(process.wait)
                stack.callback(process.terminate)
        shutil.rmtree(self._sockets, ignore_errors=True)
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def _serve(self, name: str) -> subprocess.Popen[bytes]:
        place = self.folder / name
        command = [sys.executable, "-m", "secure_fl", "serve", "site.toml"]
        command += ["--socket", f"{self._sockets}/{name}", "--passphrase-file", "passphrase"]
        with (place / "service.log").open("wb") as log:
            return subprocess.Popen(command, cwd=place, stdout=log, stderr=log)  # noqa: S603 - ours

    def _until_started(self) -> None:
        until = time.monotonic() + START
        while waiting := [n for n in self._sites if not Path(self._sockets, n).exists()]:
            name = waiting[0]
            if self._processes[name].poll() is not None or time.monotonic() > until:
                log = self.folder / name / "service.log"
                raise CohortError(
                    f"the service of {name} did not start", fix=f"see {log}", party=name
                )
            time.sleep(0.1)


def _require_own(folder: Path) -> None:
    """Refuse to replace a folder that no simulation made."""
    if folder.exists() and not (folder / MADE).is_file():
        raise SettingsError(
            f"this folder was not made by a simulation: it has no file {MADE!r}",
            fix="move or delete it; a simulation writes its keys there",
            file=folder,
        )


def write_machines(folder: Path, sites: Sequence[str], plan: Plan) -> None:
    """Write the folders of a server and of sites whose rules allow a plan."""
    rings = {name: _ring(folder / name) for name in (SERVER, *sites)}
    cards = {name: ring.identity() for name, ring in rings.items()}
    members = tuple(Member(name, "party", None, cards[name].public) for name in sorted(sites))
    roster = make_roster(members, cards[SERVER].public, days=DAYS)
    for name in sites:
        roster = roster.sign(cards[name])
    dealer = rings[sites[0]]
    for name, bundle in dealer.ceremony(roster, secret.generate().to_bytes()).items():
        rings[name].accept(roster, bundle)
    for name, kit in write_kits(roster, folder / "kits", ["localhost"], 1).items():
        kit.rename(folder / name / "kit")
    (folder / "kits").rmdir()
    for name in sites:
        _rules(folder / name, plan, roster.fingerprint())


def _rules(folder: Path, plan: Plan, roster: str) -> None:
    (folder / "records").touch()
    rules = Rules(
        folder.name,
        algorithms=("script",),
        models=(),
        dataset=plan.dataset,
        train="records",
        dev="0.1",
        test="0.2",
        until=datetime.now(UTC).date() + timedelta(days=DAYS),
        rounds=plan.rounds,
        made_up=True,
        roster=roster,
    )
    own = [f"bits = [{plan.protection.bits}]", f"min_cohort = {plan.protection.min_cohort}"]
    if isinstance(plan.algorithm, Script) and plan.algorithm.means_to_coordinator:
        own.append("means_to_coordinator = true")
    file = folder / "site.toml"
    write_site(file, rules)
    text = file.read_text().replace("[site]\n", "\n".join(["[site]", *own, ""]), 1)
    write_atomic(file, text.encode())


def _exit(number: int, frame: object) -> None:
    """End this process by an exception, so that the services end too."""
    raise SystemExit(128 + number)


def _ring(folder: Path) -> KeyRing:
    passphrase = secrets.token_urlsafe(24)
    ring = KeyRing(folder / "keys", passphrase, QUICK)
    ring.create(Identity.generate(folder.name))
    write_atomic(folder / "passphrase", passphrase.encode(), mode=0o600)
    return ring
