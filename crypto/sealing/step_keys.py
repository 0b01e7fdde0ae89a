"""Keys of one masked sum at one party: drawn, shared, used once, and deleted.

Specified in docs/protocol.md 4.7, 4.9 and 4.10: Bonawitz et al., CCS 2017, malicious variant.

After the sum a survivor reveals its shares of the survivors' self seeds and of the dropped parties'
mask keys, once, and never both of one party. If the lists name dropouts, it first waits for a
threshold of equal signatures of them. With different lists a coordinator could otherwise collect
self seeds from some parties and mask keys from others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from secrets import token_bytes

import msgspec
from msgspec import structs

from secure_fl.crypto.blame.evidence import digest_taken, entry
from secure_fl.crypto.keys.identity import Channel, PublicIdentity, commit, digest_of
from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.masking import RemainingMasks, Slots, StreamId
from secure_fl.errors import DISTRUST, CohortError, CryptoError, PeerKeysError
from secure_fl.protocol.messages import Deal, Lost, Offer, SurvivorStatement, UnmaskShares

KEY = 32
DEALT = ("key", "self", "half")  # shares of its mask key's seed and its self mask's, and a half
PAYLOAD = KEY + masking.HALF_BYTES  # for and from the host; others add two shares

_Dealt = tuple[bytes, bytes, bytes]


class StepKeys:
    """One party's secrets of one sum.

    `index`: the number of the sum; no key serves two sums. `parties`: all members that can mask, so
    not the host. `numbers`: every member of the run, numbered from 1 in order of names.
    `threshold`: the number of shares that recover a secret, and of parties that make a sum.
    """

    def __init__(
        self,
        me: str,
        host: str | None,
        run: str,
        index: int,
        parties: frozenset[str],
        numbers: Mapping[str, int],
        threshold: int,
        channels: Mapping[str, Channel],
    ) -> None:
        self.me, self.host, self.run, self.index = me, host, run, index
        self.parties, self.numbers, self.threshold = parties, numbers, threshold
        self.channels = channels
        self.revealed = False  # True once the shares that remove its masks left
        self._mask_seed = token_bytes(masking.SEED_BYTES)
        self._self_seed = token_bytes(masking.SEED_BYTES)
        self._mask_key = masking.mask_key(self._mask_seed)
        self._secrets: dict[str, bytes] = {}  # shared with each peer
        self._publics: dict[str, bytes] = {}  # mask keys of the others
        self.dropped = frozenset[str]()  # parties that masked, and are not in the sum
        self._taken: dict[str, bytes] = {}  # by owner, the keys and digests of shares it offered
        self.bound = b""  # commitments to its own seeds
        self.links: dict[str, bytes] = {}  # of the halves shared with each party
        self._held: dict[str, _Dealt] = {}
        self._members = frozenset[str]()  # all parties that mask
        self._lists: tuple[frozenset[str], frozenset[str]] | None = None
        self._statement = b""  # the digest of the lists

    def offer(self, statement: SurvivorStatement | None = None) -> Offer:
        """Return the public key sealed to all other members, with shares of both seeds for parties.

        The seals depend on all that is sent in the clear, `statement` too: changes are noticed.
        """
        public = self._public
        halves = {p: masking.half(self._mask_seed, number) for p, number in self.numbers.items()}
        dealt: dict[str, _Dealt] = {}
        if self.me != self.host:
            holders = {self.numbers[party]: party for party in sorted(self.parties)}
            keys, selves = (
                masking.share_secret(seed, self.threshold, sorted(holders))
                for seed in (self._mask_seed, self._self_seed)
            )
            dealt = {p: (keys[number], selves[number], halves[p]) for number, p in holders.items()}
            self._held[self.me] = dealt[self.me]
        others = {*self.parties, *({self.host} if self.host else ())} - {self.me}
        seed = commit(self._self_seed, self.run, self.index, self.me)
        deals = {holder: self._deal(self.me, holder, held) for holder, held in dealt.items()}
        offered = Offer(public, {}, seed, deals, statement)
        shares = {
            peer: self.channels[peer].seal(
                public + b"".join(dealt.get(peer, (halves[peer],))),
                self._about(self.me, peer, offered),
            )
            for peer in sorted(others)
        }
        self.bound = public + seed
        if self.me in deals:
            self._taken[self.me] = entry(self.bound, deals[self.me])
        return structs.replace(offered, shares=shares)

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Open the keys that all other members sealed for this party; all must be there."""
        self._members = frozenset(members) - {self.host}
        if (
            set(offers) != set(members) - {self.me}
            or self.me not in members
            or not self._members <= self.parties
            or len(self._members) < self.threshold
        ):
            raise self._refused(
                "the coordinator withholds keys of members, or names too few members",
                "offers",
                fix="stop the run: this party's masks would not protect it",
            )
        for sender, offer in offers.items():
            to_or_from_host = self.host in (sender, self.me)
            opened = self._opened(sender, offer, 0 if to_or_from_host else 2 * masking.SHARE_BYTES)
            shares, half = opened[KEY : -masking.HALF_BYTES], opened[-masking.HALF_BYTES :]
            own = masking.half(self._mask_seed, self.numbers[sender])
            agreed = self._agreed(sender, offer.public)
            self._secrets[sender] = masking.pair_secret(agreed, own, half)
            self._publics[sender] = offer.public
            if sender != self.host:
                self._taken[sender] = entry(offer.public + offer.seed, offer.deals.get(self.me))
            if not to_or_from_host:
                cut = masking.SHARE_BYTES
                self._take(sender, offer, (shares[:cut], shares[cut:], half))
                self.links[sender] = masking.link(own, half)

    def _opened(self, sender: str, offer: Offer, shares: int) -> bytes:
        """Open what a member sealed for this party: its key, so many bytes of shares, its half."""
        if sender not in self.channels or self.me not in offer.shares:
            what = "keys arrived from a party that is not on the roster"
            raise CryptoError(what, field="sender")
        about = self._about(sender, self.me, offer)
        try:
            opened = self.channels[sender].open(offer.shares[self.me], about)
        except CryptoError as error:
            raise PeerKeysError(error.what, fix=error.fix, **error.where) from error
        if len(opened) != PAYLOAD + shares or opened[:KEY] != offer.public:
            what = "this party's keys were swapped in transit"
            raise PeerKeysError(what, fix=DISTRUST, party=sender, field="key")
        return opened

    def _agreed(self, sender: str, public: bytes) -> bytes:
        try:
            return masking.agree(self._mask_key, public)
        except CryptoError as error:  # the sender sealed this key itself
            raise PeerKeysError(error.what, fix=error.fix, party=sender, **error.where) from error

    @property
    def taken_digest(self) -> bytes:
        """The digest of all keys and shares that this party took."""
        return digest_taken(self._taken, self.run, self.index, self.me)

    def peers(self, owners: Collection[str]) -> set[str]:
        """Return the owners that share masks with this party."""
        return set(owners).intersection(self._secrets) - {self.host}

    def mask(
        self,
        owners: Collection[str],
        stream: StreamId,
        length: int,
        modulus: int,
        *,
        for_host: bool,
        salts: Mapping[str, bytes] | None = None,
        own: bool = True,
    ) -> Slots:
        """Return this party's masks: pair masks, self mask and, for a host sum, the host's mask.

        Masks with a peer cancel only if both use the same salt. `own=False` omits the self mask.
        """
        salts = salts or {}
        secrets = {
            self.numbers[p]: self._secrets[p] + salts.get(p, b"") for p in self.peers(owners)
        }
        plus, minus = masking.pair_keys(self.numbers[self.me], secrets, stream)
        if own:
            plus.append(masking.stream_key(self._self_seed, stream, "self"))
        if for_host:
            plus.append(self._host_key(self.host or "", stream))
        return masking.combine(plus, minus, length, modulus)

    def add_self_mask(self, slots: Slots, stream: StreamId, modulus: int) -> None:
        """Add this party's self mask to the slots, in place."""
        masking.add(slots, masking.stream_key(self._self_seed, stream, "self"), modulus)

    def left(self, lost: Mapping[str, Lost]) -> RemainingMasks:
        """Return the masks shared with dropped parties, after checking the seeds sent for them.

        Members judge a complaint by the same rule (`crypto.blame.inquiry`).
        """
        publics = {**self._publics, self.me: self._public}
        left = remaining(self.numbers, publics, lost)
        alive = self._lists[0] if self._lists else ()
        if not left.complete(self.dropped, alive):
            what = "the coordinator did not send the seeds of dropped parties' masks, or others"
            raise self._refused(what, "lost")
        return left

    def host_masks(
        self, owners: Sequence[str], stream: StreamId, length: int, modulus: int
    ) -> Slots:
        """Return the sum of the masks that the owners added for the host (at the host)."""
        return masking.combine([self._host_key(p, stream) for p in owners], [], length, modulus)

    def settle(self, survivors: Sequence[str], dropped: Sequence[str]) -> bytes:
        """Check the survivor lists and store them, once; returns the digest to sign."""
        alive, gone = frozenset(survivors) - {self.host}, frozenset(dropped) - {self.host}
        if self._lists is not None:
            raise self._refused("the coordinator asked twice to unmask one sum", "again")
        if (
            alive & gone
            or alive | gone != self._members
            or len(survivors) + len(dropped) > len(set(survivors) | set(dropped))
        ):
            raise self._refused(
                "the coordinator's lists of survivors and dropped parties overlap or miss somebody",
                "lists",
                fix="stop the run: with such lists it could unmask one party",
            )
        if self.me in gone:
            raise self._refused("the coordinator says that this party is gone", "gone")
        if len(alive) < self.threshold:
            raise CohortError(
                "the coordinator wants a sum over fewer parties than the threshold",
                party=self.me,
                field="threshold",
            )
        self._lists, self.dropped = (alive, gone), gone
        lists = ("\n".join(sorted(names)).encode() for names in self._lists)
        step = f"{self.run} {self.index}".encode()
        self._statement = digest_of(b"secure-fl survivors", step, *lists)
        return self._statement

    def reveal(
        self, signatures: Mapping[str, bytes], signers: Mapping[str, PublicIdentity]
    ) -> UnmaskShares:
        """Return the shares that unmask the sum, once, if enough parties signed the same lists."""
        if self._lists is None or self.revealed:
            raise self._refused("the coordinator asked twice to unmask one sum", "again")
        alive, gone = self._lists
        if gone:
            self._check_signatures(alive, signatures, signers)
        self.revealed = True
        if self.me == self.host:
            return UnmaskShares({}, {}, sum=self.index)
        return UnmaskShares(
            {p: self._held[p][1] for p in sorted(alive) if p in self._held},
            {p: self._held[p][0] for p in sorted(gone) if p in self._held},
            sum=self.index,
        )

    def _check_signatures(
        self,
        alive: frozenset[str],
        signatures: Mapping[str, bytes],
        signers: Mapping[str, PublicIdentity],
    ) -> None:
        agreed = alive & set(signatures)
        for party in agreed:
            try:
                signers[party].verify(self._statement, signatures[party])
            except CryptoError as error:  # most members decide if it was the signer
                what = "this member signs other lists of survivors, or was sent others"
                raise PeerKeysError(what, party=party, field="signature") from error
        if len(agreed) < self.threshold:
            raise self._refused(
                f"only {len(agreed)} parties confirm who dropped out of a sum; the threshold is "
                f"{self.threshold}",
                "confirmations",
                fix="if the coordinator sent them other lists, do not trust it",
            )

    def _refused(self, what: str, field: str, *, fix: str = DISTRUST) -> CohortError:
        return CohortError(what, fix=fix, field=field, party=self.me)

    def _take(self, sender: str, offer: Offer, held: _Dealt) -> None:
        """Store dealt shares, if they fit their digests: so no holder is blamed falsely."""
        if offer.deals.get(self.me) != self._deal(sender, self.me, held):
            raise PeerKeysError(
                "this party dealt shares that differ from its signed digests",
                fix=DISTRUST,
                party=sender,
                field="share",
            )
        self._held[sender] = held

    def _about(self, sender: str, receiver: str, offer: Offer) -> bytes:
        """Return the context under which keys are sealed; the coordinator cannot change it."""
        about = f"step keys {self.run} {self.index} {sender} {receiver}".encode()
        clear = offer.public, offer.seed, offer.deals.get(receiver), offer.statement
        return digest_of(about, msgspec.msgpack.encode(clear))

    def _deal(self, owner: str, holder: str, held: _Dealt) -> Deal:
        """Return the digests of dealt shares and of a half."""
        about = self.run, self.index, owner, holder
        return Deal(*(commit(dealt, *about, kind) for dealt, kind in zip(held, DEALT, strict=True)))

    @cached_property
    def _public(self) -> bytes:
        """The public mask key of this party."""
        return self._mask_key.public_key().public_bytes_raw()

    def _host_key(self, peer: str, stream: StreamId) -> bytes:
        if peer not in self._secrets:
            raise CryptoError("a host sum needs keys of the host and of every party", party=peer)
        return masking.stream_key(self._secrets[peer], stream, "host")


def remaining(
    numbers: Mapping[str, int], publics: Mapping[str, bytes], lost: Mapping[str, Lost]
) -> RemainingMasks:
    """Return the masks shared with lost parties, as a total describes them; nothing is checked."""
    seeds = {party: of.seed for party, of in lost.items()}
    return RemainingMasks(numbers, publics, {}, seeds, {p: of.links for p, of in lost.items()})
