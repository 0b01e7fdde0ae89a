"""Evidence that a member broke the protocol, made of its own signatures: anybody can check it.

A dealer signs a digest of each share. A holder checks share, digest and signature before it masks
anything. If it later signs a message with another share, the two signatures together convict it:
nobody else could have made either, and no honest holder ever has to sign both.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from secure_fl.crypto.keys.identity import PublicIdentity, commit
from secure_fl.errors import CryptoError, WireError
from secure_fl.protocol.frames import Frame, decode, peek
from secure_fl.protocol.messages import Deal, Name, UnmaskShares


class SeedCommitment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A party's commitment to its seeds of one sum, signed for one holder of its shares."""

    public: bytes  # the mask key, and the digest of the self mask's seed
    deal: Deal
    holder: Name

    def check(self, owner: PublicIdentity, run: str, index: int) -> None:
        """Refuse a commitment that the owner did not sign."""
        statement = self.public + self.deal.key + self.deal.own
        about = run, index, owner.name, self.holder
        owner.verify(commit(statement, *about), self.deal.signature)

    def binds(self, seed: bytes, run: str, index: int, owner: str) -> bool:
        """Return True if this is the committed seed of the self mask."""
        return commit(seed, run, index, owner) == self.public[-32:]


class FalseShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share that a member revealed, and the different digest that its owner signed."""

    owner: Name  # of the secret
    bound: bytes  # its mask key and the digest of its self mask's seed, which it signed, too
    deal: Deal
    head: bytes  # of the accused member's frame

    @property
    def accused(self) -> str:
        """Return the sender of the frame."""
        return peek(self.head).sender

    def check(self, cards: Mapping[str, PublicIdentity]) -> None:
        """Refuse evidence that does not convict: edited, of strangers, or of a valid share."""
        if not {self.owner, self.accused} <= set(cards):
            raise CryptoError("this evidence names a member that is not on the roster")
        envelope = decode(Frame(self.head), cards[self.accused].verify)
        message, deal = envelope.message, self.deal
        if not isinstance(message, UnmaskShares):
            raise WireError("this evidence holds no message with shares", party=self.accused)
        about = envelope.run.hex(), message.sum, self.owner, self.accused
        signed = commit(self.bound + deal.key + deal.own, *about)
        cards[self.owner].verify(signed, deal.signature)
        for kind, dealt, revealed in (
            ("key", deal.key, message.keys),
            ("self", deal.own, message.seeds),
        ):
            if self.owner in revealed and commit(revealed[self.owner], *about, kind) != dealt:
                return
        raise CryptoError(
            "the share in this evidence is the one that was dealt: it convicts nobody",
            party=self.accused,
        )

    def text(self) -> str:
        """Encode for event logs."""
        return msgspec.msgpack.encode(self).hex()

    @classmethod
    def read(cls, text: str) -> FalseShare:
        """Decode the result of `text`."""
        try:
            return msgspec.msgpack.decode(bytes.fromhex(text), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CryptoError("this is no evidence of a false share") from error
