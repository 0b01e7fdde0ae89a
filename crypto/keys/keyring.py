"""A site's folder of key files: its identity and the cohort's keys.

    identity.key   cohort.key   archive/cohort-<roster version>.key

The folder is mode 0700, every file 0600 and encrypted (`vault.py`). Cohort keys are bound
to a roster's digest: a run under another roster is refused. Changing members means a new roster
version and new keys; the old ones move to the archive, where no new run finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from secure_fl.crypto.keys.ceremony import (
    CohortKeys,
    deal,
    decode_keys,
    encode_keys,
    open_bundle,
    seal_bundles,
)
from secure_fl.crypto.keys.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.keys.vault import DEFAULT_COST, Cost, Kind, check_private, load, save
from secure_fl.errors import CryptoError, KeyringError


@dataclass(frozen=True, slots=True, eq=False)
class KeyRing:
    """The key files of one site, and the passphrase that opens them."""

    folder: Path
    passphrase: str = field(repr=False)
    cost: Cost = DEFAULT_COST  # for files written from now on; reading follows each file's header

    def create(self, identity: Identity) -> None:
        """Write a first identity; an existing one is never overwritten."""
        path = self.folder / "identity.key"
        if path.exists():
            raise KeyringError(
                "an identity exists here already",
                file=path,
                fix="take another folder: a new identity would lock this site out of its roster",
                reason="exists",
            )
        self._private_folder(self.folder)
        save(path, Kind.IDENTITY, identity.to_private_bytes(), self.passphrase, self.cost)

    def identity(self) -> Identity:
        """Open this site's private identity."""
        path = self._file("identity.key")
        return Identity.from_private_bytes(load(path, Kind.IDENTITY, self.passphrase))

    def cohort(self, roster: Roster, *, now: datetime | None = None) -> CohortKeys:
        """Open the cohort's keys for a run under this roster, which is verified first."""
        roster.verify(now=now, me=self.identity().public)
        path = self._file("cohort.key")
        if not path.exists():
            raise KeyringError(
                "this site has no cohort keys yet",
                file=path,
                fix="run `secure-fl keys accept` with the dealer's bundle",
                reason="missing",
            )
        return _check_cohort(self._cohort(path), roster, path, now)

    def ceremony(self, roster: Roster, secret: bytes) -> dict[str, bytes]:
        """Deal keys around the scheme's secret: keep ours, return a sealed bundle per member.

        Called again under the same roster by the same dealer it seals the *same* keys again.
        """
        dealer = self.identity()
        keys = self._dealt(roster, dealer) or deal(dealer, roster, secret)
        bundles = seal_bundles(dealer, roster, keys)
        self.install(keys, roster)
        return bundles

    def rotate(self, roster: Roster, secret: bytes) -> dict[str, bytes]:
        """Deal new keys after a change of members: needs old keys here and a higher version."""
        old = self._cohort(self._file("cohort.key"))
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
        """Open whatever cohort keys are here, to show them: no run may use this."""
        path = self._file("cohort.key")
        return self._cohort(path) if path.exists() else None

    def install(self, keys: CohortKeys, roster: Roster) -> None:
        """Store the keys of a ceremony; those of an earlier roster version are archived first."""
        keys.check(roster)
        path = self._file("cohort.key")
        if path.exists():
            old = self._cohort(path)
            if old.roster == keys.roster and old.fingerprint() == keys.fingerprint():
                return
            if roster.version <= old.version:
                raise _not_newer(roster, old, path)
            self._archive(path, f"cohort-{old.version}.key")
        save(path, Kind.COHORT, encode_keys(keys), self.passphrase, self.cost)

    def require_newer(self, roster: Roster) -> None:
        """Refuse a roster that neither is the one of the keys here, nor follows it."""
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
            return decode_keys(load(path, Kind.COHORT, self.passphrase))
        except CryptoError as error:
            raise error.at(file=path) from None

    def _archive(self, path: Path, name: str) -> None:
        self._private_folder(self.folder / "archive")
        # copied, then replaced by the new file: at no moment is there no cohort key
        write_atomic(self.folder / "archive" / name, read_bounded(path), mode=0o600)

    def _file(self, name: str) -> Path:
        check_private(self.folder, 0o700)
        return self.folder / name

    def _private_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KeyringError(
                f"cannot be made: {error.strerror}",
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


def _check_cohort(keys: CohortKeys, roster: Roster, path: Path, now: datetime | None) -> CohortKeys:
    try:
        keys.check(roster, now=now)
    except KeyringError as error:
        raise error.at(file=path) from None
    return keys
