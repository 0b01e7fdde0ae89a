"""Kits: the coordinator's address, certificates and the signed roster, for each machine.

KIT/roster.json        the members, signed by the dealer
KIT/connection.json    the coordinator's address and name, and the owner of the kit
KIT/rootCA.pem, client.{crt,key} or server.{crt,key}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import msgspec

from secure_fl.crypto.keys.files import read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.keys.roster_files import load_roster, roster_bytes
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.errors import KeyringError, SettingsError
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
    try:
        ip_address(host)
    except ValueError:
        what, fix = f"{host[:80]!r} is not a host name or address", "as in --host hub.example.org"
        raise SettingsError(what, fix=fix) from None


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
