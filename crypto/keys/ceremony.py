"""The key ceremony: one dealer makes the cohort's keys and seals them to each member.

The keys are bound to one roster, which the dealer has compared by telephone, and signed. The
dealer's bundles can travel by any way, the coordinator included. All members compare
`CohortKeys.fingerprint()`: a dealer that deals different keys to different members is seen there
(and no sum would open).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from secure_fl.crypto.keys.identity import Identity, PublicIdentity, open_sealed, seal_to
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.primitives import KEY_BYTES, digest_of, spoken
from secure_fl.errors import CryptoError, KeyringError

FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class CohortKeys:
    """What every member of one roster holds and the coordinator never sees."""

    roster: bytes  # the digest of the roster these keys belong to
    version: int  # that roster's version
    expires: datetime
    dealer: str
    secret: bytes = field(repr=False)  # the scheme's secret key, opaque here
    tag_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)

    def fingerprint(self) -> str:
        """Say which keys these are, telling nothing about them; equal at all members."""
        return spoken(digest_of(b"secure-fl cohort", encode_keys(self)))

    def check(self, roster: Roster, *, now: datetime | None = None) -> None:
        """Raise KeyringError unless these keys may be used under this roster now."""
        if self.roster != roster.digest():
            raise KeyringError(
                f"the cohort's keys belong to another roster (version {self.version}) than the one "
                f"given (version {roster.version})",
                fix="use the roster of the last ceremony, or run `secure-fl keys accept` with the "
                "bundle made for this roster",
                reason="other-roster",
            )
        if (now or datetime.now(UTC)) >= self.expires:
            raise KeyringError(
                f"the cohort's keys expired on {self.expires:%Y-%m-%d %H:%M} UTC",
                fix="assemble and sign a new roster version, then `secure-fl keys rotate`",
                reason="expired",
            )


class _Keys(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    format: int
    roster: bytes
    version: int
    expires: datetime
    dealer: str
    secret: bytes
    tag_key: bytes
    channel_key: bytes


class _Bundle(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    format: int
    dealer: str
    recipient: str
    sealed: bytes


def encode_keys(keys: CohortKeys) -> bytes:
    """Encode in the clear: for sealing and for encrypted files only."""
    return msgspec.msgpack.encode(
        _Keys(
            FORMAT,
            keys.roster,
            keys.version,
            keys.expires,
            keys.dealer,
            keys.secret,
            keys.tag_key,
            keys.channel_key,
        )
    )


def decode_keys(data: bytes) -> CohortKeys:
    """Read what `encode_keys` wrote."""
    try:
        k = msgspec.msgpack.decode(data, type=_Keys)
    except msgspec.MsgspecError:
        raise KeyringError(
            "these are not a cohort's keys", fix="ask the dealer again", reason="malformed"
        ) from None
    if k.format != FORMAT or {len(k.tag_key), len(k.channel_key)} != {KEY_BYTES} or not k.secret:
        raise KeyringError(
            "cohort keys of an unknown form",
            fix="install the dealer's version",
            reason="other-format",
        )
    return CohortKeys(k.roster, k.version, k.expires, k.dealer, k.secret, k.tag_key, k.channel_key)


def deal(dealer: Identity, roster: Roster, secret: bytes) -> CohortKeys:
    """Make the cohort's keys for a roster that the dealer has signed; `secret` is the scheme's."""
    roster.verify(me=dealer.public)
    tag_key, channel_key = os.urandom(KEY_BYTES), os.urandom(KEY_BYTES)
    digest = roster.digest()
    return CohortKeys(
        digest, roster.version, roster.expires, dealer.name, secret, tag_key, channel_key
    )


def seal_bundles(dealer: Identity, roster: Roster, keys: CohortKeys) -> dict[str, bytes]:
    """Seal the cohort's keys to each member: a bundle per name, the dealer's own included."""
    roster.verify(me=dealer.public)
    keys.check(roster)
    plain, context = encode_keys(keys), _context(roster)
    return {
        m.name: msgspec.msgpack.encode(
            _Bundle(FORMAT, dealer.name, m.name, seal_to(dealer, m.identity, plain, context))
        )
        for m in roster.members
    }


def open_bundle(identity: Identity, roster: Roster, bundle: bytes) -> CohortKeys:
    """Open the bundle that a member of this roster sealed to this identity."""
    roster.verify(me=identity.public)
    try:
        read = msgspec.msgpack.decode(bundle, type=_Bundle)
    except msgspec.MsgspecError:
        raise KeyringError(
            "is not a ceremony bundle, or is cut short",
            fix="ask the dealer for it again",
            reason="malformed",
        ) from None
    if read.format != FORMAT:
        raise KeyringError(
            f"the bundle has format {read.format}",
            fix="install the dealer's version",
            reason="other-format",
        )
    if read.recipient != identity.name:
        raise KeyringError(
            f"the bundle is for {read.recipient[:64]!r}, this site is {identity.name!r}",
            fix="take the file that carries this site's name",
            reason="other-recipient",
        )
    keys = _open(identity, roster.member(read.dealer).identity, roster, read.sealed)
    keys.check(roster)
    if keys.dealer != read.dealer:
        raise KeyringError(
            "the bundle was dealt by somebody else than its sender", reason="other-dealer"
        )
    return keys


def _open(identity: Identity, dealer: PublicIdentity, roster: Roster, sealed: bytes) -> CohortKeys:
    try:
        return decode_keys(open_sealed(identity, dealer, sealed, _context(roster)))
    except KeyringError:
        raise
    except CryptoError:
        raise KeyringError(
            f"the bundle of {dealer.name!r} does not open: it was changed, or made for another "
            "roster",
            fix="compare the roster's fingerprint with the dealer's, then ask for a new bundle",
            reason="cannot-open",
        ) from None


def _context(roster: Roster) -> bytes:
    return b"secure-fl ceremony" + roster.digest()
