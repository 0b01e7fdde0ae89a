"""Sums of any size: bytes, seconds, and the peak memory of the coordinator and of a party.

The coordinator and every party have a process each. `calls`: vectors in one sum each, which parties
cut into parts; then a model as large as GPT-2 Large, block by block, so that three parties fit into
the memory of one machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.measuring import resident
from benchmarks.report import Columns, Grid, Report, Target
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.federation.assembly import PartyContext, connect, join_run, make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.settings import Protection, ProtectionSettings

PARTIES = ("east", "north", "west")
CALLS = (16_000_000, 64_000_000, 128_000_000)
EMBEDDINGS, BLOCK, BLOCKS = 51_281 * 1280, 19_677_440, 36  # of GPT-2 Large: 774 million in all
PEAK = 200e6  # bytes of the coordinator, at most


COLUMNS: Columns = {
    "sums": "{r.sums}",
    "million values": lambda r: _million(r.values),
    "MB up": lambda r: _million(r.up),
    "MB down": lambda r: _million(r.down),
    "s": "{r.seconds:.0f}",
    "party CPU s": "{r.party_cpu:.0f}",
    "coordinator CPU s": "{r.coordinator_cpu:.1f}",
    "coordinator MB": lambda r: _million(r.coordinator_peak),
    "party MB": lambda r: _million(r.party_peak),
}


def _million(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.0f}"


@dataclass(frozen=True, slots=True)
class LargeRow:
    """One run of sums; bytes and seconds of a party are those of the busiest."""

    mode: str
    sums: int
    values: int
    up: int
    down: int
    seconds: float
    party_cpu: float
    coordinator_cpu: float
    coordinator_peak: int | None  # bytes over what it held before
    party_peak: int | None  # in the same way: the vector, what is left over and the sum are in it


def measure(
    *,
    calls: Sequence[int] = CALLS,
    blocks: Sequence[int] = (EMBEDDINGS, *[BLOCK] * BLOCKS),
    mode: Protection = "he+secagg",
    seed: int = 0,
) -> Report:
    """Sum vectors of growing sizes in one call each, and then all blocks of a large model."""
    rows = [_run([values], mode, seed) for values in calls]
    rows += [_run(blocks, mode, seed)] if blocks else []
    largest = max((row.coordinator_peak or 0 for row in rows), default=0)
    return Report(
        "large",
        {"parties": len(PARTIES), "calls": list(calls), "blocks": len(blocks), "bits": 8},
        seed,
        {"rows": [asdict(row) for row in rows]},
        [Grid.of(f"{mode}, 8 bits, {len(PARTIES)} parties", rows, COLUMNS)],
        [Target("the coordinator's peak, bytes", PEAK, largest)],
    )


@dataclass
class Pipes:
    """An engine whose parties are processes behind pipes."""

    ends: Mapping[str, Connection]
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Send to all parties, then read their answers in the same order."""
        for party, frame in frames.items():
            self.ends[party].send_bytes(frame.to_bytes())
            self.down[party] = self.down.get(party, 0) + frame.size
        for party in frames:
            answer = Frame.from_bytes(self.ends[party].recv_bytes())
            self.up[party] = self.up.get(party, 0) + answer.size
            yield party, answer


def _run(vectors: Sequence[int], mode: Protection, seed: int) -> LargeRow:
    protection = ProtectionSettings(mode=mode, bits=8)
    rules, keys = CoordinatorRules(None, 2, 2), make_keys(mode, PARTIES, None)
    wires, processes, ends = connect(keys), [], {}
    context = get_context("fork")
    for number, name in enumerate(PARTIES):
        session = join_run(
            _program(vectors, seed + number),
            PartyContext(keys[name], wires.parties[name], rules, protection),
        )
        ends[name], theirs = context.Pipe()
        processes.append(context.Process(target=_serve, args=(session, theirs)))
        processes[-1].start()
    engine = Pipes(ends)
    before, clock, cpu = resident(reset=True), time.perf_counter(), time.process_time()
    lead_run(wires.coordinator, engine, rules, protection).run()
    seconds, spent = time.perf_counter() - clock, time.process_time() - cpu
    after = resident(peak=True)
    spendings = []
    for process, end in zip(processes, ends.values(), strict=True):
        end.send_bytes(b"")
        spendings.append(end.recv())
        process.join()
    return LargeRow(
        mode,
        len(vectors),
        sum(vectors),
        max(engine.up.values()),
        max(engine.down.values()),
        seconds,
        max(cpu for cpu, _ in spendings),
        spent,
        None if before is None or after is None else after - before,
        max((peak for _, peak in spendings if peak is not None), default=None),
    )


def _program(vectors: Sequence[int], seed: int) -> Any:
    """Sum one vector after the other, without keeping the rounding errors."""

    async def program(cohort: Cohort) -> None:
        rng = np.random.default_rng(seed)
        for number, values in enumerate(vectors):
            vector = rng.standard_normal(values, np.float32)
            await cohort.sum({f"block {number}": vector}, carry=True)
            cohort.leftover(f"block {number}")

    return program


def _serve(session: Session, end: Connection) -> None:
    """Answer frames as one party until an empty one, and send CPU seconds and memory."""
    before, cpu = resident(reset=True), time.process_time()
    while data := end.recv_bytes():
        end.send_bytes(session.step(Frame.from_bytes(data)).to_bytes())
    after = resident(peak=True)
    peak = None if before is None or after is None else after - before
    end.send((time.process_time() - cpu, peak))
