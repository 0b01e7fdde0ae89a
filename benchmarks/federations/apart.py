"""A run whose parties are in this process, and whose coordinator has one of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from multiprocessing import get_context

from benchmarks.lone import Spent, coordinate, receive, send
from benchmarks.simulation import Program
from secure_fl.coordinator.step import Rules
from secure_fl.crypto.identity import PublicIdentity
from secure_fl.events import EventLog
from secure_fl.federation.assembly import join_run
from secure_fl.federation.keys import make_keys
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.link import Link
from secure_fl.settings import ProtectionSettings
from secure_fl.thresholds import default_threshold

Answer = Callable[[str, Frame], Frame | None]  # what a party says to a frame; None: it is lost


def run_apart(
    protection: ProtectionSettings, program: Program, recorders: Mapping[str, EventLog]
) -> Spent:
    """Run one program at every party that has a recorder; who is done is forgotten at once."""
    keys, run = make_keys(protection.mode, sorted(recorders), None), os.urandom(16)
    cards = {name: own.identity.public for name, own in keys.items()}
    rules = Rules(None, protection.min_cohort, default_threshold(len(cards)))

    def gather(coordinator: PublicIdentity) -> Answer:
        sessions = {}
        for name, recorder in recorders.items():
            link = Link(run, keys[name].identity, coordinator, asks=False)
            own = keys[name]
            sessions[name] = join_run(program, own, link, rules, protection, recorder=recorder)

        def answer(party: str, frame: Frame) -> Frame:
            session = sessions[party]
            reply = session.step(frame)
            if session.error:
                raise session.error
            if session.done:
                del sessions[party]
            return reply

        return answer

    return converse(protection, rules, cards, run, gather)


def converse(
    protection: ProtectionSettings,
    rules: Rules,
    cards: Mapping[str, PublicIdentity],
    run: bytes,
    gather: Callable[[PublicIdentity], Answer],
) -> Spent:
    """Start a coordinator, gather parties that know it, and let them answer until it is done."""
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=coordinate, args=(theirs, protection, rules, cards, run), daemon=True
    )
    process.start()
    theirs.close()
    try:
        answer = gather(pipe.recv())
        while party := pipe.recv():
            send(pipe, answer(party, receive(pipe)) or Frame(b""))
        spent: Spent = pipe.recv()
    except BaseException:
        process.kill()
        raise
    finally:
        pipe.close()
        process.join()
    return spent
