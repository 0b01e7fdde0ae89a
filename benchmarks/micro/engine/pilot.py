"""How long a pilot takes from its command to the first exchange: `secure-fl pilot local`.

Keys, roster, certificates and records are made; then a process for each hospital and one for the
coordinator start and connect. The first exchange is over when all have accepted and know the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.micro.engine.processes import COMMAND
from secure_fl.errors import RunError
from secure_fl.pilot.trial import HUB
from secure_fl.runs.folder import EVENTS

LONGEST = 300.0


def first_exchange(parties: int = 3) -> dict[str, float]:
    """Seconds until the first exchange, and until a run of one round is done."""
    with tempfile.TemporaryDirectory() as folder:
        made, began = Path(folder, "pilot"), time.perf_counter()
        arguments = ["pilot", "local", "--parties", str(parties), "--rounds", "1"]
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments, "--out", str(made)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        try:
            events = made / HUB / "run" / EVENTS
            while not (events.exists() and '"gathered"' in events.read_text()):
                if process.poll() is not None or time.perf_counter() - began > LONGEST:
                    raise RunError(
                        "the pilot did not begin",
                        fix="try `secure-fl pilot local`",
                        reason="unfinished",
                    )
                time.sleep(0.02)
            first, spent = time.perf_counter() - began, _cpu(process.pid)
            if process.wait(LONGEST):
                raise RunError(
                    "the pilot failed", fix="try `secure-fl pilot local`", reason="unfinished"
                )
        finally:
            process.kill()
            process.wait()
        return {
            "first_exchange": first,
            "first_exchange_cpu": spent,
            "one_round_and_end": time.perf_counter() - began,
        }


def _cpu(pid: int) -> float:
    """CPU seconds of a process and all that it has started, so far."""
    import psutil  # comes with FLARE

    mother = psutil.Process(pid)
    times = [one.cpu_times() for one in (mother, *mother.children(recursive=True))]
    return float(sum(spent.user + spent.system for spent in times))
