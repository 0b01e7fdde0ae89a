"""Kits: the coordinator's address, certificates and the signed roster, for each machine.

KIT/roster.json        the members, signed by the dealer
KIT/connection.json    the coordinator's address and name, and the owner of the kit
KIT/rootCA.pem, client.{crt,key} or server.{crt,key}

A member's kit is one sealed file, which can be sent by mail: only the member can open it. It is
sealed to the identity on the member's card, and specified in docs/protocol-bytes.md 3.4. The roster
is in clear, because the site needs the coordinator's key from it; people compare its fingerprint by
phone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from secure_fl.crypto.keys.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity, open_sealed, seal_to
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.keys.roster_files import load_roster, read_roster, roster_bytes
from secure_fl.engines.flare.tls import ROOT, SITE, TlsFiles
from secure_fl.errors import CryptoError, KeyringError, SettingsError
from secure_fl.files import sync
from secure_fl.pilot.certificates import DAYS, Authority

COORDINATOR = "coordinator"
SOON = timedelta(days=14)  # time before expiry at which warnings start
CONNECTION, ROSTER = "connection.json", "roster.json"
OWN = "use this site's own kit"
RENEW = {
    "certificates": "the coordinator makes new kits for all machines with `secure-fl pilot init`",
    "roster": "assemble and sign a new version (`secure-fl keys roster --after`), then `secure-fl "
    "keys rotate`, and new kits",
}


def require_host(host: str) -> None:
    """Refuse an invalid host name or address before it gets into a certificate."""
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    if re.fullmatch(rf"{label}(\.{label})*", host) and len(host) <= 253:
        return
    what, fix = f"{host[:80]!r} is not a host name or address", "as in --host hub.example.org"
    try:
        ip_address(host)
        what = f"{host} is an IPv6 address, which kits cannot contain"
        fix = "give a host name that leads to it, as in --host hub.example.org"
    except ValueError:
        pass
    raise SettingsError(what, fix=fix)


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The coordinator's address and name, and the owner of the kit."""

    url: str
    hub: str  # the name in the coordinator's certificate
    name: str
    format: Literal["secure-fl/kit/1"] = "secure-fl/kit/1"


@dataclass(frozen=True, slots=True)
class Kit:
    """A kit that was read."""

    folder: Path
    connection: Connection
    roster: Roster

    @property
    def tls(self) -> TlsFiles:
        """The files of its end of the connection."""
        own = self.connection.name == self.connection.hub
        return (TlsFiles.of_coordinator if own else TlsFiles.of_site)(self.folder)

    def ends(self) -> dict[str, datetime]:
        """Return the expiry of its certificates and its roster."""
        return {"certificates": self.tls.validity()[1], "roster": self.roster.expires}

    def warnings(self, now: datetime | None = None) -> list[str]:
        """Warn about an expiry soon, with the fix."""
        now = now or datetime.now(UTC)
        return [
            f"last day of this kit's {name} is {end:%Y-%m-%d}, in {(end - now).days} days: "
            f"{RENEW[name]}"
            for name, end in self.ends().items()
            if end - now < SOON
        ]


def write_kits(
    roster: Roster, folder: Path, hosts: Sequence[str], port: int, *, days: int = DAYS
) -> dict[str, Path]:
    """Write a kit for the coordinator and every member, under an authority that is not saved.

    `hosts` are the coordinator's addresses.
    """
    authority, hub = Authority(days=days), roster.coordinator.name
    url = f"grpc://{hosts[0]}:{port}"
    kits = {}
    for name in (hub, *roster.names):
        kit = kits[name] = folder / name
        if name == hub:
            authority.coordinator(kit, hosts, hub)
        else:
            authority.site(kit, name)
        kit.mkdir(parents=True, exist_ok=True)
        write_atomic(kit / ROSTER, roster_bytes(roster))
        connection = msgspec.json.encode(Connection(url, hub, name))
        write_atomic(kit / CONNECTION, connection + b"\n")
    return kits


def load_kit(folder: Path) -> Kit:
    """Read a kit; its roster must be signed, and valid now."""
    if not (folder / CONNECTION).exists():
        fix = "`secure-fl site check SITE --kit NAME.kit` opens what the coordinator sent"
        raise KeyringError("there is no opened kit here", file=folder, fix=fix, reason="missing")
    try:
        connection = msgspec.json.decode(read_bounded(folder / CONNECTION), type=Connection)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = f"is not a kit's connection: {error}"
        fix = "copy the whole kit that `secure-fl pilot init` wrote for this machine"
        raise KeyringError(what, file=folder / CONNECTION, fix=fix, reason="malformed") from None
    roster = load_roster(folder / ROSTER)
    roster.verify()
    if connection.name not in (roster.coordinator.name, *roster.names):
        what, fix = f"the roster does not list {connection.name!r}", "use this machine's own kit"
        raise KeyringError(what, file=folder, fix=fix, reason="not-listed")
    if connection.hub != roster.coordinator.name:
        what = f"the roster's coordinator is not {connection.hub!r}"
        fix = "get the kit again: its files are from different kits"
        raise KeyringError(what, file=folder, fix=fix, reason="mixed-kits")
    kit = Kit(folder, connection, roster)
    if (owner := kit.tls.common_name()) != connection.name:
        what = f"the certificate is of {owner!r}, and the kit is of {connection.name!r}"
        fix = "use the files of the kit that was made for this machine"
        raise KeyringError(what, file=folder, fix=fix, reason="mixed-kits")
    _require_valid(kit.tls, datetime.now(UTC))
    return kit


def require_hospital(kit: Kit) -> None:
    """Refuse the coordinator's kit at a hospital."""
    if kit.connection.name == kit.roster.coordinator.name:
        what, fix = "this is the coordinator's kit, and this is a hospital", OWN
        raise KeyringError(what, file=kit.folder, fix=fix, reason="other-recipient")


def require_own(kit: Kit, me: Identity) -> None:
    """Refuse another machine's kit before an attempt to connect."""
    require_hospital(kit)
    if (name := kit.connection.name) != me.name:
        what = f"this kit is of {name!r}, and this site is {me.name!r}"
        raise KeyringError(what, file=kit.folder, fix=OWN, reason="other-recipient")
    kit.roster.require(me.public)


def require_coordinator(kit: Kit, me: Identity) -> None:
    """Refuse keys or a kit that hospitals would refuse, before they connect."""
    coordinator = kit.roster.coordinator
    if kit.connection.name != coordinator.name:
        what = f"this is the kit of {kit.connection.name!r}, and this is the coordinator"
        fix = f"use the kit of {coordinator.name!r}"
        raise KeyringError(what, file=kit.folder, fix=fix, reason="other-recipient")
    if me.public != coordinator:
        what = f"the keys of {me.name!r} are not those of the coordinator on the roster"
        fix = f"use the keys of its card ({coordinator.name!r}), or make a roster with a new card"
        raise KeyringError(what, file=kit.folder, fix=fix, reason="other-keys")


def _require_valid(tls: TlsFiles, now: datetime) -> None:
    """Refuse certificates that the other side would refuse, with the reason."""
    begin, end = tls.validity()
    if now >= end:
        what = f"the certificates of this kit expired on {end:%Y-%m-%d %H:%M} UTC"
        raise KeyringError(what, file=tls.certificate, fix=RENEW["certificates"], reason="expired")
    if now < begin:
        what = f"the certificates of this kit are valid from {begin:%Y-%m-%d %H:%M} UTC"
        fix = "correct this machine's clock"
        raise KeyringError(what, file=tls.certificate, fix=fix, reason="not-yet-valid")


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
