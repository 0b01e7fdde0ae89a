"""Frames and messages (section 4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from vectors.reader.base import Refused, require, sha, unpacked
from vectors.reader.keys import Card

MAX_HEAD, MAX_BULK = 16 * 2**20, 2**31
Check = Callable[[Any], Any]


def _fits(condition: bool) -> None:
    if not condition:
        raise Refused("wire:message")


def number(most: int) -> Check:
    """An integer from 0."""

    def check(value: Any) -> Any:
        _fits(type(value) is int and 0 <= value <= most)
        return value

    return check


def sized(kind: type[str] | type[bytes], least: int, most: int, pattern: str = "") -> Check:
    """Text or bytes; the length of text is in characters."""

    def check(value: Any) -> Any:
        _fits(isinstance(value, kind) and least <= len(value) <= most)
        _fits(not pattern or bool(re.fullmatch(pattern, value)))
        return value

    return check


def flag(value: Any) -> Any:
    """True or false."""
    _fits(type(value) is bool)
    return value


def optional(inner: Check) -> Check:
    """None, or a value."""
    return lambda value: None if value is None else inner(value)


def many(inner: Check, most: int = 2**32, exactly: int = -1) -> Check:
    """An array of values of one kind."""

    def check(value: Any) -> Any:
        _fits(type(value) is list and len(value) <= most and exactly in (-1, len(value)))
        return [inner(one) for one in value]

    return check


def table(key: Check, inner: Check, most: int = 2**32) -> Check:
    """A map."""

    def check(value: Any) -> Any:
        _fits(type(value) is dict and len(value) <= most)
        return {key(k): inner(v) for k, v in value.items()}

    return check


def record(**fields: Any) -> Check:
    """An array of named fields; those at the end with a default may be missing."""

    def check(value: Any) -> Any:
        _fits(type(value) is list and len(value) <= len(fields))
        read = {}
        for place, (name, kind) in enumerate(fields.items()):
            inner, default = kind if isinstance(kind, tuple) else (kind, None)
            _fits(place < len(value) or isinstance(kind, tuple))
            read[name] = inner(value[place]) if place < len(value) else default
        return read

    return check


def row(*kinds: Check) -> Check:
    """An array of exactly these kinds."""

    def check(value: Any) -> Any:
        _fits(type(value) is list and len(value) == len(kinds))
        return [kind(one) for kind, one in zip(kinds, value, strict=True)]

    return check


def choice(*words: str) -> Check:
    """One of these words."""

    def check(value: Any) -> Any:
        _fits(type(value) is str and value in words)
        return value

    return check


count, size = number(2**31), number(MAX_BULK)
name, digest, run = sized(str, 1, 200), sized(bytes, 32, 32), sized(bytes, 16, 16)
text, signature, secret = sized(str, 0, 200), sized(bytes, 64, 64), sized(bytes, 16, 64)
proof, names = sized(bytes, 32, 64), many(name, 100_000)
code, at, short = sized(str, 0, 40, "[a-z-]*"), row(count, count), sized(bytes, 0, 32)
statement = record(run=run, number=count, digest=digest, signature=signature)
offer = record(
    public=digest, shares=table(name, sized(bytes, 0, 2**11)), seed=digest,
    deals=(table(name, record(key=digest, own=digest, half=digest)), {}),
    statement=(optional(statement), None),
)  # fmt: skip
Default = tuple[Check, Any]
offers: Default = (table(name, offer), {})
maybe: Default = (optional(offer), None)
salt = record(digest=digest, peers=names)
segment = record(
    key=digest, size=size, slots=(count, 0), owners=(names, []), salts=(many(salt, 256), []),
    digest=(short, b""),
)  # fmt: skip
links: Default = (table(name, digest, 128), {})
lost = record(seed=secret, salts=many(table(name, digest)), links=links)
statements: Default = (many(statement, 256), [])
head = sized(bytes, 0, 2**20)
MESSAGES: dict[int, tuple[str, Check]] = {
    tag: (kind, record(tag=count, **fields))
    for tag, kind, fields in (
        (1, "Ready", {"checkpoints": (many(count, 16), []), "offer": maybe,
                      "opened": (many(row(count, count, names), 256), [])}),
        (2, "Declare", {"names": names, "reads": (names, []), "unscaled": (names, []),
                        "at": (at, [0, 0])}),
        (3, "SumInput", {"audience": choice("parties", "host"), "segments": many(segment, 256),
                         "more": (flag, False), "at": (at, [0, 0]), "sum": (count, 0),
                         "bound": (sized(bytes, 0, 64), b""), "taken": (short, b""),
                         "links": links}),
        (4, "UnmaskShares", {"seeds": table(name, secret), "keys": table(name, secret),
                             "offer": maybe, "sum": (count, 0)}),
        (5, "Broadcast", {}), (6, "Share", {}),
        (7, "Agree", {"fingerprint": digest, "proof": digest}),
        (8, "Boundary", {"round": count}), (9, "Done", {}),
        (10, "Failed", {"code": code, "about": (text, "")}),
        (11, "Confirm", {"signature": signature}),
        (12, "Handover", {"fingerprint": (optional(digest), None),
                          "proof": (optional(proof), None)}),
        (13, "Hello", {"nonce": secret}), (14, "Gathered", {"run": run}),
        (15, "Complaint", {"total": head, "segment": (number(255), 0)}),
        (16, "Finding", {"against": (text, "")}),
        (20, "Start", {"members": names}),
        (21, "Begin", {"after_round": count, "members": names, "offers": offers,
                       "newcomers": (names, [])}),
        (22, "Owners", {"owners": table(name, names), "readers": (table(name, names), {}),
                        "unscaled": (names, [])}),
        (23, "Unmask", {"survivors": names, "dropped": names,
                        "statement": (optional(statement), None), "sum": (count, 0),
                        "inputs": (short, b"")}),
        (24, "Total", {"survivors": names, "members": names, "sizes": many(size),
                       "offers": offers, "more": (flag, False),
                       "lost": (table(name, lost, 128), {}), "sum": (count, 0),
                       "digests": (many(digest), [])}),
        (25, "Relayed", {"senders": names, "sizes": many(size)}),
        (26, "Agreed", {"proofs": table(name, digest)}),
        (27, "Continue", {"members": names}),
        (28, "Stop", {"code": code, "party": (sized(str, 0, 2**32), ""), "statements": statements}),
        (29, "Confirmed", {"signatures": table(name, signature)}),
        (30, "HandedOver", {"members": names, "proofs": table(name, proof)}),
        (31, "Invite", {"plan": sized(str, 0, 2**17), "missing": (names, [])}),
        (32, "Gather", {"nonces": table(name, secret)}),
        (33, "Examine", {"who": text, "head": sized(bytes, 0, 2**21),
                         "seed": (sized(bytes, 0, 64), b""), "input": (head, b""),
                         "show": (text, ""), "sum": (count, 0),
                         "inputs": (table(name, digest), {}),
                         "taken": (table(name, sized(bytes, 0, 2**32)), {})}),
    )
}  # fmt: skip


def message(value: Any) -> dict[str, Any]:
    """A message of the closed table, with its kind."""
    _fits(type(value) is list and bool(value) and type(value[0]) is int and value[0] in MESSAGES)
    kind, check = MESSAGES[value[0]]
    return {**check(value), "kind": kind}


ENVELOPE = row(run, count, count, name, name, size, digest, message)


class Frame(NamedTuple):
    """A frame that was verified and decoded."""

    run: bytes
    exchange: int
    round: int
    sender: str
    receiver: str
    message: dict[str, Any]
    head: bytes
    bulk: bytes

    @property
    def digest(self) -> bytes:
        """The digest of the head, which stands for the frame."""
        return sha(self.head)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Head and bulk of a frame that is one string (4.1)."""
    length = int.from_bytes(data[:4], "big")
    require(len(data) >= 4 + length, "wire:head")
    return data[4 : 4 + length], data[4 + length :]


def decode(data: bytes, sender: Card) -> Frame:
    """The checks of 4.3, in their order."""
    head, bulk = split(data)
    require(64 < len(head) <= MAX_HEAD + 64 and len(bulk) <= MAX_BULK, "wire:size")
    require(head[0] == 2, "wire:version")
    sender.verify(sha(head[:-64]), head[-64:])
    try:
        run, exchange, round, *ends, length, bulk_digest, found = ENVELOPE(unpacked(head[1:-64]))
    except ValueError:
        raise Refused("wire:message") from None
    require(len(bulk) == length and sha(bulk) == bulk_digest, "wire:bulk")
    return Frame(run, exchange, round, ends[0], ends[1], found, head, bulk)


class Link:
    """One end of a connection (4.4)."""

    def __init__(self, run: bytes, me: str, peer: Card, asks: bool) -> None:
        self.run, self.me, self.peer, self.asks = run, me, peer, asks
        self.exchange = self.round = 0

    def accept(self, data: bytes) -> Frame:
        """Decode a frame from the other end, if it is expected now."""
        frame = decode(data, self.peer)
        require(frame.sender == self.peer.name, "wire:sender")
        require(frame.run == self.run, "wire:run")
        require(frame.receiver == self.me, "wire:receiver")
        require((frame.message["tag"] < 20) == self.asks, "wire:kind")
        expected = frame.exchange == self.exchange if self.asks else frame.exchange > self.exchange
        require(expected, "wire:exchange")
        require(frame.round == self.round if self.asks else frame.round >= self.round, "wire:round")
        if not self.asks:
            self.exchange, self.round = frame.exchange, frame.round
        return frame
