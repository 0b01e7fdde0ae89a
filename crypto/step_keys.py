"""The keys of one masked sum at one party: drawn, shared, used once, and forgotten.

Bonawitz et al., CCS 2017, malicious variant. For every sum a party draws two seeds of 128 bits:
one gives its X25519 mask key, one its self mask. Both are shared among its neighbours, each share
sealed to its holder together with the public key, so the coordinator can neither read nor swap
them; and no party masks before it has the keys of every member it masks with. After the sum a
survivor reveals its shares of the survivors' self seeds and of the dropped parties' mask keys,
once, and never both of one party.

Where somebody is said to be gone, parties first sign the lists they were told, and reveal only to
a threshold of equal signatures. A coordinator that told them different lists would otherwise
collect self seeds here and mask keys there, and sum over fewer parties than anybody agreed to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.crypto import masking, sharing
from secure_fl.crypto.circle import Circle, parties_of
from secure_fl.crypto.identity import Channel, PublicIdentity
from secure_fl.crypto.masking import Place, Slots
from secure_fl.crypto.primitives import digest_of
from secure_fl.errors import DISTRUST, CohortError, CryptoError, TooFewParties
from secure_fl.protocol.messages import Offer, UnmaskShares

KEY = 32
PAYLOAD = KEY + 2 * sharing.SHARE_BYTES


@dataclass(slots=True)
class StepKeys:
    """One party's secrets of one sum."""

    me: str
    host: str | None
    run: str
    index: int  # sums are counted; no key serves two of them
    circle: Circle
    channels: Mapping[str, Channel] = field(repr=False)
    _mask_seed: bytes = field(default_factory=masking.new_seed, repr=False, init=False)
    _self_seed: bytes = field(default_factory=masking.new_seed, repr=False, init=False)
    _mask_key: X25519PrivateKey = field(repr=False, init=False)
    _publics: dict[str, bytes] = field(default_factory=dict, init=False)
    _agreed: dict[str, bytes] = field(default_factory=dict, repr=False, init=False)
    _held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False, init=False)
    _members: frozenset[str] = field(default=frozenset(), init=False)  # who masks, by all views
    _lists: tuple[frozenset[str], frozenset[str]] | None = field(default=None, init=False)
    _revealed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._mask_key = masking.mask_key(self._mask_seed)

    def offer(self) -> Offer:
        """The public key, and for each neighbour the shares it is to hold (for the host: none)."""
        public, shares = self._mask_key.public_key().public_bytes_raw(), {}
        if self.me == self.host:
            receivers: Sequence[str] = tuple(self.circle.neighbours)
        else:
            receivers = self.circle.neighbours[self.me]
            keys, selves = self._split(self._mask_seed), self._split(self._self_seed)
            self._held[self.me] = keys[self.me], selves[self.me]
        for peer in receivers:
            secret = b"" if self.me == self.host else keys[peer] + selves[peer]
            shares[peer] = self.channels[peer].seal(public + secret, self._context(self.me, peer))
        if self.host is not None and self.me != self.host:
            shares[self.host] = self.channels[self.host].seal(
                public, self._context(self.me, self.host)
            )
        return Offer(public, shares)

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Open what all other members sealed for this party; a single one missing is refused."""
        self._members = parties_of(tuple(members), self.host)
        near = self._members if self.me == self.host else self.circle.neighbours[self.me]
        expected = (set(near) & self._members) | ({self.host} & set(members)) - {self.me}
        if (
            set(offers) != expected
            or self.me not in members
            or not self._members <= self.circle.neighbours.everybody
            or len(self._members) < self.circle.quorum
        ):
            raise CohortError(
                "the coordinator withholds keys of members, or names too few members",
                fix="stop the run: this party's masks would not protect it",
                party=self.me,
            )
        for sender, offer in offers.items():
            if sender not in self.channels or self.me not in offer.shares:
                raise CryptoError("keys arrived from somebody who is not on the roster")
            opened = self.channels[sender].open(
                offer.shares[self.me], self._context(sender, self.me)
            )
            to_or_from_host = self.host in (sender, self.me)
            if len(opened) != (KEY if to_or_from_host else PAYLOAD) or opened[:KEY] != offer.public:
                raise CryptoError(
                    "this party's keys were swapped on their way",
                    fix=DISTRUST,
                    party=sender,
                )
            self._publics[sender] = opened[:KEY]
            if not to_or_from_host:
                cut = KEY + sharing.SHARE_BYTES
                self._held[sender] = opened[KEY:cut], opened[cut:]

    def require_company(self, owners: Collection[str], least: int) -> None:
        """Refuse a sum over some, any of whom masks with fewer than `least` - 1 others in it.

        Above 32 parties not everybody masks with everybody: a few of them may have no mask between
        them, and self masks are taken off.
        """
        near, among = self.circle.neighbours, self._members.intersection(owners)
        if len(among) in (0, len(near)):
            return
        party, peers = near.fewest(among)
        if peers < least - 1:
            raise TooFewParties(
                f"of the {len(among)} parties in this sum only {peers} mask with {party}, "
                f"among {len(near)}; min_cohort is {least}",
                fix="sum over more of them at once, or form cohorts of at most 32 parties",
                party=self.me,
            )

    def peers(self, owners: Collection[str]) -> set[str]:
        """With whom of these this party masks."""
        return set(self.circle.neighbours[self.me]) & set(owners) & set(self._publics)

    def mask(
        self,
        owners: Collection[str],
        segment: str,
        length: int,
        modulus: int,
        *,
        for_host: bool,
        salts: Mapping[str, bytes] | None = None,
    ) -> Slots:
        """What this party adds: pair masks, its self mask and, for a host sum, the host's mask.

        Masks with a peer cancel only if both salt them alike.
        """
        place, salts = Place(segment, 0, self.index), salts or {}
        secrets = {
            self.circle.numbers[p]: masking.salted(self._secret_with(p), salts.get(p))
            for p in self.peers(owners)
        }
        plus, minus = masking.pair_keys(self.circle.numbers[self.me], secrets, place)
        plus.append(masking.self_key(self._self_seed, place))
        if for_host:
            plus.append(self._host_key(self.host or "", place))
        return masking.combine(plus, minus, length, modulus)

    def host_masks(self, owners: Sequence[str], segment: str, length: int, modulus: int) -> Slots:
        """At the host: the sum of what the owners added for it."""
        place = Place(segment, 0, self.index)
        return masking.combine([self._host_key(p, place) for p in owners], [], length, modulus)

    def settle(self, survivors: Sequence[str], dropped: Sequence[str]) -> bytes:
        """Check the lists and hold on to them, once; returns the digest to be signed."""
        alive = parties_of(tuple(survivors), self.host)
        gone = parties_of(tuple(dropped), self.host)
        if self._lists is not None:
            raise CohortError(
                "the coordinator asked twice to unmask one sum", party=self.me, fix=DISTRUST
            )
        if (
            alive & gone
            or alive | gone != self._members
            or len(survivors) + len(dropped) > len(set(survivors) | set(dropped))
        ):
            raise CohortError(
                "the coordinator's lists of survivors and dropped parties overlap or miss somebody",
                fix="stop the run: with such lists it could unmask one party",
                party=self.me,
            )
        if self.me in gone:
            raise CohortError(
                "the coordinator says that this party is gone", party=self.me, fix=DISTRUST
            )
        if len(alive) < self.circle.quorum:
            raise CohortError("a sum over fewer parties than the threshold", party=self.me)
        self._lists = alive, gone
        return self._statement(alive, gone)

    def reveal(
        self, signatures: Mapping[str, bytes], signers: Mapping[str, PublicIdentity]
    ) -> UnmaskShares:
        """Shares that unmask the sum over the survivors, once, and as the others were told."""
        if self._lists is None or self._revealed:
            raise CohortError(
                "the coordinator asked twice to unmask one sum", party=self.me, fix=DISTRUST
            )
        alive, gone = self._lists
        if gone:
            self._check_signatures(alive, gone, signatures, signers)
        self._revealed = True
        if self.me == self.host:
            return UnmaskShares({}, {})
        return UnmaskShares(
            {p: self._held[p][1] for p in sorted(alive) if p in self._held},
            {p: self._held[p][0] for p in sorted(gone) if p in self._held},
        )

    def _check_signatures(
        self,
        alive: frozenset[str],
        gone: frozenset[str],
        signatures: Mapping[str, bytes],
        signers: Mapping[str, PublicIdentity],
    ) -> None:
        statement, agreed = self._statement(alive, gone), alive & set(signatures)
        for party in agreed:
            signers[party].verify(statement, signatures[party])
        if len(agreed) < self.circle.quorum:
            raise CohortError(
                f"only {len(agreed)} parties confirm who dropped out of a sum; the threshold is "
                f"{self.circle.quorum}",
                fix="if the coordinator named others to them, it is not to be trusted",
                party=self.me,
            )

    def _statement(self, alive: frozenset[str], gone: frozenset[str]) -> bytes:
        lists = ("\n".join(sorted(names)).encode() for names in (alive, gone))
        step = f"{self.run} {self.index}".encode()
        return digest_of(b"secure-fl survivors", step, *lists)

    def _split(self, secret: bytes) -> dict[str, bytes]:
        numbers = self.circle.numbers
        holders = {numbers[p]: p for p in (self.me, *self.circle.neighbours[self.me])}
        shares = sharing.split(secret, self.circle.shares_needed(self.me), sorted(holders))
        return {holders[number]: share for number, share in shares.items()}

    def _host_key(self, peer: str, place: Place) -> bytes:
        if peer not in self._publics:
            raise CryptoError("a host sum needs keys of the host and of every party", party=peer)
        return masking.host_key(self._secret_with(peer), place)

    def _secret_with(self, peer: str) -> bytes:
        """One secret per peer and sum, however many segments: each has streams of its own."""
        if peer not in self._agreed:
            self._agreed[peer] = masking.agree(self._mask_key, self._publics[peer])
        return self._agreed[peer]

    def _context(self, sender: str, receiver: str) -> bytes:
        return f"step keys {self.run} {self.index} {sender} {receiver}".encode()
