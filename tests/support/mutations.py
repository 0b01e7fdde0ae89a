"""Changes of any field of any message, and the table of all fields."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import inspect, structs

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


def rarest(coverage: Mapping[str, int]) -> Target:
    """Return the field that was changed least, so that all are changed about equally often."""
    return min(targets(), key=lambda target: coverage.get(".".join(target), 0))


@cache
def types_of(kind: type[msgspec.Struct]) -> Mapping[str, inspect.Type]:
    """Return the types of a record's fields."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {one.name: one.type for one in found.fields}


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
        value = getattr(record, name)
        new = self._donated(record, name, others) if self.rng.random() < 0.35 else None
        if new is None or new == value:
            new = self._changed(value, types_of(type(record))[name])
        changed: Message = put(message, (*path, name), new)
        self.coverage[f"{type(record).__name__}.{name}"] += changed != message
        return changed

    def _changed(self, value: Any, kind: inspect.Type) -> Any:
        """Return another value of a field; absent ones are made, and collections may grow."""
        longer = self._longer(value, kind) if not value or self.rng.random() < 0.2 else None
        if longer is None and value is None:
            return self._made(kind)
        return self.other(value) if longer is None else longer

    def bulk(self, message: Message, data: bytes) -> bytes:
        """Return another bulk of a message."""
        changed = self.flip(data)
        self.coverage[f"{type(message).__name__}.{BULK}"] += changed != data
        return changed

    def _longer(self, value: Any, kind: inspect.Type) -> Any:
        """Return a list or table with another entry of the right type, or None."""
        match kind:
            case inspect.VarTupleType():
                return (*value, self._made(kind.item_type))
            case inspect.DictType():
                return {**value, self._made(kind.key_type): self._made(kind.value_type)}
        return None

    def _made(self, kind: inspect.Type) -> Any:
        """Make a value of a type."""
        rng = self.rng
        match kind:
            case inspect.StructType():
                return kind.cls(**{one.name: self._made(one.type) for one in kind.fields})
            case inspect.BytesType():
                return rng.randbytes(min(kind.max_length or 32, kind.min_length or 32))
            case inspect.StrType():
                return rng.choice((*self.names, "stranger"))
            case inspect.IntType():
                return rng.randrange(3)
            case inspect.TupleType():
                return tuple(self._made(one) for one in kind.item_types)
            case inspect.VarTupleType():
                return tuple(self._made(kind.item_type) for _ in range(rng.randrange(3)))
            case inspect.DictType():
                names = range(rng.randrange(1, 3))
                return {self._made(kind.key_type): self._made(kind.value_type) for _ in names}
            case inspect.UnionType():
                return self._made(kind.types[0])
        return None

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
                texts = {*self.names, "", "restarted", "too-few"} - {value}
                return rng.choice(sorted(texts))
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
            return value
        at = self.rng.randrange(len(value))
        changed = (*value[:at], self.other(value[at]), *value[at + 1 :])
        without, twice = (*value[:at], *value[at + 1 :]), (*value, value[at])
        return self.rng.choice((changed, changed, without, twice, value[::-1]))

    def _dict(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        if not value:
            return {}
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
