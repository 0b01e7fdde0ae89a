"""Sums of any size: bytes, seconds, and the peak memory of the coordinator and of a party.

Every party is a process of its own, as the coordinator is. `calls`: the whole vector in one sum,
which the parties cut themselves; then a model as large as GPT-2 Large, a block after the other, so
that three parties fit into the memory of one machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.micro.memory import resident
from benchmarks.report import Report, Target, table
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.federation.assembly import PartyContext, connect, join_run
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.settings import Protection, ProtectionSettings

PARTIES = ("east", "north", "west")
CALLS = (16_000_000, 64_000_000, 128_000_000)
EMBEDDINGS, BLOCK, BLOCKS = 51_281 * 1280, 19_677_440, 36  # of GPT-2 Large: 774 million in all
PEAK = 200e6  # bytes of the coordinator, at most


@dataclass(frozen=True, slots=True)
class Row:
    """One run of sums over some vectors; bytes and seconds of a party are those of the busiest."""

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
    started = time.perf_counter()
    rows = [_run([values], mode, seed) for values in calls]
    rows += [_run(blocks, mode, seed)] if blocks else []
    columns = ("sums", "million values", "MB up", "MB down", "s")
    peaks = ("party CPU s", "coordinator CPU s", "coordinator MB", "party MB")
    largest = max((row.coordinator_peak or 0 for row in rows), default=0)
    return Report(
        "large",
        {"parties": len(PARTIES), "calls": list(calls), "blocks": len(blocks), "bits": 8},
        seed,
        {"rows": [asdict(row) for row in rows]},
        [
            table(
                f"{mode}, 8 bits, {len(PARTIES)} parties",
                (*columns, *peaks),
                [_cells(row) for row in rows],
            )
        ],
        [Target("the coordinator's peak, bytes", PEAK, largest)],
        seconds=time.perf_counter() - started,
    )


@dataclass
class Pipes:
    """An engine whose parties are processes of this machine."""

    ends: Mapping[str, Connection]
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Send to all, and then hear all, in one order."""
        for party, frame in frames.items():
            self.ends[party].send_bytes(frame.to_bytes())
            self.down[party] = self.down.get(party, 0) + frame.size
        for party in frames:
            answer = Frame.from_bytes(self.ends[party].recv_bytes())
            self.up[party] = self.up.get(party, 0) + answer.size
            yield party, answer


def _run(vectors: Sequence[int], mode: Protection, seed: int) -> Row:
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
    told = []
    for process, end in zip(processes, ends.values(), strict=True):
        end.send_bytes(b"")
        told.append(end.recv())
        process.join()
    return Row(
        mode,
        len(vectors),
        sum(vectors),
        max(engine.up.values()),
        max(engine.down.values()),
        seconds,
        max(cpu for cpu, _ in told),
        spent,
        None if before is None or after is None else after - before,
        max((peak for _, peak in told if peak is not None), default=None),
    )


def _program(vectors: Sequence[int], seed: int) -> Any:
    """Sum one vector after the other; what is left over of one is let go of with it."""

    async def program(cohort: Cohort) -> None:
        rng = np.random.default_rng(seed)
        for number, values in enumerate(vectors):
            vector = rng.standard_normal(values, np.float32)
            await cohort.sum({f"block {number}": vector}, carry=True)
            cohort.leftover(f"block {number}")

    return program


def _serve(session: Session, end: Connection) -> None:
    """One party: answer frames until there are no more, and tell what that took."""
    before, cpu = resident(reset=True), time.process_time()
    while data := end.recv_bytes():
        end.send_bytes(session.step(Frame.from_bytes(data)).to_bytes())
    after = resident(peak=True)
    peak = None if before is None or after is None else after - before
    end.send((time.process_time() - cpu, peak))


def _cells(row: Row) -> tuple[str, ...]:
    def megabytes(peak: int | None) -> str:
        return "-" if peak is None else f"{peak / 1e6:.0f}"

    return (
        str(row.sums),
        f"{row.values / 1e6:.0f}",
        f"{row.up / 1e6:.0f}",
        f"{row.down / 1e6:.0f}",
        f"{row.seconds:.0f}",
        f"{row.party_cpu:.0f}",
        f"{row.coordinator_cpu:.1f}",
        megabytes(row.coordinator_peak),
        megabytes(row.party_peak),
    )
