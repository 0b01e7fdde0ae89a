"""How this program starts itself again: processes of a pilot that is tried on one machine."""

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
    """What makes a child process run the code that this one runs, wherever it lies."""
    import secure_fl

    here = str(Path(secure_fl.__file__).parent.parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(*processes: subprocess.Popen[Any]) -> None:
    """End these as a power cut would, if they still run; wait for them, and close their pipes."""
    for process in processes:
        process.kill()
    for process in processes:
        with process:
            pass


@contextmanager
def killed_after(processes: dict[str, P]) -> Iterator[dict[str, P]]:
    """Let these run for so long and no longer; whoever is put in their places ends with them."""
    try:
        yield processes
    finally:
        kill(*processes.values())
