"""Sites with fixed private keys, and rosters of them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from secure_fl.crypto.keys.identity import VERSION, Identity
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.vault import Cost

CHEAP = Cost(log_n=10)


def site(name: str) -> Identity:
    """The same keys for the same name, always."""
    uses = ("sign", "mldsa", "agree", "d", "z")  # a seed of ML-KEM is d | z
    keys = b"".join(hashlib.sha256(f"{use} of {name}".encode()).digest() for use in uses)
    return Identity.from_private_bytes(VERSION + keys + name.encode())


def members(*names: str, host: str | None = None) -> tuple[Member, ...]:
    return tuple(Member(n, "host" if n == host else "party", None, site(n).public) for n in names)


def unsigned(*names: str, host: str | None = None, version: int = 1) -> Roster:
    return make_roster(members(*names, host=host), site("hub").public, version=version)


def signed(*names: str, host: str | None = None, version: int = 1) -> Roster:
    roster = unsigned(*names, host=host, version=version)
    for name in names:
        roster = roster.sign(site(name))
    return roster


def fixed_roster() -> Roster:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    roster = Roster(
        members("north", "south", "east"), site("hub").public, None, start, start + timedelta(365)
    )
    for name in roster.names:
        roster = roster.sign(site(name))
    return roster
