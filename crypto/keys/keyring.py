"""A site's folder of key files, and the key ceremony that fills it.

Specified in docs/protocol-bytes.md 2.6 and 3.3.

    identity.key   cohort.key   archive/cohort-<roster version>.key

In the ceremony one dealer makes the cohort's keys and seals them to each member. The keys are bound
to the digest of one roster, which the dealer has signed. All members compare
`CohortKeys.fingerprint()`, which exposes a dealer that deals different keys. Old keys move to the
archive, where no new run looks.
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from secure_fl.crypto.keys.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.keys.identity import (
    KEY_BYTES,
    RENEW,
    Identity,
    digest_of,
    open_sealed,
    seal_to,
    spoken,
)
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.keys.vault import DEFAULT_COST, Cost, KeyFileKind, check_private, load, save
from secure_fl.errors import CryptoError, KeyringError

FORMAT = 2


@dataclass(frozen=True, slots=True, eq=False)
class CohortKeys:
    """Keys that every member of one roster holds, and the coordinator never gets."""

    roster: bytes  # the digest of the roster these keys belong to
    version: int  # that roster's version
    expires: datetime
    dealer: str
    secret: bytes = field(repr=False)  # the scheme's secret key
    tag_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)

    def fingerprint(self) -> str:
        """Return a fingerprint that is equal at all members and reveals nothing."""
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
        if (self.version, self.expires) != (roster.version, roster.expires):
            raise KeyringError(
                f"{self.dealer!r} dealt keys that claim version {self.version} and expiry "
                f"{self.expires:%Y-%m-%d}; their roster has version {roster.version} and expiry "
                f"{roster.expires:%Y-%m-%d}",
                fix="let another member deal the keys, and ask the dealer how this happened",
                reason="other-roster",
            )
        if (now or datetime.now(UTC)) >= self.expires:
            raise KeyringError(
                f"the cohort's keys expired on {self.expires:%Y-%m-%d %H:%M} UTC",
                fix="assemble and sign a new roster version, then `secure-fl keys rotate`",
                reason="expired",
            )


_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_Keys = tuple[int, bytes, int, _Moment, str, bytes, bytes, bytes]  # format, fields of CohortKeys
_Bundle = tuple[int, str, str, bytes]  # format, dealer, recipient, sealed keys


def encode_keys(keys: CohortKeys) -> bytes:
    """Encode in the clear: for sealing and for encrypted files only."""
    return msgspec.msgpack.encode((FORMAT, *astuple(keys)))


def decode_keys(data: bytes) -> CohortKeys:
    """Decode the result of `encode_keys`."""
    try:
        form, *_ = read = msgspec.msgpack.decode(data, type=_Keys)
        if msgspec.msgpack.encode(read) != data:
            raise msgspec.ValidationError("not the one encoding of these values")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise KeyringError(
            "these are not a cohort's keys", fix="ask the dealer again", reason="malformed"
        ) from None
    keys = CohortKeys(*read[1:])
    if (
        form != FORMAT
        or {len(keys.tag_key), len(keys.channel_key)} != {KEY_BYTES}
        or not keys.secret
    ):
        raise _other_format("the cohort's keys have", form)
    return keys


def _other_format(what: str, form: int) -> KeyringError:
    return KeyringError(
        f"{what} format {form}, this program reads {FORMAT}",
        fix=RENEW if form < FORMAT else "install the dealer's version",
        reason="other-format",
    )


def deal(dealer: Identity, roster: Roster, secret: bytes) -> CohortKeys:
    """Make the cohort's keys for a roster that the dealer signed; `secret` is the scheme's key."""
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
            (FORMAT, dealer.name, m.name, seal_to(dealer, m.identity, plain, context))
        )
        for m in roster.members
    }


def open_bundle(identity: Identity, roster: Roster, bundle: bytes) -> CohortKeys:
    """Open the bundle that a member of this roster sealed to this identity."""
    roster.verify(me=identity.public)
    try:
        form, dealer, recipient, sealed = msgspec.msgpack.decode(bundle, type=_Bundle)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise KeyringError(
            "is not a ceremony bundle, or is cut short",
            fix="ask the dealer for it again",
            reason="malformed",
        ) from None
    if form != FORMAT:
        raise _other_format("the bundle has", form)
    if recipient != identity.name:
        raise KeyringError(
            f"the bundle is for {recipient[:64]!r}, this site is {identity.name!r}",
            fix="take the file with this site's name",
            reason="other-recipient",
        )
    try:
        card = roster.member(dealer).identity
        keys = decode_keys(open_sealed(identity, card, sealed, _context(roster)))
    except KeyringError:
        raise
    except CryptoError:
        raise KeyringError(
            f"the bundle of {dealer!r} does not open: it was changed, or made for another roster",
            fix="compare the roster's fingerprint with the dealer's, then ask for a new bundle",
            reason="cannot-open",
        ) from None
    keys.check(roster)
    if keys.dealer != dealer:
        raise KeyringError(
            "the bundle's sender is not the dealer of its keys", reason="other-dealer"
        )
    return keys


def _context(roster: Roster) -> bytes:
    return b"secure-fl ceremony" + roster.digest()


@dataclass(frozen=True, slots=True, eq=False)
class KeyRing:
    """The key files of one site, and the passphrase that opens them."""

    folder: Path
    passphrase: str = field(repr=False)
    cost: Cost = DEFAULT_COST  # for new files; reading follows each file's header

    def create(self, identity: Identity) -> None:
        """Write a first identity; an existing one is never overwritten."""
        path = self.folder / "identity.key"
        if path.exists():
            raise KeyringError(
                "an identity exists here already",
                file=path,
                fix="choose another folder: a new identity would lock this site out of its roster",
                reason="exists",
            )
        self._private_folder(self.folder)
        save(path, KeyFileKind.IDENTITY, identity.to_private_bytes(), self.passphrase, self.cost)

    def identity(self) -> Identity:
        """Open this site's private identity."""
        path = self._file("identity.key")
        return Identity.from_private_bytes(load(path, KeyFileKind.IDENTITY, self.passphrase))

    def cohort(
        self, roster: Roster, *, now: datetime | None = None, me: Identity | None = None
    ) -> CohortKeys:
        """Open the cohort's keys for a run under this roster, which is verified first.

        `me`: this site's identity if it is open already; each opening takes scrypt's time.
        """
        roster.verify(now=now, me=(me or self.identity()).public)
        path = self._file("cohort.key")
        if not path.exists():
            raise KeyringError(
                "this site has no cohort keys yet",
                file=path,
                fix="run `secure-fl keys accept` with the dealer's bundle",
                reason="missing",
            )
        keys = self._cohort(path)
        try:
            keys.check(roster, now=now)
        except KeyringError as error:
            raise error.at(file=path) from None
        return keys

    def ceremony(self, roster: Roster, secret: bytes) -> dict[str, bytes]:
        """Deal keys with the scheme's secret: keep this site's, return a sealed bundle per member.

        Called again by the same dealer under the same roster, it seals the *same* keys again.
        """
        dealer = self.identity()
        keys = self._dealt(roster, dealer) or deal(dealer, roster, secret)
        bundles = seal_bundles(dealer, roster, keys)
        self.install(keys, roster)
        return bundles

    def rotate(self, roster: Roster, secret: bytes) -> dict[str, bytes]:
        """Deal new keys after a change of members: needs old keys here and a higher version."""
        old = self._cohort(self._file("cohort.key"))
        if old.roster == roster.digest():
            raise KeyringError(
                "the keys here are those of this roster already",
                fix="`secure-fl keys ceremony` with this roster seals the same keys again; new "
                "keys need a new roster: `secure-fl keys roster --after OLD`",
                reason="older-version",
            )
        if roster.version <= old.version:
            raise KeyringError(
                f"this roster has version {roster.version}, the keys here {old.version}",
                fix="assemble the new one with `secure-fl keys roster --after OLD`",
                reason="older-version",
            )
        return self.ceremony(roster, secret)

    def accept(self, roster: Roster, bundle: bytes) -> CohortKeys:
        """Open the dealer's bundle for this site and keep the keys."""
        keys = open_bundle(self.identity(), roster, bundle)
        self.install(keys, roster)
        return keys

    def held(self) -> CohortKeys | None:
        """Open the present cohort keys, to show them: not for runs."""
        path = self._file("cohort.key")
        return self._cohort(path) if path.exists() else None

    def install(self, keys: CohortKeys, roster: Roster) -> None:
        """Store the keys of a ceremony, after archiving those of an earlier roster version."""
        keys.check(roster)
        path = self._file("cohort.key")
        if path.exists():
            old = self._cohort(path)
            if old.roster == keys.roster and old.fingerprint() == keys.fingerprint():
                return
            if roster.version <= old.version:
                raise _not_newer(roster, old, path)
            self._archive(path, f"cohort-{old.version}.key")
        save(path, KeyFileKind.COHORT, encode_keys(keys), self.passphrase, self.cost)

    def require_newer(self, roster: Roster) -> None:
        """Refuse a roster that is neither the one of the present keys nor a later version."""
        held = self.held()
        if held is None or held.roster == roster.digest() or roster.version > held.version:
            return
        raise _not_newer(roster, held, self._file("cohort.key"))

    def _dealt(self, roster: Roster, dealer: Identity) -> CohortKeys | None:
        keys = self.held()
        mine = keys is not None and keys.roster == roster.digest() and keys.dealer == dealer.name
        return keys if mine else None

    def _cohort(self, path: Path) -> CohortKeys:
        try:
            return decode_keys(load(path, KeyFileKind.COHORT, self.passphrase))
        except CryptoError as error:
            raise error.at(file=path) from None

    def _archive(self, path: Path, name: str) -> None:
        self._private_folder(self.folder / "archive")
        # copied, then replaced by the new file: a cohort key exists at every moment
        write_atomic(self.folder / "archive" / name, read_bounded(path), mode=0o600)

    def _file(self, name: str) -> Path:
        check_private(self.folder, 0o700)
        return self.folder / name

    def _private_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KeyringError(
                f"cannot be created: {error.strerror}",
                file=folder,
                fix=OWN_FOLDER,
                reason="unwritable",
            ) from None
        check_private(folder, 0o700)


def _not_newer(roster: Roster, held: CohortKeys, path: Path) -> KeyringError:
    return KeyringError(
        f"this site already holds keys of roster version {held.version}, and these are "
        f"for version {roster.version}",
        file=path,
        fix="leave an old kit or bundle alone; a new ceremony needs a roster with a higher "
        "version: `secure-fl keys roster --after OLD`",
        reason="newer-keys-present",
    )
