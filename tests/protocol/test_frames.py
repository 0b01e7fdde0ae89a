"""Frames: nothing malformed, forged, replayed, reordered or foreign is accepted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.keys.identity import Identity
from secure_fl.errors import CryptoError, SecureFLError, WireError
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Bulk, Frame, Link
from tests.support.raising import raises


@pytest.fixture
def ends() -> tuple[Link, Link]:
    server, party, run = Identity.generate("server"), Identity.generate("north"), os.urandom(16)
    return (Link(run, server, party.public, asks=True), Link(run, party, server.public, asks=False))


def test_a_conversation(ends: tuple[Link, Link]) -> None:
    server, party = ends
    for _ in range(3):
        asked = server.pack(messages.Start(("north",)), Bulk.of(b"to north"))
        assert party.unpack(asked) == messages.Start(("north",))
        answer = party.pack(messages.Ready((1, 2)))
        assert server.unpack(answer) == messages.Ready((1, 2))
    assert server.bytes_out == party.bytes_in > 0
    assert server.bytes_in == party.bytes_out > 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    server, party, run = Identity.generate("server"), Identity.generate("north"), b"r" * 16
    frame = Link(run, server, party.public, asks=True).pack(
        messages.Start(("north",)), Bulk.of(b"bulk")
    )
    parts = [bytearray(frame.head), bytearray(frame.bulk)]
    part = data.draw(st.sampled_from(parts))
    bit = data.draw(st.integers(0, 8 * len(part) - 1))
    part[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(SecureFLError):
        Link(run, party, server.public, asks=False).unpack(Frame(*map(bytes, parts)))


def test_replay_and_reorder_are_refused(ends: tuple[Link, Link]) -> None:
    server, party = ends
    first, second = server.pack(messages.Agreed({})), server.pack(messages.Agreed({}))
    party.unpack(first)
    with raises(WireError, field="exchange", round=0, step=1):
        party.unpack(first)
    party.unpack(second)
    with raises(WireError, field="exchange", round=0, step=2):
        party.unpack(first)
    server.unpack(party.pack(messages.Done()))
    late = party.pack(messages.Done())
    server.pack(messages.Agreed({}))
    with raises(WireError, field="exchange", round=0, step=3):
        server.unpack(late)


def test_a_frame_of_another_run_is_refused(ends: tuple[Link, Link]) -> None:
    server, party = ends
    server.run = os.urandom(16)
    with raises(WireError, field="run", round=0, step=0):
        party.unpack(server.pack(messages.Agreed({})))


def test_a_round_never_goes_back(ends: tuple[Link, Link]) -> None:
    server, party = ends
    server.round = 2
    party.unpack(server.pack(messages.Agreed({})))
    server.round = 1
    with raises(WireError, field="round", round=2, step=1):
        party.unpack(server.pack(messages.Agreed({})))


def test_another_sender_is_refused(ends: tuple[Link, Link]) -> None:
    server, party = ends
    mallory = Identity.generate("server")  # the right name, other keys
    forged = Link(party.run, mallory, party.me.public, asks=True).pack(messages.Agreed({}))
    with raises(CryptoError, field="signature"):
        party.unpack(forged)
    other = Link(party.run, Identity.generate("south"), party.me.public, asks=True)
    with raises(CryptoError, field="signature"):
        party.unpack(other.pack(messages.Agreed({})))
    misnamed = Identity.from_private_bytes(server.me.to_private_bytes()[:161] + b"south")
    renamed = Link(party.run, misnamed, party.me.public, asks=True)
    with raises(WireError, field="sender", round=0, step=0):  # the right keys, another name
        party.unpack(renamed.pack(messages.Agreed({})))


def test_a_frame_for_another_receiver_is_refused(ends: tuple[Link, Link]) -> None:
    server, party = ends
    for_south = Link(party.run, server.me, Identity.generate("south").public, asks=True)
    with raises(WireError, field="receiver", round=0, step=0):
        party.unpack(for_south.pack(messages.Agreed({})))


def test_a_party_cannot_speak_as_the_coordinator(ends: tuple[Link, Link]) -> None:
    server, party = ends
    party.unpack(server.pack(messages.Agreed({})))
    with raises(WireError, field="kind", round=0, step=1):
        server.unpack(party.pack(messages.Agreed({})))


@pytest.mark.parametrize(
    "message",
    [
        [99],  # a kind that is not in the table
        [26, "more"],  # a field too many
        [7, b"short"],  # a digest of the wrong length
        [3, "everybody", []],  # an audience that does not exist
        [10, "Some free text!"],  # a code must not carry text
    ],
)
def test_messages_outside_the_closed_table_are_refused(message: list[object]) -> None:
    fields = [b"r" * 16, 0, 0, "a", "b", 0, frames.digest(b""), message]
    head = bytes([frames.VERSION]) + msgspec.msgpack.encode(fields) + bytes(frames.SIGNATURE_BYTES)
    with raises(WireError, field="message"):
        frames.decode(Frame(head), lambda digest, signature: None)


@pytest.mark.parametrize(
    ("message", "least", "most"),
    [
        (lambda n: messages.Ready(tuple(range(n))), 0, 16),  # checkpoints
        (lambda n: messages.Handover(None, bytes(n)), 32, 64),  # a proof
        (lambda n: messages.Hello(bytes(n)), 16, 64),  # a nonce
        (lambda n: messages.Failed("keys", "x" * n), 0, 200),  # a name
        (lambda n: messages.Examine("", b"", show="x" * n), 0, 200),
    ],
)
def test_fields_have_the_sizes_of_the_specification_and_no_others(
    message: Callable[[int], messages.Message], least: int, most: int
) -> None:
    """docs/protocol.md 4.5: a program of another version reads every size that this one sends."""
    decoder = msgspec.msgpack.Decoder(type(message(least)))
    for size in (least, most):
        decoder.decode(msgspec.msgpack.encode(message(size)))
    for size in {max(least - 1, 0), most + 1} - {least}:
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(msgspec.msgpack.encode(message(size)))


DEFAULTS: dict[str, object] = {
    "nil": None,
    "false": False,
    "0": 0,
    "[0, 0]": (0, 0),
    "[]": (),
    "{}": {},
    '""': b"",
}


def specified() -> dict[str, dict[str, object]]:
    """Read the defaults of all kinds of messages from the table of docs/protocol.md 4.5."""
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    found: dict[str, dict[str, object]] = {}
    for kinds, fields in re.findall(r"^\| [\d, ]+ \| ([\w, ]+) \| (.*) \|$", page, re.M):
        names = kinds.split(", ")
        for name, text in zip(names, fields.split("; ") if names[1:] else [fields], strict=False):
            defaults = re.findall(r"(\w+)(?: \([^)]*\))? = (\w+|\[0, 0\]|\[\]|\{\}|\"\")", text)
            found[name] = {field: DEFAULTS[value] for field, value in defaults}
    return found


def test_omitted_fields_have_the_defaults_of_the_specification() -> None:
    """An older program sends shorter messages: both ends must read the same from them."""
    table = specified()
    assert len(table) > 25
    for name, expected in table.items():
        defaults: dict[str, object] = {}
        for field in msgspec.structs.fields(getattr(messages, name)):
            if not field.required:
                made = field.default_factory is not msgspec.NODEFAULT
                value = field.default_factory() if made else field.default
                defaults[field.encode_name] = value.encode() if isinstance(value, str) else value
        assert defaults == expected, name


def test_versions_and_sizes_are_checked_first() -> None:
    with raises(WireError, field="version"):
        frames.decode(Frame(bytes([9]) + bytes(200)), lambda *_: None)
    with raises(WireError, field="size"):
        frames.decode(Frame(b"\x01"), lambda *_: None)
    with raises(WireError, field="head"):
        Frame.from_bytes(b"\x00\x00\xff\xffabc")


@pytest.mark.parametrize("bulk", [b"", b"x"])
def test_a_frame_survives_the_joined_form_and_a_shorter_one_is_refused(bulk: bytes) -> None:
    data = Frame(b"head", bulk).to_bytes()
    assert Frame.from_bytes(data) == Frame(b"head", bulk)
    with raises(WireError, field="head"):
        Frame.from_bytes(data[:7])
