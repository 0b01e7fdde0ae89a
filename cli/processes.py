"""How this program starts itself again: processes of a pilot that is tried on one machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

PROGRAM = "from secure_fl.cli.main import main; main()"


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
