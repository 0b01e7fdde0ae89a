"""A party that sends another contribution than it tagged, and the evidence against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.public import from_parts, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.party.context import Checkpoints
from secure_fl.protocol.frames import cut
from secure_fl.protocol.messages import Finding, SumInput
from secure_fl.testing.harness import Faults


class Kept(Checkpoints):
    """Evidence against parties, in memory."""

    def __init__(self) -> None:
        self.cases: dict[str, bytes] = {}

    def convict(self, party: str, evidence: bytes) -> None:
        self.cases[party] = evidence


@dataclass
class Spoiler:
    """A party that adds 1 to a slot of its sealed contributions, after it tagged them."""

    keys: PartyKeys
    slot: int = 0  # -1: the tag
    hides: bool = False  # from an inquiry; else it shows what it sent
    when: Callable[[SumInput], bool] = lambda message: True
    sent: bytes = field(default=b"", init=False)  # in the last sum

    @property
    def faults(self) -> Faults:
        """The steps at which it misbehaves."""
        return {SumInput: self.contribute, Finding: self.show}

    def contribute(self, message: SumInput, bulk: bytes) -> tuple[SumInput, bytes]:
        """Spoil every segment that the party contributes to."""
        if self.when(message):
            cohort = self.keys.cohort
            assert cohort is not None
            parts = cut(bulk, [segment.size for segment in message.segments])
            changed = []
            for segment, data in zip(message.segments, parts, strict=True):
                if data:
                    slots = secret.open(cohort, to_parts(data, segment.slots), segment.slots)
                    slots[self.slot] = (slots[self.slot] + np.uint64(1)) % np.uint64(COHORT.modulus)
                    data = from_parts(secret.seal(cohort, slots))
                changed.append(data)
            bulk = b"".join(changed)
        self.sent = bulk
        return message, bulk

    def show(self, message: Finding, bulk: bytes) -> tuple[Finding, bytes]:
        """Answer the coordinator, which asks for the spoiled contribution."""
        return message, b"" if self.hides or not bulk else self.sent
