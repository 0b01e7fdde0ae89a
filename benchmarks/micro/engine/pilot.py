"""How long a pilot of one machine takes from nothing to the first exchange, and to its end.

Keys, roster, certificates and records are made; then a process for each hospital and one for the
coordinator start and connect. The first exchange is over when all have accepted and know the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import RunError
from secure_fl.runs.folder import EVENTS
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import PROGRAM, free_port, this_code

LONGEST = 300.0
COMMON = ("--kit", "kit", "--passphrase-file", "passphrase", "--quiet")


def first_exchange(parties: int = 3) -> dict[str, float]:
    """Seconds until the first exchange, and until a run of one round is done."""
    names = [f"hospital-{number}" for number in range(1, parties + 1)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        began = time.perf_counter()
        plan = plan_of(FedAvg(rounds=1, epochs=3))
        made = make_pilot_folders(Path(folder, "pilot"), names, plan, port=free_port(), size=120)
        processes = [_start(made, name) for name in (HUB, *names)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        events = made.of(HUB) / "run" / EVENTS
        while not (events.exists() and '"gathered"' in events.read_text()):
            if processes[0].poll() is not None or time.perf_counter() - began > LONGEST:
                raise _failed("the pilot did not begin")
            time.sleep(0.02)
        first, spent = time.perf_counter() - began, sum(_cpu(one.pid) for one in processes)
        if processes[0].wait(LONGEST):
            raise _failed("the pilot failed")
        return {
            "first_exchange": first,
            "first_exchange_cpu": spent,
            "one_round_and_end": time.perf_counter() - began,
        }


def _start(made: PilotFolders, name: str) -> subprocess.Popen[bytes]:
    lead = ["coordinate", "plan.toml", *COMMON, "--out", "run"]
    command = lead if name == HUB else ["join", "site.toml", *COMMON]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        cwd=made.of(name),
        env=os.environ | {"OMP_NUM_THREADS": "1"} | this_code(),
        stdout=subprocess.DEVNULL,
    )


def _failed(what: str) -> RunError:
    return RunError(what, fix="try `secure-fl pilot local`", reason="unfinished")


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    import psutil  # comes with FLARE

    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)
