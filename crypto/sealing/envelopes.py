"""Keys of one party in a protected run, and messages that it seals or signs for all parties.

Specified in docs/protocol-bytes.md 2.5 and 2.6.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fl.crypto.keys.identity import Identity, PublicIdentity, derive, digest_of, keyed_digest
from secure_fl.crypto.sealing import secret
from secure_fl.errors import CryptoError, TamperError


@dataclass(frozen=True, slots=True)
class PartyKeys:
    """All keys that one party of a protected run holds."""

    identity: Identity
    peers: Mapping[str, PublicIdentity]
    cohort: secret.SecretKey | None  # None: nothing is encrypted
    tag_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)

    @property
    def pad_key(self) -> bytes:
        """The key of the pads that hide sums, if nothing is encrypted."""
        return derive(self.channel_key, b"secure-fl pad")


class Envelopes:
    """AES-GCM under the cohort's channel key: open to all parties, not to the coordinator."""

    def __init__(self, keys: PartyKeys, run: bytes) -> None:
        self._keys, self._me = keys, keys.identity.name
        self._cipher = AESGCM(derive(keys.channel_key, b"secure-fl envelope", run))
        self.digest_key = derive(keys.channel_key, b"secure-fl agree", run)

    def seal(self, data: bytes, context: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, data: bytes, context: bytes) -> bytes:
        try:
            return self._cipher.decrypt(data[:12], data[12:], context)
        except (InvalidTag, ValueError):
            raise TamperError(
                "a value relayed by the coordinator was changed, or is an old one",
                party=self._me,
                reason="relayed-value",
            ) from None

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        return keyed_digest(self.digest_key, data, context)

    def vouch(self, statement: bytes) -> bytes:
        return self._keys.identity.sign(digest_of(b"secure-fl vouch", statement))

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        try:
            card = self._keys.peers[party]
            card.verify(digest_of(b"secure-fl vouch", statement), proof)
        except (KeyError, CryptoError):
            return False
        return True
