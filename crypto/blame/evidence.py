"""Evidence that a member broke the protocol, made of what it signed: anybody can check it.

Who deals shares signs a digest of each, and a holder looks at share, digest and signature before it
masks anything. So if it later signs a message with another share, the two signatures together
convict it: nobody else could have made either, and no honest holder comes into such a place.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.primitives import commit
from secure_fl.errors import CryptoError, WireError
from secure_fl.protocol.frames import Frame, decode, peek
from secure_fl.protocol.messages import Deal, Name, UnmaskShares


class SeedCommitment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What binds a party to its seeds in one sum: it signed these for one holder of its shares."""

    public: bytes  # its mask key, and the digest of its self mask's seed
    deal: Deal
    holder: Name

    def check(self, owner: PublicIdentity, run: str, index: int) -> None:
        """Refuse what the owner did not sign."""
        statement = self.public + self.deal.key + self.deal.own
        about = run, index, owner.name, self.holder
        owner.verify(commit(statement, *about), self.deal.signature)

    def binds(self, seed: bytes, run: str, index: int, owner: str) -> bool:
        """Whether this is the seed of its self mask."""
        return commit(seed, run, index, owner) == self.public[-32:]


class FalseShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share that a member revealed, and what its owner signed when it dealt it."""

    owner: Name  # of the secret
    bound: bytes  # its public key and the digest of its seed, which it signed as well
    deal: Deal
    head: bytes  # of the frame that the accused member sent, as it came

    @property
    def accused(self) -> str:
        """Who sent the frame, as the frame says."""
        return peek(self.head).sender

    def check(self, cards: Mapping[str, PublicIdentity]) -> None:
        """Refuse evidence that does not convict: edited, of strangers, or of a right share."""
        if not {self.owner, self.accused} <= set(cards):
            raise CryptoError("this evidence speaks of somebody who is not on the roster")
        envelope = decode(Frame(self.head), cards[self.accused].verify)
        message, deal = envelope.message, self.deal
        if not isinstance(message, UnmaskShares):
            raise WireError("this evidence holds no message with shares", party=self.accused)
        about = envelope.run.hex(), message.sum, self.owner, self.accused
        signed = commit(self.bound + deal.key + deal.own, *about)
        cards[self.owner].verify(signed, deal.signature)
        for kind, dealt, told in (
            ("key", deal.key, message.keys),
            ("self", deal.own, message.seeds),
        ):
            if self.owner in told and commit(told[self.owner], *about, kind) != dealt:
                return
        raise CryptoError(
            "the share in this evidence is the one that was dealt: it convicts nobody",
            party=self.accused,
        )

    def text(self) -> str:
        """For event logs."""
        return msgspec.msgpack.encode(self).hex()

    @classmethod
    def read(cls, text: str) -> FalseShare:
        """The inverse of `text`."""
        try:
            return msgspec.msgpack.decode(bytes.fromhex(text), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CryptoError("this is no evidence of a false share") from error
