"""What FLARE as engine costs an exchange, against the in-process engine.

Three parties in processes of their own, over mutual TLS on this machine's loopback, answer a frame
with one of the same size: round trips of small and of large exchanges, one after the other. The
in-process engine carries the same frames to the same step function, so all it takes is a call.

Then what that comes to: a round of FedKD (`rounds`), and a pilot's start (`pilot`).
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from rich.table import Table

from benchmarks.micro.engine import rounds
from benchmarks.micro.engine.pilot import first_exchange
from benchmarks.report import Report, Target, table
from secure_fl.coordinator.machine import Engine
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.errors import RunError
from secure_fl.party.session import LocalEngine, Session
from secure_fl.pilot.certificates import make_kits
from secure_fl.protocol.frames import Frame

PARTY = """
import sys
from pathlib import Path
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.engines.flare.flare_party import FlareParty
from secure_fl.protocol.frames import Frame

folder, url, name = sys.argv[1:]
with FlareParty(name, url, TlsFiles.of_site(Path(folder, f"{name}.site"))) as party:
    party.serve(lambda frame: Frame(b"answer", frame.bulk))
"""
SMALL, LARGE = 1_000, 20_000_000
SMALL_LIMIT, LARGE_LIMIT = 0.050, 1.0  # seconds; measured before: 0.015 and 0.32
ROUNDS = 3  # of a run of FedKD; the first makes the models, and does not count
STARTING = "from no keys to the first exchange of a pilot, seconds"
ROUND_LIMIT, START_LIMIT = 0.15, 30.0  # of a round in one process; seconds


@dataclass(frozen=True, slots=True)
class Row:
    """Round trips of one engine at one size, in seconds."""

    engine: str
    bytes_each_way: int
    repeats: int
    median_seconds: float
    slowest_seconds: float


class _Answering:
    """What both engines call: an answer of the same size, without looking at the frame."""

    def step(self, frame: Frame) -> Frame:
        return Frame(b"answer", frame.bulk)


def measure(
    parties: int = 3,
    repeats: int = 100,
    large_repeats: int = 5,
    *,
    records: int = 120,
    epochs: int = 3,
    turns: int = 3,
    whole: bool = True,
) -> Report:
    """Time exchanges of both sizes over both engines; `whole`: and rounds of FedKD, and a start."""
    began = time.perf_counter()
    names = [f"party-{number}" for number in range(1, parties + 1)]
    local = LocalEngine(cast("Mapping[str, Session]", {name: _Answering() for name in names}))
    rows = _round_trips("in process", local, names, repeats, large_repeats)
    opened = time.perf_counter()
    with started(names) as hub:
        start = time.perf_counter() - opened
        rows += _round_trips("FLARE, mutual TLS", hub, names, repeats, large_repeats)
        threads = threading.active_count()
    small, large = rows[2].median_seconds, rows[3].median_seconds
    results: dict[str, Any] = {
        "rows": [asdict(row) for row in rows],
        "start_seconds": start,
        "coordinator_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "coordinator_threads": threads,
    }
    tables, targets = (
        [_shown(rows)],
        [
            Target("a 1 KB exchange over FLARE, seconds", SMALL_LIMIT, small),
            Target("a 20 MB exchange over FLARE, seconds", LARGE_LIMIT, large),
        ],
    )
    if whole:
        found = rounds.compare(parties, records, epochs, ROUNDS, turns)
        pilot = first_exchange(parties)
        results |= {"fedkd_rounds": [asdict(row) for row in found], "pilot_seconds": pilot}
        tables += [_rounds_shown(found), _start_shown(pilot)]
        targets += _round_targets(found)
        targets.append(Target(STARTING, START_LIMIT, pilot["first_exchange"]))
    sizes = {"parties": parties, "repeats": repeats, "large_repeats": large_repeats}
    sizes |= {"records": records, "epochs": epochs, "turns": turns} if whole else {}
    seconds = time.perf_counter() - began
    return Report("engine", sizes, 0, results, tables, targets, seconds=seconds)


@contextmanager
def started(names: Collection[str]) -> Iterator[FlareHub]:
    """A hub here, and a process for each party, connected."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kits = make_kits(folder, names)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"grpc://127.0.0.1:{probe.getsockname()[1]}"
        hub = stack.enter_context(FlareHub(url, kits.coordinator, names))
        for name in names:
            process = subprocess.Popen([sys.executable, "-c", PARTY, str(folder), url, name])
            stack.callback(process.wait)
            stack.callback(process.kill)
        if missing := hub.wait_for(names, 60):
            raise RunError(
                f"{len(missing)} party processes did not start",
                fix="read what they printed above",
                reason="unfinished",
            )
        yield hub
        hub.dismiss()


def _shown(rows: Sequence[Row]) -> Table:
    cells = [
        (
            row.engine,
            f"{row.bytes_each_way / 1e6:g} MB",
            str(row.repeats),
            f"{row.median_seconds * 1e3:.3f} ms",
            f"{row.slowest_seconds * 1e3:.3f} ms",
        )
        for row in rows
    ]
    return table("round trips", ("engine", "each way", "exchanges", "median", "slowest"), cells)


def _rounds_shown(rows: Sequence[rounds.Row]) -> Table:
    cells = [
        (
            row.way,
            str(row.cores),
            f"{row.median.seconds:.2f}",
            f"{100 * row.beyond_in_process.seconds:+.1f} %",
            f"{row.median.cpu_seconds:.2f}",
            f"{100 * row.beyond_in_process.cpu_seconds:+.1f} %",
            f"{100 * row.beyond_pipes.cpu_seconds:+.1f} %",
        )
        for row in rows
    ]
    columns = ("", "cores", "seconds", "over in process", "CPU seconds", "over in process")
    return table("a round of FedKD", (*columns, "beyond pipes"), cells)


def _start_shown(pilot: Mapping[str, float]) -> Table:
    cells = [(name.replace("_", " "), f"{seconds:.1f}") for name, seconds in pilot.items()]
    return table("a pilot of one round", ("", "seconds"), cells)


def _round_targets(rows: Sequence[rounds.Row]) -> list[Target]:
    """With everybody on one core: what is gained side by side is not the engine's."""
    over = next(row for row in rows if row.way == rounds.FLARE).beyond_pipes
    what = "FLARE's own part of a FedKD round, of the round in process: "
    return [
        Target(f"{what}seconds", ROUND_LIMIT, over.seconds),
        Target(f"{what}CPU", ROUND_LIMIT, over.cpu_seconds),
    ]


def _round_trips(
    engine: str, carrier: Engine, names: Collection[str], repeats: int, large_repeats: int
) -> list[Row]:
    rows = []
    for size, count in ((SMALL, repeats), (LARGE, large_repeats)):
        bulk, times = os.urandom(size), []
        for number in range(count + 1):
            frames = {name: Frame(b"%d" % number, bulk) for name in names}
            began = time.perf_counter()
            answers = dict(carrier.exchange(frames, 120))
            times.append(time.perf_counter() - began)
            if len(answers) != len(names):
                raise RunError(
                    f"{len(names) - len(answers)} parties did not answer",
                    fix="run it again on a machine with nothing else to do",
                    reason="unfinished",
                )
        times = times[1:]  # the first one makes room
        rows.append(Row(engine, size, count, median(times), max(times)))
    return rows
