"""Processes of a pilot on one machine: starting the program, and killing it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

PROGRAM = "from secure_fl.cli.main import main; main()"
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
