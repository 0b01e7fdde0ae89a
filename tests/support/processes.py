"""Processes of a pilot on one machine: starting the program, and killing it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from secure_fl.pilot.progress import progress
from tests.support.pilot_folders import HUB, PilotFolders

PROGRAM = "from secure_fl.cli.main import main; main()"
KEYS = ("--kit", "kit", "--passphrase-file", "passphrase")
P = TypeVar("P", bound=subprocess.Popen[Any])


def this_code() -> dict[str, str]:
    """Return the environment in which a child process imports the same code as this one."""
    import secure_fl

    here = str(Path(secure_fl.__file__).parent.parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_program(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), log: str = "log", **machine: str
) -> subprocess.Popen[bytes]:
    """Start the program in a folder, on one thread unless this machine says otherwise."""
    with (folder / log).open("ab") as file:
        return subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM, *arguments],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | this_code() | machine,
            stdout=file,
            stderr=file,
        )


def start_party(
    trial: PilotFolders, name: str, prefix: Sequence[str] = (), **machine: str
) -> subprocess.Popen[bytes]:
    """Start a hospital of a pilot, or its coordinator, which runs in `run`."""
    lead = ("coordinate", "plan.toml", *KEYS, "--out", "run", "--grace", "5")
    command = lead if name == HUB else ("join", "site.toml", *KEYS)
    return start_program(trial.of(name), *command, prefix=prefix, **machine)


def wait_for_round(run: Path, number: int, seconds: float = 240) -> None:
    """Wait until the coordinator's run begins a round."""
    until = time.monotonic() + seconds
    while not (run / "events.jsonl").exists() or progress(run)["round"] < number:
        assert time.monotonic() < until, f"round {number} never came"
        time.sleep(0.05)


def kill(*processes: subprocess.Popen[Any]) -> None:
    """Kill processes as a power cut would; wait for them, and close their pipes."""
    for process in processes:
        process.kill()
    for process in processes:
        with process:
            pass


@contextmanager
def killed_after(processes: dict[str, P]) -> Iterator[dict[str, P]]:
    """Kill the processes of a dictionary at the end, with those that replaced others."""
    try:
        yield processes
    finally:
        kill(*processes.values())
