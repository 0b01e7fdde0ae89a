"""Lies of a member or of the coordinator, for tests of blame in any process.

Sessions, sums and steps are the installed program's; a `Liar` changes its own messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec import structs

from secure_fl.coordinator.run_steps import ReadyStep
from secure_fl.coordinator.sum_steps import SumStep
from secure_fl.crypto.sealing import masking, packing, transcript
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.packing import HUGE, Layout, squared_norm
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.party.session import Session
from secure_fl.protocol.messages import (
    MOST_NOTES,
    Boundary,
    Complaint,
    Failed,
    Ready,
    SumInput,
    Total,
    Unmask,
    UnmaskShares,
)

COORDINATOR = "coordinator"
EMPTY, FLOOD, BACK = "an empty disk", "a flood of notes", "sent back to the start"
AT_GATHERINGS = (EMPTY, FLOOD, BACK)  # there is one chance each time that a run is gathered
BY_MEMBERS = (
    "wrong tag",
    "wrong tag, hidden",
    "false share",
    "malformed share",
    "false complaint",
    "failed",
    "restarted",
    "another step",
    "negative norm",
    EMPTY,
    FLOOD,
)
BY_COORDINATORS = ("changed total", "one alone", "two stories", BACK)
LIES = (*BY_MEMBERS, *BY_COORDINATORS)
SMALLER = -1e9  # than any sum of squared norms


@dataclass(slots=True)
class Liar:
    """A liar, its lie, and the first of its chances that it takes: each time, or once.

    `note`: a file with a line for each lie, from which a restarted process continues.
    """

    name: str
    lie: str
    first: int
    once: bool
    note: Path | None = None
    chances: int = 0
    told: int = 0
    speaking: str = ""  # the party of the current session

    def __post_init__(self) -> None:
        if self.note is not None and self.note.exists():
            self.told = len(self.note.read_text().splitlines())

    def lies(self, who: str, *lies: str) -> bool:
        """Return True, and count it, if the liar tells one of these lies now."""
        if who != self.name or self.lie not in lies:
            return False
        self.chances += 1
        if self.chances < self.first or (self.once and self.told):
            return False
        self.told += 1
        if self.note is not None:
            with self.note.open("a") as file:
                file.write(f"{self.chances}\n")
        return True


@contextmanager
def lying(liar: Liar) -> Iterator[None]:
    """Patch the program of one member, or of the coordinator."""
    with ExitStack() as stack:
        for where, name, what in (*_of_members(liar), *_of_coordinators(liar)):
            stack.enter_context(patch.object(where, name, what))
        yield


def _of_members(liar: Liar) -> Iterator[tuple[Any, str, Any]]:
    masked, reveal, norm = SecureSumInProgress._masked, StepKeys.reveal, squared_norm
    answer, examine, encode = Session._answer, Session._examine, Layout.encode

    def wrong_tag(sum: SecureSumInProgress, *what: Any) -> Any:
        slots = masked(sum, *what)
        if liar.lies(sum._context.me, "wrong tag", "wrong tag, hidden"):
            slots[-1] = (slots[-1] + np.uint64(1)) % np.uint64(COHORT.modulus)
        return slots

    def hidden(session: Session, message: Any, frame: Any) -> Any:
        found, bulk = examine(session, message, frame)
        hides = session.party == liar.name and liar.lie == "wrong tag, hidden"
        return found, b"" if hides else bulk

    def false_share(keys: StepKeys, *what: Any) -> UnmaskShares:
        shares = reveal(keys, *what)
        if shares.seeds and liar.lies(keys.me, "false share", "malformed share"):
            owner = min(shares.seeds)
            value = (int.from_bytes(shares.seeds[owner], "big") + 1) % masking.PRIME
            false = value.to_bytes(masking.SHARE_BYTES, "big")
            if liar.lie == "malformed share":
                false = bytes([255]) * 64
            return structs.replace(shares, seeds={**shares.seeds, owner: false})
        return shares

    def false_norm(vector: Any) -> float:
        return SMALLER if liar.lies(liar.speaking, "negative norm") else norm(vector)

    def with_norms(layout: Layout, *what: Any) -> Any:
        """Encode a norm below zero, which honest programs refuse."""
        slots, leftovers = encode(layout, *what)
        normed = any(field.norm for field in layout.packed)
        if normed and liar.lies(liar.speaking, "negative norm"):
            end = packing.WIDE_LIMBS * layout.scalars
            numbers = packing.decode_wide(slots[:end], 1)
            numbers[-2] = SMALLER / HUGE  # of the last vector, in large units
            slots[:end] = packing.encode_wide(numbers)
        return slots, leftovers

    def said(session: Session, message: Any, frame: Any) -> Any:
        liar.speaking = session.party
        found, bulk = answer(session, message, frame)
        if isinstance(message, Total) and liar.lies(session.party, "false complaint"):
            return Complaint(frame.head), frame.bulk
        if isinstance(found, SumInput):
            for lie, instead in (
                ("failed", Failed("training")),
                ("restarted", Failed("restarted")),
                ("another step", Boundary(1)),
            ):
                if liar.lies(session.party, lie):
                    return instead, b""
        if isinstance(found, Ready) and liar.lies(session.party, EMPTY):
            return structs.replace(found, checkpoints=(), opened=()), bulk
        if isinstance(found, Ready) and liar.lies(session.party, FLOOD):
            notes = tuple((1, k, (session.party, f"nobody-{k}")) for k in range(MOST_NOTES + 1))
            return structs.replace(found, opened=notes), bulk
        return found, bulk

    yield SecureSumInProgress, "_masked", wrong_tag
    yield Session, "_examine", hidden
    yield StepKeys, "reveal", false_share
    yield Session, "_answer", said
    yield Layout, "encode", with_norms
    yield transcript, "squared_norm", false_norm


def _of_coordinators(liar: Liar) -> Iterator[tuple[Any, str, Any]]:
    result, ready, reply = ProtectedTotal.result, ReadyStep.reply, SumStep.reply

    def changed(total: ProtectedTotal, *what: Any) -> Any:
        found = dict(result(total, *what))
        if found and liar.lies(COORDINATOR, "changed total"):
            return {k: d[:200] + bytes([d[200] ^ 64]) + d[201:] for k, d in found.items()}
        return found

    def back(step: ReadyStep, members: tuple[str, ...]) -> Any:
        said = ready(step, members)
        told = said.messages
        if any(m.after_round for m in told.values()) and liar.lies(COORDINATOR, BACK):  # type: ignore[union-attr]
            step.round, step.newcomers, step.to_repeat = 1, (), ()
            told = {k: structs.replace(m, after_round=0, newcomers=()) for k, m in told.items()}
        return said._replace(messages=told)

    def unmask(step: SumStep, members: tuple[str, ...]) -> Any:
        said = reply(step, members)
        told = {k: m for k, m in said.messages.items() if isinstance(m, Unmask)}
        if told and liar.lies(COORDINATOR, "one alone"):
            lists = {"survivors": members[-1:], "dropped": members[:-1]}
            told = {k: structs.replace(m, **lists) for k, m in told.items()}
        elif told and liar.lies(COORDINATOR, "two stories"):
            lists = {"survivors": members[:-1], "dropped": members[-1:]}
            told |= {members[0]: structs.replace(told[members[0]], **lists)}
        return said._replace(messages={**said.messages, **told})

    yield ProtectedTotal, "result", changed
    yield ReadyStep, "reply", back
    yield SumStep, "reply", unmask
