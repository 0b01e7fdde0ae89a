"""One trial's hospitals behind three engines: in this process, behind pipes, and over FLARE.

Hospitals, keys, rules and records are the same. Pipes are what a process for each costs at the
least; what FLARE takes beyond that is the engine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.errors import RunError
from secure_fl.pilot.coordinator_process import HubEngine
from secure_fl.pilot.hospital import HospitalProcess
from secure_fl.pilot.kits import load_kit
from secure_fl.pilot.site_memory import records_of, site_keys
from secure_fl.pilot.site_run import HospitalContext
from secure_fl.policy.policy_file import load_site
from secure_fl.protocol.frames import Frame
from tests.support.pilot_folders import HUB, PilotFolders

COMMAND = "from secure_fl.cli.main import main; main()"
JOIN = ("join", "site.toml", "--kit", "kit", "--passphrase-file", "passphrase", "--quiet")
PIPE = "import sys; from benchmarks.micro.engine.processes import serve; serve(sys.argv[1])"
ROOT = Path(__file__).parents[3]
START = 120.0  # seconds until all are there
RUNS = "runs"  # where `join` has them, too


def hospital_of(site: Path, runs: Path) -> HospitalProcess:
    """What answers for a trial's site, as with `secure-fl join`, but it approves of any plan."""
    rules, kit = load_site(site / "site.toml"), load_kit(site / "kit")
    keys = site_keys(ring_of(site), kit.roster)
    me = kit.roster.member(site.name)
    context = HospitalContext(
        keys,
        kit.roster,
        lambda plan: records_of(rules, me, plan),
        runs,
        ledger_folder=rules.ledger,
    )
    return HospitalProcess(context, lambda plan: None)


def ring_of(folder: Path) -> KeyRing:
    """The keys of a trial's site or coordinator."""
    return KeyRing(folder / "keys", (folder / "passphrase").read_text())


class InProcess:
    """Hospitals that work one after the other, in this process."""

    pids: tuple[int, ...] = ()

    def __init__(self, trial: PilotFolders, runs: Path, stack: ExitStack) -> None:
        self._hospitals = {name: hospital_of(trial.of(name), runs / name) for name in trial.names}
        for hospital in self._hospitals.values():
            stack.callback(hospital.close)

    def connected(self) -> frozenset[str]:
        """All of them, always."""
        return frozenset(self._hospitals)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Each answers at once."""
        for party, frame in frames.items():
            yield party, self._hospitals[party].step(frame)


class Piped:
    """Hospitals in processes of their own, behind their standard input and output."""

    def __init__(self, trial: PilotFolders, runs: Path, stack: ExitStack) -> None:
        self._processes = {}
        for name in trial.names:
            process = subprocess.Popen(
                [sys.executable, "-c", PIPE, str(trial.of(name))],
                cwd=_made(runs / name),
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            self._processes[name] = process
        self.pids = tuple(process.pid for process in self._processes.values())

    def connected(self) -> frozenset[str]:
        """All of them, always."""
        return frozenset(self._processes)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """All get their frames, and work side by side."""
        for party, frame in frames.items():
            _write(cast(IO[bytes], self._processes[party].stdin), frame)
        for party in frames:
            answer = _read(cast(IO[bytes], self._processes[party].stdout))
            if answer is None:
                raise RunError(
                    "a hospital's process ended",
                    party=party,
                    fix="read what it printed above",
                    reason="unfinished",
                )
            yield party, answer


def serve(site: str) -> None:
    """A hospital's end of the pipes."""
    import torch

    torch.set_num_threads(1)
    hospital = hospital_of(Path(site), Path(RUNS))
    while (frame := _read(sys.stdin.buffer)) is not None:
        _write(sys.stdout.buffer, hospital.step(frame))


def join_flare(trial: PilotFolders, stack: ExitStack) -> tuple[HubEngine, tuple[int, ...]]:
    """A hub here, and for each hospital the process that its own people would start."""
    kit, pids = load_kit(trial.of(HUB) / "kit"), list[int]()
    hub = stack.enter_context(FlareHub(kit.connection.url, kit.tls, kit.roster.names))
    for name in trial.names:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *JOIN], cwd=trial.of(name), env=_environment()
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        pids.append(process.pid)
    if missing := hub.wait_for(trial.names, START):
        raise RunError(
            f"{len(missing)} hospitals did not join",
            fix="read what their processes printed above",
            reason="unfinished",
        )
    return hub, tuple(pids)


def _environment() -> dict[str, str]:
    """One thread each, and this checkout's modules, wherever the process works."""
    places = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(place for place in places if place)
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _write(pipe: IO[bytes], frame: Frame) -> None:
    data = frame.to_bytes()
    pipe.write(len(data).to_bytes(8, "big"))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Frame | None:
    """The next frame, or None at the end."""
    size = int.from_bytes(pipe.read(8), "big")
    return Frame.from_bytes(pipe.read(size)) if size else None
