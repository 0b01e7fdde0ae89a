"""Cards and rosters as JSON files: closed fields, a format number, no secrets.

Specified in docs/protocol-bytes.md 3.1 and 3.2.

A card is the public file of a site: its public keys, signed with them, so a card with a swapped
agreement key is refused. People must verify who the *site* is: they compare fingerprints.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from secure_fl.crypto.keys.files import read_bounded
from secure_fl.crypto.keys.identity import RENEW, Identity, PublicIdentity, digest_of
from secure_fl.crypto.keys.roster import Member, Role, Roster
from secure_fl.errors import CryptoError, KeyringError

FORMAT = 2
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Tier = Annotated[str, msgspec.Meta(max_length=64)]


class _Card(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    signing: bytes
    agreement: bytes

    def public(self) -> PublicIdentity:
        public = PublicIdentity(self.name, self.signing, self.agreement)
        public.require_usable()
        return public


class _CardFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    format: int
    card: _Card
    signature: bytes
    fingerprint: str  # for people; recomputed on reading


class _Member(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    role: Role
    tier: Tier | None
    card: _Card


class _RosterFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    format: int
    version: Count
    threshold: Count | None
    created: Moment
    expires: Moment
    coordinator: _Card
    members: tuple[_Member, ...]
    signatures: dict[str, bytes]
    fingerprint: str


_File = TypeVar("_File", _CardFile, _RosterFile)


def card_bytes(identity: Identity) -> bytes:
    """Encode the card of a site."""
    public = identity.public
    signature = identity.sign_document(_card_digest(public))
    return _json(_CardFile(FORMAT, _card(public), signature, public.fingerprint()))


def read_card(data: bytes, *, file: str = "card") -> PublicIdentity:
    """Read a card, or raise KeyringError."""
    read = _decode(data, _CardFile, file)
    try:
        public = read.card.public()
        public.verify_document(_card_digest(public), read.signature)
    except CryptoError as error:
        raise KeyringError(
            f"the card is not valid: {error.what}",
            file=file,
            party=error.party,
            fix="ask the site for it again",
            reason="card",
        ) from None
    _same_fingerprint(public.fingerprint(), read.fingerprint, file)
    return public


def roster_bytes(roster: Roster) -> bytes:
    """Encode a roster with the signatures it has so far."""
    members = tuple(_Member(m.role, m.tier, _card(m.identity)) for m in roster.members)
    return _json(
        _RosterFile(
            FORMAT,
            roster.version,
            roster.threshold,
            roster.created,
            roster.expires,
            _card(roster.coordinator),
            members,
            dict(roster.signatures),
            roster.fingerprint(),
        )
    )


def read_roster(data: bytes, *, file: str = "roster") -> Roster:
    """Read a roster; only its form is checked here, `Roster.verify` checks the rest."""
    read = _decode(data, _RosterFile, file)
    try:
        members = tuple(Member(m.card.name, m.role, m.tier, m.card.public()) for m in read.members)
        coordinator = read.coordinator.public()
    except CryptoError as error:
        place = {"file": file, "party": error.party}
        raise KeyringError(error.what, fix=error.fix, reason="card", **place) from None
    if not all((m.tier or "").isprintable() for m in members):  # people read it before they sign
        raise KeyringError("contains a tier that cannot be printed", file=file, reason="malformed")
    try:
        roster = Roster(
            members,
            coordinator,
            read.threshold,
            read.created,
            read.expires,
            read.version,
            tuple(read.signatures.items()),
        )
    except OverflowError:  # near year 1 or 9999, whose instant in UTC does not exist
        raise KeyringError("contains an impossible date", file=file, reason="dates") from None
    _same_fingerprint(roster.fingerprint(), read.fingerprint, file)
    return roster


def load_card(path: Path) -> PublicIdentity:
    """Read a card's file."""
    return read_card(read_bounded(path), file=str(path))


def load_roster(path: Path) -> Roster:
    """Read a roster's file."""
    return read_roster(read_bounded(path), file=str(path))


def _card(public: PublicIdentity) -> _Card:
    return _Card(public.name, public.signing, public.agreement)


def _card_digest(public: PublicIdentity) -> bytes:
    return digest_of(b"secure-fl card", public.canonical())


def _json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _same_fingerprint(computed: str, printed: str, file: str) -> None:
    # people compare the printed fingerprint, so it must be the right one
    if computed != printed:
        raise KeyringError(
            "the fingerprint in the file does not belong to its content",
            file=file,
            fix="ask for it again",
            reason="changed",
        )


def _decode(data: bytes, kind: type[_File], file: str) -> _File:
    try:
        read = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KeyringError(
            f"is not a card or roster: {error}",
            file=file,
            fix="check the path; the file may be cut short",
            reason="malformed",
        ) from None
    if read.format != FORMAT:
        raise KeyringError(
            f"has format {read.format}, this program reads {FORMAT}",
            file=file,
            fix=RENEW
            if read.format < FORMAT
            else "install the same secure_fl version at all sites",
            reason="other-format",
        )
    return read
