"""A party's signed statements about the keys of one sum, and evidence of a false share.

Specified in docs/protocol.md 4.8 and 9. A holder that reveals another share than it took
contradicts its own signature: two of its messages convict it, without a word of anybody else.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from secure_fl.crypto.keys.identity import PublicIdentity, commit
from secure_fl.errors import CryptoError, WireError
from secure_fl.protocol.frames import Frame, decode, peek
from secure_fl.protocol.messages import Deal, Name, Offer, SumInput, UnmaskShares

BOUND = 64  # bytes of a party's commitments: its mask key, and the digest of its self mask's seed
DIGEST = 32


def entry(bound: bytes, deal: Deal | None) -> bytes:
    """Encode what a holder took from one party."""
    return bound if deal is None else bound + deal.key + deal.own + deal.half


def taken_by(holder: str, offers: Mapping[str, Offer], host: str | None) -> dict[str, bytes]:
    """List what a holder took from each party, as the coordinator passed it on."""
    return {
        party: entry(offer.public + offer.seed, offer.deals.get(holder))
        for party, offer in offers.items()
        if party != host
    }


def digest_taken(taken: Mapping[str, bytes], run: str, index: int, holder: str) -> bytes:
    """Compute the digest of `taken_by` that the holder signs."""
    return commit(msgspec.msgpack.encode(sorted(taken.items())), run, index, holder, "taken")


def digest_inputs(heads: Mapping[str, bytes]) -> bytes:
    """Compute the digest of all uploads of a sum that the coordinator signs, from their digests."""
    return commit(msgspec.msgpack.encode(sorted(heads.items())), "inputs")


class FalseShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two messages of one member: what it took, and a different share that it revealed."""

    owner: Name  # of the secret
    taken: dict[Name, bytes]  # the content of the digest in the upload
    upload: bytes  # the head of the member's upload
    head: bytes  # of its message with shares

    @property
    def accused(self) -> str:
        """Return the sender of the frames."""
        return peek(self.head).sender

    def check(self, cards: Mapping[str, PublicIdentity]) -> None:
        """Refuse evidence that does not convict: edited, of strangers, or of a valid share."""
        if not {self.owner, self.accused} <= set(cards):
            raise CryptoError("this evidence names a member that is not on the roster")
        upload, reveal = (
            decode(Frame(head), cards[self.accused].verify, whole=False)
            for head in (self.upload, self.head)
        )
        given, message = upload.message, reveal.message
        if not isinstance(given, SumInput) or not isinstance(message, UnmaskShares):
            raise WireError("this evidence holds no message with shares", party=self.accused)
        about = reveal.run.hex(), message.sum
        if (upload.run.hex(), given.sum) != about or given.taken != digest_taken(
            self.taken, *about, self.accused
        ):
            raise CryptoError(
                "this evidence is not about the shares that the member took", party=self.accused
            )
        dealt = self.taken.get(self.owner, b"")[BOUND:]
        key, own = dealt[:DIGEST], dealt[DIGEST : 2 * DIGEST]
        for kind, digest, revealed in (("key", key, message.keys), ("self", own, message.seeds)):
            if self.owner in revealed:
                share = revealed[self.owner]
                if commit(share, *about, self.owner, self.accused, kind) != digest:
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
