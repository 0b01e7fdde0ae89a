"""What each machine of a pilot is given: whom to dial, its certificate, the signed roster.

KIT/roster.json        who takes part, signed by all
KIT/connection.json    the coordinator's address and name, and whose kit this is
KIT/rootCA.pem, client.{crt,key} or server.{crt,key}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from secure_fl.crypto.files import read_bounded, write_atomic
from secure_fl.engines.certificates import Authority, TlsFiles
from secure_fl.errors import KeyringError
from secure_fl.roster import Roster
from secure_fl.roster_files import load_roster, roster_bytes

COORDINATOR = "coordinator"
CONNECTION, ROSTER = "connection.json", "roster.json"


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the coordinator is, and whose kit this is."""

    url: str
    hub: str  # the name in the coordinator's certificate
    name: str
    format: Literal["secure-fl/kit/1"] = "secure-fl/kit/1"


@dataclass(frozen=True, slots=True)
class Kit:
    """A kit, read."""

    folder: Path
    connection: Connection
    roster: Roster

    @property
    def tls(self) -> TlsFiles:
        """The files of its end of the connection."""
        own = self.connection.name == self.connection.hub
        return (TlsFiles.of_coordinator if own else TlsFiles.of_site)(self.folder)


def write_kits(roster: Roster, folder: Path, hosts: Sequence[str], port: int) -> dict[str, Path]:
    """Write a kit for the coordinator and for every member, by one authority that is forgotten."""
    authority, hub = Authority(), roster.coordinator.name
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
    """Read a kit; its roster must be signed by all, and valid now."""
    try:
        connection = msgspec.json.decode(read_bounded(folder / CONNECTION), type=Connection)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KeyringError(
            f"is not a kit's connection: {error}",
            file=folder / CONNECTION,
            fix="copy the whole kit that `secure-fl pilot init` wrote for this machine",
        ) from None
    try:
        roster = load_roster(folder / ROSTER)
    except OverflowError:  # near year 1 or 9999, whose instant in UTC does not exist
        raise KeyringError("holds a date that no clock shows", file=folder / ROSTER) from None
    roster.verify()
    if connection.name not in (roster.coordinator.name, *roster.names):
        raise KeyringError(f"the roster does not list {connection.name!r}", file=folder)
    if connection.hub != roster.coordinator.name:
        raise KeyringError(f"the roster's coordinator is not {connection.hub!r}", file=folder)
    kit = Kit(folder, connection, roster)
    if (found := kit.tls.common_name()) != connection.name:
        raise KeyringError(
            f"the certificate is of {found!r}, and the kit of {connection.name!r}",
            file=folder,
            fix="take each file from the kit that was made for this machine",
        )
    return kit
