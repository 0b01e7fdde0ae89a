"""Mutated frames by the million: none may be accepted, and their cost is bounded.

The memory of a run without mutants is measured first.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from benchmarks.report import Grid, Report, Target
from secure_fl.algorithms.fedavg import FedAvg
from tests.support.fuzzing import Fuzzer
from tests.support.local_pilot import local_pilot, plan_of
from tests.support.mutants import MUTATORS

FRAMES = 60  # of the shortest run: 10 exchanges, 3 parties, 2 ways
SLOWEST = 0.5  # CPU seconds that one mutant may cost
MEMORY = 50e6  # bytes that all mutants may add to the peak


def measure(mutants: int = 1_000_000, seed: int = 0) -> Report:
    """Throw at least this many mutants into one run, after a run without any."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(FedAvg(rounds=1))
        local_pilot(Path(folder, "calm"), plan).lead().run()
        calm, started = _peak(), time.process_time()
        pilot = local_pilot(Path(folder, "fuzzed"), plan)
        fuzzer = Fuzzer(pilot, -(-mutants // FRAMES), seed)
        fuzzer.lead().run()
    thrown = sum(fuzzer.thrown.values())
    unfinished = sum(not process.done for process in pilot.processes.values())
    results = {
        "thrown": thrown,
        "at": dict(fuzzer.thrown),
        "kinds": len(fuzzer.kinds),
        "accepted": len(fuzzer.found) - fuzzer.crashes,
        "crashes": fuzzer.crashes,
        "found": fuzzer.found[:20],
        "repeated": fuzzer.repeated,
        "unfinished_seats": unfinished,
        "slowest_cpu_seconds": fuzzer.slowest,
        "cpu_seconds": time.process_time() - started,
        "peak_bytes_calm": calm,
        "peak_bytes": _peak(),
    }
    cells = [
        (name.replace("_", " "), f"{value:,.6g}")
        for name, value in results.items()
        if isinstance(value, int | float)
    ]
    return Report(
        "fuzz-run",
        {"mutants": mutants, "parties": len(pilot.processes)},
        seed,
        results,
        [Grid("mutated frames at both ends of a run", ("", "measured"), cells)],
        (
            Target("mutants that were accepted, or crashed anything", 0, len(fuzzer.found)),
            Target("hospitals that did not end the run", 0, unfinished),
            Target("slowest mutant, CPU seconds", SLOWEST, fuzzer.slowest),
            Target("memory over a calm run, bytes", MEMORY, _peak() - calm),
            Target("kinds of mutants", len(MUTATORS), len(fuzzer.kinds), at_least=True),
        ),
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
