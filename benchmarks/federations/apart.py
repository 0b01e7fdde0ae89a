"""A run whose parties are in this process, and whose coordinator has one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

from benchmarks.federations.lone_coordinator import Spent, coordinate, receive, send
from benchmarks.simulation import Program
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.events import EventLog
from secure_fl.federation.assembly import PartyContext, join_run
from secure_fl.federation.keys import make_keys
from secure_fl.protocol.frames import Link
from secure_fl.settings import ProtectionSettings
from secure_fl.thresholds import default_threshold


def run_apart(
    protection: ProtectionSettings, program: Program, recorders: Mapping[str, EventLog]
) -> Spent:
    """Run one program at every party that has a recorder; who is done is forgotten at once."""
    keys, run = make_keys(protection.mode, sorted(recorders), None), os.urandom(16)
    cards = {name: own.identity.public for name, own in keys.items()}
    rules = CoordinatorRules(None, protection.min_cohort, default_threshold(len(cards)))
    with coordinator_of(protection, rules, cards, run) as pipe:
        coordinator: PublicIdentity = pipe.recv()
        sessions = {}
        for name, recorder in recorders.items():
            link = Link(run, keys[name].identity, coordinator, asks=False)
            context = PartyContext(keys[name], link, rules, protection, recorder=recorder)
            sessions[name] = join_run(program, context)
        while party := pipe.recv():
            session = sessions[party]
            reply = session.step(receive(pipe))
            if session.error:
                raise session.error
            if session.done:
                del sessions[party]
            send(pipe, reply)
        spent: Spent = pipe.recv()
    return spent


@contextmanager
def coordinator_of(
    protection: ProtectionSettings,
    rules: CoordinatorRules,
    cards: Mapping[str, PublicIdentity],
    run: bytes,
) -> Iterator[Connection]:
    """A coordinator in a process of its own, at the other end of a pipe."""
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=coordinate, args=(theirs, protection, rules, cards, run), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield pipe
    except BaseException:
        process.kill()
        raise
    finally:
        pipe.close()
        process.join()
