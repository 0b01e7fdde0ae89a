"""What may go wrong in a run: kills and stops from outside, and lies of a site or of the server.

Lies are told by the systems' own programs, changed by a few lines: a site's in `inside.job`, a
server's in `inside/flower/app/lying.py`, `inside/nvflare_server.py` and `ours_lying`. Nothing is
ever killed that this run did not start.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil

from benchmarks.peers.inside.job import FIRST_BAD, TRAINED
from secure_fl.runs.folder import EVENTS

if TYPE_CHECKING:
    from benchmarks.peers.stage import Place
    from benchmarks.peers.ways import Way

SERVER = "server"
PAUSE = 5.0  # seconds until somebody starts again what was killed
LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Mishap:
    """Something that goes wrong from the second round on."""

    title: str  # as the table says it
    who: str  # "site" or "server"
    signal: int | None = None  # sent to all its processes; None: it lies
    comes_back: bool = False
    reads: bool = False  # whether the question is what the server learns


MISHAPS: Mapping[str, Mishap] = MappingProxyType(
    {
        "kill": Mishap("a site is killed, and started again", "site", signal.SIGKILL, True),
        "stop": Mishap("a site never answers again", "site", signal.SIGSTOP),
        "kill-server": Mishap(
            "the server is killed, and started again", SERVER, signal.SIGKILL, True
        ),
        "model": Mishap("a site sends the weights of another model", "site"),
        "nan": Mishap("a site sends NaN", "site"),
        "again": Mishap("a site sends what it sent before", "site"),
        "tap": Mishap("the server looks at what each site sends", SERVER, reads=True),
        "alone": Mishap("the server adds one site alone", SERVER, reads=True),
        "keys": Mishap("the server hands a site keys of its own", SERVER, reads=True),
    }
)


def happen(place: Place, way: Way, over: threading.Event) -> None:
    """Let it happen beside the run, if it comes from outside."""
    name, where = [*place.mishap.split(), "", ""][:2]
    if name and MISHAPS[name].signal is not None:
        threading.Thread(
            target=_strike, args=(place, way, MISHAPS[name], where, over), daemon=True
        ).start()


def _strike(place: Place, way: Way, mishap: Mishap, where: str, over: threading.Event) -> None:
    while rounds(place) < FIRST_BAD:
        if over.wait(LOOK):
            return
    struck = of(place, where)
    for process in struck:
        with suppress(psutil.Error):
            process.send_signal(mishap.signal or signal.SIGKILL)
    (place.out / "struck.json").write_text(
        json.dumps({"at": time.time(), "processes": len(struck)})
    )
    if mishap.comes_back and not over.wait(PAUSE):
        way.again(place, where)


def rounds(place: Place) -> int:
    """The newest round that has begun."""
    events = place.out / "pilot" / "hub" / "run" / EVENTS
    newest = 0
    for file in (place.out / TRAINED, events):
        with suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                said = json.loads(line)
                if said.get("event", "round_started") == "round_started":
                    newest = max(newest, said["round"])
    return newest


def of(place: Place, who: str) -> list[psutil.Process]:
    """All processes of a site, or of the server: a tree, or whatever has its folder."""
    if who in place.running:
        first = psutil.Process(place.running[who].pid)
        return [first, *first.children(recursive=True)]
    return [p for p in _here() if f"/{who}" in " ".join(_words(p))]


def _here() -> list[psutil.Process]:
    from benchmarks.peers.stage import started

    return list(started())


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return [*process.cmdline(), process.cwd()]
    return []


def start_flare(place: Place, who: str) -> None:
    """Start a site or the server of NVFLARE again, as its kit does."""
    (script,) = (place.out / "poc").rglob(f"{who}/startup/start.sh")
    with Path(place.out / f"{who}-again.log").open("wb") as log:
        subprocess.Popen(
            [str(script)],
            env={**place.environment(), "HOME": str(place.out)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
