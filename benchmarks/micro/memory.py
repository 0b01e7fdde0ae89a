"""The coordinator's peak memory while parties come and go: it adds as it hears, and keeps nothing.

The coordinator is the real one, in a process of its own, among puppets without models. One upload
at a time is part of the figure, and so are the puppets' keys: a run with a vector of one value
shows how much they and the messages take.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.micro.memory_stage import stage
from benchmarks.report import Report, Target, table
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.packing import Codec
from secure_fl.crypto.sealing.public import from_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.settings import Protection

PARTIES = (4, 16, 64, 256)
SEALED = 64
FLAT = 1.1  # the most over the least, whatever the number of parties
BITS: Literal[8] = 8


@dataclass(frozen=True, slots=True)
class Row:
    """A coordinator's peak over what it held before the run, in bytes."""

    mode: str
    parties: int
    upload: int
    total: int  # the sum as it is sent back
    peak_allocated: int  # numpy's and Python's, by tracemalloc; SEAL's are not in it
    peak_resident: int | None  # of the process; None where the system does not tell
    keys_allocated: int  # the same with a vector of one value: messages, and the puppets' own keys
    seconds: float

    @property
    def vector(self) -> float:
        """What the vector alone takes of what is allocated, in units of the sum's size."""
        return (self.peak_allocated - self.keys_allocated) / self.total


def measure(*, values: int = 1_000_000, parties: Sequence[int] = PARTIES, seed: int = 0) -> Report:
    """Measure every cohort in a process of its own."""
    started = time.perf_counter()
    modes: tuple[Protection, ...] = ("none", "he+secagg")
    rows = []
    for mode in modes:
        for n in parties:
            if mode == "none" or n <= SEALED:
                uploads = _upload(mode, n, 1, seed), _upload(mode, n, values, seed)
                with get_context("spawn").Pool(1) as pool:
                    rows.append(pool.apply(_measure_one, (mode, n, *uploads)))
    grown = {
        mode: [row.vector for row in rows if row.mode == mode]
        for mode in modes
        if any(row.mode == mode for row in rows)
    }
    cells = [_cells(row) for row in rows]
    columns = (
        "mode",
        "parties",
        "upload MB",
        "sum MB",
        "allocated MB",
        "resident MB",
        "keys' part MB",
        "vector / sum",
        "s",
    )
    return Report(
        "memory",
        {"values": values, "parties": list(parties), "bits": BITS},
        seed,
        {"rows": [asdict(row) for row in rows]},
        [table(f"the coordinator's peak, {values:,} values", columns, cells)],
        [
            Target(f"{mode}: most over least for the vector", FLAT, max(found) / min(found))
            for mode, found in grown.items()
        ],
        seconds=time.perf_counter() - started,
    )


def _upload(mode: Protection, parties: int, values: int, seed: int) -> tuple[bytes, int]:
    """What a party sends: its size depends on the parties, for whose sum slots leave room."""
    rng = np.random.default_rng(seed)
    if mode == "none":
        return rng.normal(0, 1, values).astype("<f4").tobytes(), values
    slots = Codec(BITS, parties, COHORT.modulus).slots(values) + 1
    integers = rng.integers(0, COHORT.modulus, slots, np.uint64)
    return from_parts(secret.seal(secret.generate(), integers)), slots


def _measure_one(
    mode: Protection, parties: int, tiny: tuple[bytes, int], full: tuple[bytes, int]
) -> Row:
    """Look at the process first, then at allocations: tracemalloc takes memory itself."""
    _watch(stage(mode, BITS, parties, *tiny), traced=False)  # the keys find their memory
    resident, total, seconds = _watch(stage(mode, BITS, parties, *full), traced=False)
    keys_allocated, _, _ = _watch(stage(mode, BITS, parties, *tiny), traced=True)
    allocated, _, _ = _watch(stage(mode, BITS, parties, *full), traced=True)
    return Row(
        mode,
        parties,
        len(full[0]),
        total,
        allocated or 0,
        resident,
        keys_allocated or 0,
        seconds,
    )


def _watch(run: Callable[[], int], *, traced: bool) -> tuple[int | None, int, float]:
    """The peak over what was there before, the size of the sum, and seconds."""
    if traced:
        tracemalloc.start()
        total = run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak, total, 0.0
    before, start = resident(reset=True), time.perf_counter()
    total = run()
    seconds, after = time.perf_counter() - start, resident(peak=True)
    return None if before is None or after is None else after - before, total, seconds


def resident(*, peak: bool = False, reset: bool = False) -> int | None:
    """Bytes of this process in memory, now or at most since the last reset (Linux)."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return None
    if reset:
        clear.write_text("5")
    wanted = "VmHWM" if peak else "VmRSS"
    for line in status.read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    return None


def _cells(row: Row) -> tuple[str, ...]:
    resident = "-" if row.peak_resident is None else f"{row.peak_resident / 1e6:.1f}"
    return (
        row.mode,
        str(row.parties),
        f"{row.upload / 1e6:.2f}",
        f"{row.total / 1e6:.2f}",
        f"{row.peak_allocated / 1e6:.1f}",
        resident,
        f"{row.keys_allocated / 1e6:.1f}",
        f"{row.vector:.2f}",
        f"{row.seconds:.1f}",
    )
