"""Changes of any field of any message, and the table of all fields."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import structs

from secure_fl.protocol import messages
from secure_fl.protocol.frames import Envelope
from secure_fl.protocol.messages import Audience, Message

Path: TypeAlias = tuple[Any, ...]  # names of fields, keys and places, from the outside
Target: TypeAlias = tuple[str, str]  # the name of a record, and of a field or BULK
BULK = "(bulk)"
NESTED = ("Offer", "Deal", "Salt", "Segment", "Lost", "SurvivorStatement")
WITH_BULK = (
    *("SumInput", "Total", "Complaint", "Finding", "Examine", "Broadcast", "Share", "Relayed"),
    *("Handover", "HandedOver"),
)
FROM_PARTY = tuple(kind.__name__ for kind in get_args(messages.FromParty))
FROM_COORDINATOR = tuple(kind.__name__ for kind in get_args(messages.FromCoordinator))


@cache
def targets() -> tuple[Target, ...]:
    """List all fields of all records on the wire."""
    kinds = [*FROM_PARTY, *FROM_COORDINATOR, *NESTED]
    found = [(kind, one.name) for kind in kinds for one in structs.fields(getattr(messages, kind))]
    found += [("Envelope", one.name) for one in structs.fields(Envelope) if one.name != "message"]
    return (*found, *((kind, BULK) for kind in WITH_BULK))


WEIGHTS: dict[int, tuple[str, ...]] = {  # of kinds and fields; fields of kinds before kinds
    13: ("Handover", "Broadcast", "Complaint", "Share"),
    10: (
        *("Confirm", "Envelope.run", "Agree", "Salt", "Ready.checkpoints", "Declare.at"),
        "UnmaskShares.seeds",
    ),
    8: (
        *("Declare.names", "Gathered", "Begin.newcomers", "Total.sizes", "Lost", "Hello"),
        "Ready.opened",
    ),
    6: (
        *("Ready", "SumInput", "Boundary", "Complaint.total", "Owners.unscaled", "Confirmed"),
        *("Unmask.survivors", "Examine.inputs", "Relayed.(bulk)", "UnmaskShares"),
    ),
    5: (
        *("Declare", "Failed", "Total.more", "Segment.salts", "SurvivorStatement.number"),
        "Envelope.size",
    ),
    4: (
        *("Segment", "SurvivorStatement", "Envelope", "Salt.peers", "Unmask.statement"),
        *("Total.survivors", "Total.sum", "Total.(bulk)", "Examine.sum", "Examine.taken"),
        *("Examine.(bulk)", "Declare.unscaled", "SumInput.at", "SumInput.taken"),
    ),
    3: (
        *("UnmaskShares.sum", "Failed.about", "Begin", "Owners", "Unmask", "Total", "Relayed"),
        *("Agreed", "HandedOver", "Continue", "Examine", "Segment.size"),
    ),
    2: (
        *("Finding", "Start", "Stop", "Invite", "Gather", "Offer", "Owners.readers"),
        *("Envelope.sender", "Envelope.digest", "Examine.input"),
    ),
    1: (
        *("Unmask.inputs", "Stop.code", "Examine.seed", "Examine.show", "Offer.public"),
        *("Offer.statement", "Deal", "Finding.(bulk)"),
    ),
}
WEIGHT = {name: weight for weight, names in WEIGHTS.items() for name in names}


def weight(target: Target) -> int:
    """Return how often a target is drawn: a change of a member's message often ends a run."""
    return WEIGHT.get(".".join(target), WEIGHT.get(target[0], 1))


def draw(rng: random.Random) -> Target:
    """Draw a field, so that all fields are changed about equally often."""
    found = targets()
    return rng.choices(found, [weight(target) for target in found])[0]


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, msgspec.Struct]]:
    """Yield all records in a message with their places."""
    match value:
        case msgspec.Struct():
            yield path, value
            for name in value.__struct_fields__:
                yield from walk(getattr(value, name), (*path, name))
        case tuple():
            for place, one in enumerate(value):
                yield from walk(one, (*path, place))
        case dict():
            for key, one in value.items():
                yield from walk(one, (*path, key))


def put(value: Any, path: Path, new: Any) -> Any:
    """Return a message with another value at a place."""
    if not path:
        return new
    first, *rest = path
    match value:
        case msgspec.Struct():
            changed = {first: put(getattr(value, first), tuple(rest), new)}
            return structs.replace(value, **changed)
        case tuple():
            return (*value[:first], put(value[first], tuple(rest), new), *value[first + 1 :])
    return {**value, first: put(value[first], tuple(rest), new)}


@dataclass
class Mutator:
    """Draws changes of fields, and counts them by field."""

    rng: random.Random
    names: Sequence[str]
    coverage: Counter[str]
    heads: list[bytes] = field(default_factory=list)  # of earlier frames, which messages quote

    def places(self, message: Message, target: Target) -> list[tuple[Path, msgspec.Struct]]:
        """Return the records in a message that have the target's field."""
        return [found for found in walk(message) if type(found[1]).__name__ == target[0]]

    def change(
        self, message: Message, others: Sequence[Message], target: Target | None = None
    ) -> Message:
        """Return the message with one other field, of the target's kind if there is one."""
        records = list(walk(message)) if target is None else self.places(message, target)
        path, record = self.rng.choice(records)
        names = record.__struct_fields__
        if not names:
            return message
        name = self.rng.choice(names) if target is None else target[1]
        self.coverage[f"{type(record).__name__}.{name}"] += 1
        new = self._donated(record, name, others) if self.rng.random() < 0.35 else None
        value = getattr(record, name)
        changed: Message = put(message, (*path, name), self.other(value) if new is None else new)
        return changed

    def _donated(self, record: msgspec.Struct, name: str, others: Sequence[Message]) -> Any:
        """Return the field's value in another record of the same kind, or None."""
        value, kind = getattr(record, name), type(record)
        if isinstance(value, bytes) and len(value) > 64 and self.heads:
            return self.rng.choice(self.heads)
        other = self.rng.choice(others) if others else None
        found = [one for _, one in walk(other) if type(one) is kind]
        return getattr(self.rng.choice(found), name) if found else None

    def other(self, value: Any) -> Any:
        """Return another value of the same type."""
        rng = self.rng
        match value:
            case bool():
                return not value
            case int():
                return max(0, value + rng.choice((-1, 1, 1, 1000)))
            case bytes():
                return self.flip(value)
            case Audience():
                return next(one for one in Audience if one != value)
            case str():
                return rng.choice((*self.names, "", "restarted", "too-few"))
            case tuple():
                return self._tuple(value)
            case dict():
                return self._dict(value)
            case msgspec.Struct():
                name = rng.choice(value.__struct_fields__)
                return structs.replace(value, **{name: self.other(getattr(value, name))})
        return value

    def flip(self, value: bytes) -> bytes:
        """Flip a bit, cut, extend or clear bytes."""
        if not value:
            return self.rng.randbytes(self.rng.choice((1, 32, 64)))
        at = self.rng.randrange(len(value))
        flipped = value[:at] + bytes([value[at] ^ (1 << self.rng.randrange(8))]) + value[at + 1 :]
        return self.rng.choice(
            (flipped, flipped, flipped, value[:at], value * 2, bytes(len(value)))
        )

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            return (self.rng.choice((*self.names, 1)),)
        at = self.rng.randrange(len(value))
        changed = (*value[:at], self.other(value[at]), *value[at + 1 :])
        without, twice = (*value[:at], *value[at + 1 :]), (*value, value[at])
        return self.rng.choice((changed, changed, without, twice, value[::-1]))

    def _dict(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        if not value:
            return {self.rng.choice(self.names): self.rng.choice((bytes(32), ("east",)))}
        key, other = (self.rng.choice(sorted(value)) for _ in range(2))
        rest = {k: v for k, v in value.items() if k != key}
        return self.rng.choice(
            (
                rest,
                {**value, key: self.other(value[key])},
                {**value, key: value[other], other: value[key]},
                {**rest, self.rng.choice(self.names): value[key]} if isinstance(key, str) else rest,
            )
        )
