"""Messages between engines: a kind, the step it belongs to, and for some kinds a frame.

An exchange is one numbered step. The coordinator sends `STEP` with its frame, and the party replies
with `ANSWER` and its own frame. Both may be lost, so the coordinator repeats its question with
`ASK`. The party repeats its answer, or replies `RESEND` if it does not know the step. `END` closes
the conversation.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from secure_fl.errors import WireError
from secure_fl.protocol.frames import Frame

VERSION = 1
TOKEN_BYTES = 16
HEADER = struct.Struct(f">BB{TOKEN_BYTES}sQ")


class MessageKind(IntEnum):
    """The kinds of transport messages; a closed table."""

    STEP = 1
    ASK = 2
    END = 3
    ANSWER = 4
    RESEND = 5


FROM_COORDINATOR = frozenset({MessageKind.STEP, MessageKind.ASK, MessageKind.END})
FROM_PARTY = frozenset({MessageKind.ANSWER, MessageKind.RESEND})
WITH_FRAME = frozenset({MessageKind.STEP, MessageKind.ANSWER})


class StepId(NamedTuple):
    """A step of one life of the coordinator: numbers begin again when it is restarted."""

    life: bytes
    number: int


class TransportMessage(NamedTuple):
    """One message of the engine; the frame is opaque to it."""

    kind: MessageKind
    step: StepId
    frame: Frame = Frame(b"")

    def to_buffers(self) -> list[bytes]:
        """Byte strings to send one after the other; the bulk is not copied."""
        header = HEADER.pack(VERSION, self.kind, self.step.life, self.step.number)
        if self.kind not in WITH_FRAME:
            return [header]
        start = header + Frame(self.frame.head).to_bytes()
        return [start, self.frame.bulk] if self.frame.bulk else [start]

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> TransportMessage:
        """The inverse of `to_buffers`."""
        view = memoryview(data)
        if len(view) < HEADER.size:
            raise WireError("a parcel is cut short")
        version, kind, life, number = HEADER.unpack_from(view)
        if version != VERSION or kind not in MessageKind.__members__.values():
            raise WireError("a parcel is of an unknown version or kind")
        rest = view[HEADER.size :]
        if kind not in WITH_FRAME:
            if rest:
                raise WireError("a parcel carries what its kind does not")
            return cls(MessageKind(kind), StepId(life, number))
        size = int.from_bytes(rest[:4], "big")
        if len(rest) < 4 + size:
            raise WireError("a frame is cut short", field="head")
        frame = Frame(bytes(rest[4 : 4 + size]), bytes(rest[4 + size :]))
        return cls(MessageKind(kind), StepId(life, number), frame)
