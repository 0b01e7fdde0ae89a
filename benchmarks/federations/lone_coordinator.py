"""A coordinator that is alone in its process: its CPU time and its memory are then its own.

Frames reach it through a pipe, and what that takes of its time is told apart from its work. Like
any coordinator's, its process loads neither torch nor an algorithm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.micro.memory import resident
from secure_fl.coordinator.assembly import lead_run, links_to
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.protocol.frames import Frame
from secure_fl.settings import ProtectionSettings


@dataclass(frozen=True, slots=True)
class Spent:
    """What a coordinator's process took for one run."""

    cpu_seconds: float  # checking, adding, answering
    pipe_cpu_seconds: float  # copying frames into and out of the pipe
    peak_resident: int | None  # bytes over what it held before; None where the system is silent


@dataclass(slots=True)
class PipeEngine:
    """An engine whose parties are at the other end of a pipe, one frame on its way at a time."""

    pipe: Connection
    cpu_seconds: float = 0.0

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """One answer after the other."""
        for party, frame in frames.items():
            start = time.process_time()
            self.pipe.send(party)
            send(self.pipe, frame)
            answer = receive(self.pipe)
            self.cpu_seconds += time.process_time() - start
            yield party, answer


def send(pipe: Connection, frame: Frame) -> None:
    """Write a frame without joining its parts."""
    pipe.send_bytes(frame.head)
    pipe.send_bytes(frame.bulk)


def receive(pipe: Connection) -> Frame:
    """Read what `send` wrote."""
    return Frame(pipe.recv_bytes(), pipe.recv_bytes())


def coordinate(
    pipe: Connection,
    protection: ProtectionSettings,
    rules: CoordinatorRules,
    cards: Mapping[str, PublicIdentity],
    run: bytes,
) -> None:
    """Tell the other end who this is, run, and tell what that took."""
    me = Identity.generate("coordinator")
    pipe.send(me.public)
    links = links_to(cards, me, run)
    engine = PipeEngine(pipe)
    coordinator = lead_run(links, engine, rules, protection)
    before, start = resident(reset=True), time.process_time()
    coordinator.run()
    seconds, peak = time.process_time() - start, resident(peak=True)
    grown = None if before is None or peak is None else peak - before
    pipe.send("")
    pipe.send(Spent(seconds - engine.cpu_seconds, engine.cpu_seconds, grown))
    pipe.close()
