"""What a party of a protected run holds, and what it seals with it: to each other party, to all."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fl.crypto import secret
from secure_fl.crypto.identity import Channel, Identity, PublicIdentity, channel
from secure_fl.crypto.primitives import derive
from secure_fl.errors import TamperError


@dataclass(frozen=True, slots=True)
class PartyKeys:
    """What a party of a protected run holds."""

    identity: Identity
    peers: Mapping[str, PublicIdentity]
    cohort: secret.SecretKey | None  # None where nothing is encrypted
    tag_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)


class Channels(Mapping[str, Channel]):
    """Channels to the other parties, agreed on when first used: most are not, in large cohorts."""

    def __init__(self, keys: PartyKeys, context: bytes) -> None:
        self._me, self._context, self._cards = keys.identity, context, keys.peers
        self._open: dict[str, Channel] = {}

    def __getitem__(self, name: str) -> Channel:
        if name not in self:
            raise KeyError(name)
        if name not in self._open:
            self._open[name] = channel(self._me, self._cards[name], self._context)
        return self._open[name]

    def __contains__(self, name: object) -> bool:
        return name != self._me.name and name in self._cards

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._cards if name in self)

    def __len__(self) -> int:
        return len(self._cards) - (self._me.name in self._cards)


class Envelopes:
    """AES-GCM under the cohort's channel key, for all parties and not for the coordinator."""

    def __init__(self, keys: PartyKeys, run: bytes) -> None:
        self._me = keys.identity.name
        self._cipher = AESGCM(derive(keys.channel_key, b"secure-fl envelope", run))
        self._digest_key = derive(keys.channel_key, b"secure-fl agree", run)

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Nonce and ciphertext."""
        nonce = os.urandom(12)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, data: bytes, context: bytes) -> bytes:
        """The inverse of `seal`."""
        try:
            return self._cipher.decrypt(data[:12], data[12:], context)
        except (InvalidTag, ValueError):
            raise TamperError(
                "a value passed on by the coordinator was changed, or is an old one",
                party=self._me,
            ) from None

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """A keyed digest: equal states are seen to be equal, and nothing else is seen."""
        return hmac.digest(self._digest_key, context + b"\0" + data, "sha256")
