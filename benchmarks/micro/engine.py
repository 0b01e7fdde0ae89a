"""Cost of FLARE as the engine: exchanges compared with those in one process.

Three parties in processes of their own, over mutual TLS on loopback, answer a frame with one of the
same size. The engine in one process passes the same frames to the same function.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from benchmarks.report import Columns, Grid, Report, Target
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
from secure_fl.engines.flare.cell import FlareParty
from secure_fl.protocol.frames import Frame

folder, url, name = sys.argv[1:]
with FlareParty(name, url, TlsFiles.of_site(Path(folder, f"{name}.site"))) as party:
    party.serve(lambda frame: Frame(b"answer", frame.bulk))
"""
SMALL, LARGE = 1_000, 20_000_000
SMALL_LIMIT, LARGE_LIMIT = 0.050, 1.0  # seconds


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """Round trips of one engine at one size, in seconds."""

    engine: str
    bytes_each_way: int
    repeats: int
    median_seconds: float
    slowest_seconds: float


class _Answering:
    """A party that answers with a frame of the same size."""

    def step(self, frame: Frame) -> Frame:
        return Frame(b"answer", frame.bulk)


def measure(parties: int = 3, repeats: int = 100, large_repeats: int = 5) -> Report:
    """Time exchanges of both sizes over both engines."""
    names = [f"hospital-{number}" for number in range(1, parties + 1)]
    local = LocalEngine(cast("Mapping[str, Session]", {name: _Answering() for name in names}))
    rows = _round_trips("in process", local, names, repeats, large_repeats)
    with started(names) as hub:
        rows += _round_trips("FLARE, mutual TLS", hub, names, repeats, large_repeats)
    results: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
    columns: Columns = {
        "engine": "{r.engine}",
        "each way": lambda r: f"{r.bytes_each_way / 1e6:g} MB",
        "exchanges": "{r.repeats}",
        "median": lambda r: f"{r.median_seconds * 1e3:.3f} ms",
        "slowest": lambda r: f"{r.slowest_seconds * 1e3:.3f} ms",
    }
    targets = [
        Target("a 1 KB exchange over FLARE, seconds", SMALL_LIMIT, rows[2].median_seconds),
        Target("a 20 MB exchange over FLARE, seconds", LARGE_LIMIT, rows[3].median_seconds),
    ]
    sizes = {"parties": parties, "repeats": repeats, "large_repeats": large_repeats}
    return Report("engine", sizes, 0, results, [Grid.of("round trips", rows, columns)], targets)


@contextmanager
def started(names: Collection[str]) -> Iterator[FlareHub]:
    """Start a hub here and a connected process for each party."""
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
            raise _failed(f"{len(missing)} party processes did not start")
        yield hub
        hub.dismiss()


def _round_trips(
    engine: str, carrier: Engine, names: Collection[str], repeats: int, large_repeats: int
) -> list[ExchangeRow]:
    rows = []
    for size, count in ((SMALL, repeats), (LARGE, large_repeats)):
        bulk, times = os.urandom(size), []
        for number in range(count + 1):
            frames = {name: Frame(b"%d" % number, bulk) for name in names}
            began = time.perf_counter()
            answers = dict(carrier.exchange(frames, 120))
            times.append(time.perf_counter() - began)
            if len(answers) != len(names):
                raise _failed(f"{len(names) - len(answers)} parties did not answer")
        times = times[1:]  # the first one allocates memory
        rows.append(ExchangeRow(engine, size, count, median(times), max(times)))
    return rows


def _failed(what: str) -> RunError:
    fix = "read the output above, and try `secure-fl pilot local`"
    return RunError(what, fix=fix, reason="unfinished")
