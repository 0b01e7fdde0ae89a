"""Seeded mutations of genuine frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from secure_fl.crypto.keys.identity import Identity
from secure_fl.protocol import frames
from secure_fl.protocol.frames import SIGNATURE_BYTES, VERSION, Frame

Mutator = Callable[[random.Random, Frame, Sequence[Frame]], Frame]
STRANGER = Identity.generate("coordinator")  # the right name, other keys


def flipped(rng: random.Random, data: bytes) -> bytes:
    """One to three bits are wrong."""
    found = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 3)):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def cut(rng: random.Random, data: bytes) -> bytes:
    """The end, or the beginning, is missing."""
    at = rng.randrange(len(data)) if data else 0
    return data[:at] if rng.random() < 0.5 else data[at + 1 :]


def longer(rng: random.Random, data: bytes) -> bytes:
    """Something was put in."""
    at, more = rng.randint(0, len(data)), rng.randbytes(rng.choice((1, 4, 64, 1000)))
    return data[:at] + more + data[at:]


def tree(frame: Frame) -> list[Any]:
    """Decode a head into plain lists and maps."""
    found: list[Any] = msgspec.msgpack.decode(frame.head[1:-SIGNATURE_BYTES], strict=False)
    return found


def head_of(envelope: Any, signature: bytes = bytes(SIGNATURE_BYTES)) -> bytes:
    """Bytes that say this, with whatever signature."""
    return bytes([VERSION]) + msgspec.msgpack.encode(envelope) + signature


def signed(envelope: Any, by: Identity) -> bytes:
    """The same, with a genuine signature of somebody."""
    unsigned = bytes([VERSION]) + msgspec.msgpack.encode(envelope)
    return unsigned + by.sign(frames.digest(unsigned))


def nested(depth: int) -> Any:
    """Lists in lists."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


def odd(rng: random.Random) -> Any:
    """A value that no field has."""
    return rng.choice(
        (
            None, True, -1, 2**31, 2**63, 1e300, float("nan"), "", "../x", "a" * 300, b"",
            rng.randbytes(32), rng.randbytes(64), [], [[]], {}, {"a": {}}, {1: 2}, nested(400),
            ["a"] * 50, {"coordinator": b"0" * 16}, msgspec.msgpack.Ext(5, b"x"), [99, 1], "host\n",
        )
    )  # fmt: skip


def changed(rng: random.Random, value: Any) -> Any:
    """A tree with one place that is another: replaced, taken out, doubled or moved."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        found = dict(value)
        if rng.random() < 0.3:
            found[rng.choice(("", "x", "hospital-9", 7))] = found.pop(key)
        else:
            found[key] = changed(rng, value[key])
        return found
    if isinstance(value, list) and value and rng.random() < 0.9:
        items, at = list(value), rng.randrange(len(value))
        match rng.randrange(5):
            case 0:
                del items[at]
            case 1:
                items.insert(at, rng.choice((items[at], odd(rng))))
            case 2:
                rng.shuffle(items)
            case _:
                items[at] = changed(rng, items[at])
        return items
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2, 1000))
    if isinstance(value, bytes) and rng.random() < 0.4:
        return rng.choice((flipped, cut, longer))(rng, value)
    return odd(rng)


def _head(change: Callable[[random.Random, bytes], bytes]) -> Mutator:
    return lambda rng, frame, others: frame._replace(head=change(rng, frame.head))


def _bulk(change: Callable[[random.Random, bytes], bytes]) -> Mutator:
    return lambda rng, frame, others: frame._replace(bulk=change(rng, frame.bulk))


def _tree(change: Callable[[random.Random, list[Any]], Any]) -> Mutator:
    """Another content under the signature of the genuine one."""

    def mutate(rng: random.Random, frame: Frame, others: Sequence[Frame]) -> Frame:
        envelope = change(rng, tree(frame))
        return frame._replace(head=head_of(envelope, frame.head[-SIGNATURE_BYTES:]))

    return mutate


def _with(place: int, value: Callable[[random.Random], Any]) -> Mutator:
    return _tree(lambda rng, e: [*e[:place], value(rng), *e[place + 1 :]])


def _lengths(rng: random.Random, frame: Frame, others: Sequence[Frame]) -> Frame:
    """The length that a byte string declares for its head is another."""
    size = rng.choice((0, 1, len(frame.head) - 1, len(frame.head) + 1, 2**32 - 1, rng.randrange(9)))
    return Frame.from_bytes(size.to_bytes(4, "big") + frame.to_bytes()[4:])


def _declared(rng: random.Random, frame: Frame, others: Sequence[Frame]) -> Frame:
    """An array, a map, text or bytes of up to four thousand million, and then nothing."""
    start = head_of(tree(frame)[:7], b"")
    start = start[:1] + bytes([0x98]) + start[2:]  # eight fields are announced
    kind = bytes([0x92, rng.randrange(33)])
    size = rng.choice((2**16, 2**24, 2**32 - 1)).to_bytes(4, "big")
    huge = rng.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6")) + size
    return frame._replace(head=start + kind + huge + frame.head[-SIGNATURE_BYTES:])


def _deep(rng: random.Random, frame: Frame, others: Sequence[Frame]) -> Frame:
    start = head_of(tree(frame)[:7], b"")
    opening = rng.choice((b"\x91", b"\x81\xa1a", b"\x92\x01"))
    start = start[:1] + bytes([0x98]) + start[2:] + opening * rng.choice((10, 2000, 20_000))
    return frame._replace(head=start + frame.head[-SIGNATURE_BYTES:])


MUTATORS: Mapping[str, Mutator] = {
    "bits of the head": _head(flipped),
    "bits of the bulk": _bulk(flipped),
    "the head cut": _head(cut),
    "the bulk cut": _bulk(cut),
    "the head longer": _head(longer),
    "the bulk longer": _bulk(longer),
    "another's bulk": lambda rng, f, others: f._replace(bulk=rng.choice(others).bulk),
    "another's head": lambda rng, f, others: f._replace(head=rng.choice(others).head),
    "another's signature": lambda rng, f, others: f._replace(
        head=f.head[:-SIGNATURE_BYTES] + rng.choice(others).head[-SIGNATURE_BYTES:]
    ),
    "another frame": lambda rng, f, others: rng.choice(others),
    "the frame before": lambda rng, f, others: others[-1 - rng.randrange(min(8, len(others)))],
    "the length": _lengths,
    "the version": lambda rng, f, others: f._replace(
        head=bytes([rng.choice((0, 2, 255))]) + f.head[1:]
    ),
    "the run": _with(0, lambda rng: rng.randbytes(rng.choice((0, 15, 16, 17)))),
    "the exchange": _with(1, lambda rng: rng.choice((-1, 0, 2, 7, 2**31, 2**40))),
    "the sender": _with(3, lambda rng: rng.choice(("", "hospital-1", "hospital-9", "x" * 201))),
    "types": _tree(changed),
    "types, signed by a stranger": lambda rng, f, others: f._replace(
        head=signed(changed(rng, tree(f)), STRANGER)
    ),
    "signed by a stranger": lambda rng, f, others: f._replace(head=signed(tree(f), STRANGER)),
    "deep": _deep,
    "declared": _declared,
    "noise": lambda rng, f, others: Frame(rng.randbytes(rng.choice((0, 1, 64, 65, 500)))),
}
