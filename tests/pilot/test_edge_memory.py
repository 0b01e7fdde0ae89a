"""What a stranger sends costs no more than it weighs, and what is no frame is an error."""

from __future__ import annotations

import random
import time

import msgspec
import pytest

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing.clear_sum import ClearTotal
from secure_fl.engines.transport_message import HEADER, MessageKind, StepId, TransportMessage
from secure_fl.errors import SecureFLError, WireError
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Frame, Link, peek
from tests.support.edge import envelope_of, peak
from tests.support.mutants import head_of, nested
from tests.support.raising import raises


def test_memory_and_time_stay_bounded(opened):
    """No forged frame is even decoded: it costs what it weighs, at either end."""
    made = opened()
    step = made.processes["hospital-1"].step
    link = made.link(b"r" * 16, "hospital-1")
    many = 200_000
    heavy = {
        "rounds": [1, [], None, [[0, []]] * many],
        "counts": [1, [1000] * many, None, []],
        "names": [22, {f"{i:x}": [] for i in range(many)}],
        "shares": [1, [], [b"a" * 32, {f"{i:x}": b"" for i in range(many)}]],
        "deep": [4, nested(500), {}],
    }
    for message in heavy.values():
        frame = Frame(head_of(envelope_of(message), b"s" * 64))
        began = time.thread_time()
        assert peak(step, frame) < 2 * frame.size + 2**16
        assert peak(link.unpack, frame) < 2**16
        assert time.thread_time() - began < 5
    start = head_of(envelope_of([1])[:7], b"")
    start = start[:1] + b"\x98" + start[2:]
    for kind in range(33):
        for huge in (b"\xdd", b"\xdf", b"\xdb", b"\xc6"):
            declared = start + bytes([0x92, kind]) + huge + b"\xff\xff\xff\xff" + b"s" * 64
            assert peak(step, Frame(declared)) < 2**16
            assert peak(link.unpack, Frame(declared)) < 2**16
    too_large = Frame(bytes([frames.VERSION]) * (frames.MAX_HEAD + 65))
    assert peak(step, too_large) < 2**16  # not even hashed
    assert peak(link.unpack, too_large) < 2**16
    bulk = Frame(head_of(envelope_of([28, "x"]), b"s" * 64), bytes(2**24))
    assert peak(step, bulk) < 2**16
    assert peak(link.unpack, bulk) < 2**16


def test_parcels_are_whole_or_errors():
    """The engine's own layer: any bytes at all."""
    rng = random.Random(5)
    frame, step = Frame(b"h" * 90, b"b" * 300), StepId(b"l" * 16, 7)
    genuine = [b"".join(TransportMessage(kind, step, frame).to_buffers()) for kind in MessageKind]
    refused = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(genuine))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 32))] = rng.randrange(256)
        data = data[: rng.choice((len(data), rng.randrange(len(data) + 1)))]
        try:
            parcel = TransportMessage.from_bytes(data)
        except WireError:
            refused += 1
        else:  # what was read is what is there, and no byte more
            assert b"".join(parcel.to_buffers()) == bytes(data)
    assert 1000 < refused < 19_000
    header = HEADER.pack(1, MessageKind.STEP, b"l" * 16, 7)
    assert peak(TransportMessage.from_bytes, header + b"\xff\xff\xff\xff" + b"x") < 2**12


def test_a_wrong_kind_does_not_move_the_counter():
    """`nothing was accepted` must be true of what it is said of."""
    server, party = Identity.generate("server"), Identity.generate("north")
    asks = Link(b"r" * 16, server, party.public, asks=True, exchange=98)
    answers = Link(b"r" * 16, party, server.public, asks=False)
    with raises(WireError, field="kind", round=0, step=0):
        answers.unpack(asks.pack(messages.Done()))
    assert answers.exchange == 0


@pytest.mark.parametrize("message", [[10, "policy\n"], [10, "a name"], [3, "host\n", []]])
def test_a_code_is_a_code_to_its_last_byte(message):
    """`$` would let a line end pass, and with it a line of one's own into a log."""
    with pytest.raises(msgspec.ValidationError, match=r"regex|enum"):
        peek(head_of(envelope_of(message)))


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (8, 6)])
def test_clear_sums_of_unequal_sizes_are_a_disagreement(sizes):
    """Protection "none": one hospital could have ended the coordinator's process."""
    total = ClearTotal()
    first, second = (messages.Segment(b"k" * 32, size) for size in sizes)
    total.add("a", (first,), bytes(first.size))
    with pytest.raises(SecureFLError):
        total.add("b", (second,), bytes(second.size))
