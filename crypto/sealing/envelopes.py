"""What a party of a protected run holds, and what it seals or signs with it for all the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.crypto.primitives import derive, digest_of, keyed_digest
from secure_fl.crypto.sealing import secret
from secure_fl.errors import CryptoError, TamperError


@dataclass(frozen=True, slots=True)
class PartyKeys:
    """What a party of a protected run holds."""

    identity: Identity
    peers: Mapping[str, PublicIdentity]
    cohort: secret.SecretKey | None  # None where nothing is encrypted
    tag_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)


class Envelopes:
    """AES-GCM under the cohort's channel key, for all parties and not for the coordinator."""

    def __init__(self, keys: PartyKeys, run: bytes) -> None:
        self._keys, self._me = keys, keys.identity.name
        self._cipher = AESGCM(derive(keys.channel_key, b"secure-fl envelope", run))
        self.digest_key = derive(keys.channel_key, b"secure-fl agree", run)

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
                reason="relayed-value",
            ) from None

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """A keyed digest: equal states are seen to be equal, and nothing else is seen."""
        return keyed_digest(self.digest_key, data, context)

    def vouch(self, statement: bytes) -> bytes:
        """Sign a statement by this party's identity (Ed25519), as no other party could."""
        return self._keys.identity.sign(digest_of(b"secure-fl vouch", statement))

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        """Whether that party signed the statement."""
        try:
            card = self._keys.peers[party]
            card.verify(digest_of(b"secure-fl vouch", statement), proof)
        except (KeyError, CryptoError):
            return False
        return True
