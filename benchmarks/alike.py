"""What ten thousand simulated parties are told alike, kept and checked once in their process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from secure_fl.crypto import circle
from secure_fl.crypto.identity import PublicIdentity
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.link import Link

LONG = 10  # entries from which a list is kept once


class Card(PublicIdentity):
    """A site whose signatures, all shown to everybody, are checked once in this process."""

    __slots__ = ()
    _held: ClassVar[dict[bytes, tuple[bytes, bytes]]] = {}  # by signature: by whom, under what

    def verify(self, digest: bytes, signature: bytes) -> None:
        """As ever, but a signature that held once is known to hold."""
        claim = (self.signing, digest)
        if self._held.get(signature) != claim:
            PublicIdentity.verify(self, digest, signature)
            self._held[signature] = claim

    @classmethod
    def of(cls, card: PublicIdentity) -> Card:
        """The same site."""
        return cls(card.name, card.signing, card.agreement)


@dataclass(slots=True)
class SharingLink(Link):
    """An end that, having checked and decoded a message, keeps one copy of what all are told."""

    told: list[Any] = field(default_factory=list)  # one list for all parties

    def unpack(self, frame: Frame) -> Any:
        """As ever, with long fields replaced by equal ones."""
        message = Link.unpack(self, frame)
        long = {
            name: value
            for name in message.__struct_fields__
            if isinstance(value := getattr(message, name), tuple | dict) and len(value) > LONG
        }
        return msgspec.structs.replace(message, **{n: self._one(v) for n, v in long.items()})

    def _one(self, value: Any) -> Any:
        for known in self.told:
            if type(known) is type(value) and known == value:
                return known
        if isinstance(value, dict) and not isinstance(next(iter(value.values())), bytes):
            return value  # keys for this party alone
        self.told.append(value)
        return value


def forget() -> None:
    """Let nothing of one run be known in the next."""
    Card._held.clear()
    circle.forget()
