"""The roster: members, roles, tiers, public keys, and the threshold of their sums. No secrets.

Specified in docs/protocol-bytes.md 3.2. Each member compares its fingerprint with the others by
phone, signs the digest, and uses no roster that it has not signed. The id of a run is derived from
the roster, so all parties of a sum have signed the same one, before signatures are collected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from secure_fl.crypto.keys.identity import Identity, PublicIdentity, digest_of, spoken
from secure_fl.errors import CryptoError, KeyringError
from secure_fl.thresholds import CollusionBound, collusion_bound, default_threshold

Role = Literal["party", "host"]
VERSION = b"\x01"
LONGEST = 36_500  # longest validity of a roster in days


@dataclass(frozen=True, slots=True)
class Member:
    """One site: a hospital that trains (`party`), or FedID's "server" that holds data (`host`)."""

    name: str
    role: Role
    tier: str | None
    identity: PublicIdentity


@dataclass(frozen=True, slots=True)
class Roster:
    """All members in order of names, the coordinator's card, and the rules of their sums."""

    members: tuple[Member, ...]
    coordinator: PublicIdentity
    threshold: int | None  # survivors that a sum needs; None: floor(2n/3)+1
    created: datetime
    expires: datetime
    version: int = 1  # grows by one with each change of members
    signatures: tuple[tuple[str, bytes], ...] = ()  # (member, signature of the digest)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda m: m.name)))
        object.__setattr__(self, "signatures", tuple(sorted(self.signatures)))
        for name in ("created", "expires"):  # whole seconds in UTC: equal moments have equal bytes
            moment = getattr(self, name).astimezone(UTC).replace(microsecond=0)
            object.__setattr__(self, name, moment)

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names in order."""
        return tuple(m.name for m in self.members)

    @property
    def parties(self) -> tuple[Member, ...]:
        """The members that contribute to sums."""
        return tuple(m for m in self.members if m.role == "party")

    @property
    def host(self) -> Member | None:
        """The member that reads host sums, if there is one."""
        return next((m for m in self.members if m.role == "host"), None)

    @property
    def t(self) -> int:
        """The number of parties that a sum needs."""
        return self.threshold or default_threshold(len(self.parties))

    @property
    def bound(self) -> CollusionBound:
        """The number of parties that learn only the others' sum, even with the coordinator."""
        return collusion_bound(len(self.parties), self.t)

    def member(self, name: str) -> Member:
        """Return the member of this name, or raise KeyringError."""
        for m in self.members:
            if m.name == name:
                return m
        raise KeyringError(
            f"{name!r} is not on the roster",
            fix=f"members: {listed(self.names)}",
            reason="not-listed",
        )

    def require(self, identity: PublicIdentity) -> None:
        """Raise KeyringError unless these very keys are on the roster under this name."""
        if self.member(identity.name).identity != identity:
            raise KeyringError(
                f"the roster lists other keys for {identity.name!r}",
                fix="use the identity whose card the roster was assembled from",
                reason="other-keys",
            )

    def canonical(self) -> bytes:
        """Encode the content that is signed: everything except the signatures."""
        head = (self.version, self.threshold or 0, self.created, self.expires)
        fields = [str(x if isinstance(x, int) else x.isoformat()).encode() for x in head]
        fields.append(self.coordinator.canonical())
        for m in self.members:
            tier = b"" if m.tier is None else b"tier " + m.tier.encode()
            fields += [m.name.encode(), m.role.encode(), tier, m.identity.canonical()]
        return VERSION + b"".join(len(f).to_bytes(4, "big") + f for f in fields)

    def digest(self) -> bytes:
        """Compute SHA-256 of the canonical bytes, to which keys and runs are bound."""
        return digest_of(b"secure-fl roster", self.canonical())

    def fingerprint(self) -> str:
        """Return eight groups of five digits to compare over the phone."""
        return spoken(self.digest())

    def sign(self, identity: Identity) -> Roster:
        """Add a signature; a malformed roster is never signed."""
        self.check()
        self.require(identity.public)
        digest = self.digest()
        others = tuple(s for s in self.signatures if s[0] != identity.name)
        return replace(self, signatures=(*others, (identity.name, identity.sign_document(digest))))

    def check(self) -> None:
        """Raise KeyringError unless members, roles, keys, dates and threshold are consistent."""
        _check_members(self)
        n = len(self.parties)
        if self.threshold is not None and not n / 2 < self.threshold <= n:
            raise KeyringError(
                f"a threshold of {self.threshold} does not fit {n} parties",
                fix=f"choose {n // 2 + 1} to {n}: with half or fewer, a coordinator that lies "
                "about dropouts could unmask everybody",
                reason="threshold",
            )
        if self.expires <= self.created or self.version < 1:
            raise KeyringError(
                "the roster expires before it begins, or has a version below 1",
                fix="make it again, with a later last day",
                reason="dates",
            )

    def verify(self, *, now: datetime | None = None, me: PublicIdentity | None = None) -> None:
        """Raise KeyringError unless the roster is valid and signed by a member (by `me`, if given).

        All signatures must be valid. A roster names no dealer, and the coordinator signs none. A
        site gives `me` before it opens keys: it uses no roster that its people have not compared.
        """
        self.check()
        signed = dict(self.signatures)
        if foreign := sorted(set(signed) - set(self.names)):
            raise KeyringError(
                f"signed by {listed(foreign)}, not on the roster",
                fix="start from the cards again",
                reason="not-listed",
            )
        if me is not None:
            self.require(me)
        if not signed or (me is not None and me.name not in signed):
            raise KeyringError(
                f"the signature of {me.name!r} is missing" if me else "no member has signed it",
                fix="compare its fingerprint by phone, then `secure-fl site check` (or `keys "
                "ceremony`, at the dealer) signs",
                reason="unsigned",
            )
        digest = self.digest()
        for m in (m for m in self.members if m.name in signed):
            try:
                m.identity.verify_document(digest, signed[m.name])
            except CryptoError:
                raise KeyringError(
                    f"the signature of {m.name!r} is not for this roster",
                    fix="the roster was changed after it was signed, or the key is another one: "
                    "compare fingerprints and sign again",
                    reason="signature",
                ) from None
        self.require_current(now)

    def require_current(self, now: datetime | None = None) -> None:
        """Raise KeyringError after the last day of the roster, which is that of its keys."""
        if (now or datetime.now(UTC)) >= self.expires:
            raise KeyringError(
                f"the roster expired on {self.expires:%Y-%m-%d %H:%M} UTC",
                fix="assemble and sign a new version, then `secure-fl keys rotate`",
                reason="expired",
            )


def make_roster(
    members: tuple[Member, ...],
    coordinator: PublicIdentity,
    *,
    threshold: int | None = None,
    days: float = 365.0,
    version: int = 1,
) -> Roster:
    """Return a new, checked, unsigned roster that is valid from now on."""
    now = datetime.now(UTC)
    if not 0 < days <= LONGEST:
        raise KeyringError(
            f"a roster cannot be valid for {days} days",
            fix=f"choose more than 0, and {LONGEST} at most",
            reason="dates",
        )
    until = now + timedelta(days=days)
    roster = Roster(members, coordinator, threshold, now, until, version)
    roster.check()
    return roster


def listed(names: Iterable[str]) -> str:
    """Format names for a message."""
    return ", ".join(repr(name) for name in names) or "nobody"


def _check_members(roster: Roster) -> None:
    names = [roster.coordinator.name, *(m.name for m in roster.members)]
    if duplicates := sorted(
        {n for n in names if sum(n.casefold() == m.casefold() for m in names) > 1}
    ):
        raise KeyringError(
            f"{listed(duplicates)} name more than one member or coordinator",
            fix="names must differ by more than upper and lower case",
            reason="duplicate-names",
        )
    for m in roster.members:
        if m.role not in get_args(Role):
            raise KeyringError(
                f"{m.name!r} has role {m.role!r}", fix="use party or host", reason="role"
            )
        if m.name != m.identity.name:
            what = f"member {m.name!r} has the card of {m.identity.name!r}"
            raise KeyringError(what, fix="fetch that site's own card again", reason="card")
    hosts = [m.name for m in roster.members if m.role == "host"]
    if len(hosts) > 1:
        raise KeyringError(
            f"{listed(hosts)} are all hosts",
            fix="a roster has one host at most",
            reason="several-hosts",
        )
    if not roster.parties:
        raise KeyringError(
            "the roster has no party", fix="add the card of every hospital", reason="no-party"
        )
    cards = [roster.coordinator, *(m.identity for m in roster.members)]
    keys = [key for card in cards for key in card.keys]
    if len(set(keys)) != len(keys):
        raise KeyringError(
            "two cards hold the same key",
            fix="each site and the coordinator make their own",
            reason="shared-key",
        )
