"""A site's kit as one sealed file, which can be sent by mail: only the site can open it.

Specified in docs/protocol-bytes.md 3.4.

The coordinator seals it to the identity on the site's card. The roster is in clear, because the
site needs the coordinator's key from it; people compare its fingerprint by phone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from secure_fl.crypto.keys.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity, open_sealed, seal_to
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.keys.roster_files import read_roster, roster_bytes
from secure_fl.engines.flare.tls import ROOT, SITE
from secure_fl.errors import CryptoError, KeyringError
from secure_fl.files import sync
from secure_fl.pilot.certificates import DAYS
from secure_fl.pilot.kits import CONNECTION, ROSTER, write_kits

BUNDLE, PLAN = "cohort.bundle", "plan.toml"
MEMBERS = frozenset({CONNECTION, ROOT, f"{SITE}.crt", f"{SITE}.key", BUNDLE, PLAN})
ANOTHER = "use the file with this site's name that the coordinator's `pilot init` wrote"


class _File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: str
    name: str
    roster: bytes
    sealed: bytes


FORMAT = "secure-fl/kit/3"


def write_sealed_kits(
    roster: Roster,
    hub: Identity,
    bundles: Path,
    folder: Path,
    address: tuple[list[str], int],
    *,
    plan: str | None = None,
    days: int = DAYS,
) -> dict[str, Path]:
    """Write the coordinator's kit as a folder, and a sealed file for each member."""
    paths = {}
    with TemporaryDirectory(dir=folder.parent) as place:
        for name, kit in write_kits(roster, Path(place), *address, days=days).items():
            if name == hub.name:
                folder.mkdir(parents=True, exist_ok=True)
                paths[name] = kit.rename(folder / name)
                continue
            (kit / BUNDLE).write_bytes(read_bounded(bundles / f"{name}.bundle"))
            if plan is not None:
                (kit / PLAN).write_text(plan)
            paths[name] = folder / f"{name}.kit"
            write_atomic(paths[name], _sealed(kit, roster, hub, name))
    return paths


def open_kit(file: Path, me: Identity, folder: Path) -> Path:
    """Open this site's kit into a folder."""
    try:
        read = msgspec.msgpack.decode(read_bounded(file), type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise KeyringError(
            "is not a kit, or is incomplete", file=file, fix=ANOTHER, reason="malformed"
        ) from None
    if read.format != FORMAT:
        what, fix = (
            f"has the format {read.format[:64]!r}",
            f"ask for a kit of this release ({FORMAT})",
        )
        raise KeyringError(what, file=file, fix=fix, reason="other-format")
    if read.name != me.name:
        what = f"this kit is for {read.name[:64]!r}, and this site is {me.name!r}"
        raise KeyringError(what, file=file, fix=ANOTHER, reason="other-recipient")
    roster = read_roster(read.roster, file=str(file))
    roster.require(me.public)
    try:
        plain = open_sealed(me, roster.coordinator, read.sealed, _context(roster))
        contents = msgspec.msgpack.decode(plain, type=dict[str, bytes])
    except (CryptoError, msgspec.MsgspecError, UnicodeDecodeError):
        what = "cannot be opened with this site's keys: it was changed, or sealed to another card"
        fix = "check that the coordinator has the card that this site's `site init` wrote"
        raise KeyringError(what, file=file, fix=fix, reason="cannot-open") from None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in contents.items():
        if name in MEMBERS:  # other names could be paths outside the folder
            write_atomic(folder / name, data, mode=0o600)
    write_atomic(folder / ROSTER, read.roster)
    return folder


def put_in_place(opened: Path, folder: Path) -> Path:
    """Replace the kit in use by an opened one, so that files of two kits are never mixed."""
    before = folder.with_name(f".{folder.name}.before")
    try:
        shutil.rmtree(before, ignore_errors=True)
        if folder.exists():
            folder.rename(before)
        opened.rename(folder)
        sync(folder.parent)
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        what = f"the kit cannot be written here: {error.strerror}"
        raise KeyringError(what, file=folder, fix=OWN_FOLDER, reason="unwritable") from None
    return folder


def _sealed(kit: Path, roster: Roster, hub: Identity, name: str) -> bytes:
    contents = {file.name: file.read_bytes() for file in kit.iterdir() if file.name in MEMBERS}
    plain = msgspec.msgpack.encode(contents)
    sealed = seal_to(hub, roster.member(name).identity, plain, _context(roster))
    return msgspec.msgpack.encode(_File(FORMAT, name, roster_bytes(roster), sealed))


def _context(roster: Roster) -> bytes:
    return b"secure-fl kit" + roster.digest()
