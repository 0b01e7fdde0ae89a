"""A recorded run, opened at both ends (sections 4 to 8)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vectors.reader import bfv
from vectors.reader.base import (
    Refused,
    commit,
    derive,
    keyed,
    labelled,
    packed,
    require,
    sha,
    sizes_cut,
)
from vectors.reader.frames import Frame, Link
from vectors.reader.keys import Card, Identity, Receiver
from vectors.reader.numbers import (
    Slots,
    T,
    added,
    bonds,
    common,
    decode,
    from_wire,
    half,
    linked,
    mask_key,
    mask_secret,
    minus,
    note,
    public,
    recover,
    segment_key,
    stream,
    tag,
)

Message = Mapping[str, Any]


def listed(salts: list[Message]) -> dict[str, bytes]:
    """The salts of a segment by peer."""
    return {peer: salt["digest"] for salt in salts for peer in salt["peers"]}


class Sum:
    """One sum: the keys that were offered for it, and what arrived since."""

    def __init__(self, run: Recording, number: int) -> None:
        self.run, self.number = run, number
        self.offers: dict[str, Message] = {}
        self.uploads: dict[str, Frame] = {}
        self.parts: dict[tuple[str, bytes], Slots] = {}  # by party and segment
        self.layouts: dict[bytes, tuple[int, list[str]]] = {}
        self.lists: Message = {}
        self.statement = b""
        self.shares: dict[str, Message] = {}

    @property
    def parties(self) -> list[str]:
        """All parties that mask."""
        return sorted(name for name in self.offers if name != self.run.host)

    def about(self, *more: str) -> tuple[object, ...]:
        """The run and the number, and more."""
        return self.run.id.hex(), self.number, *more

    # --- keys (4.7) -------------------------------------------------------------------------------

    def check_offers(self, me: str, offers: Mapping[str, Message], members: list[str]) -> None:
        """Check the keys of all others, as one member does."""
        run, masking = self.run, [name for name in members if name != self.run.host]
        require(set(offers) == set(members) - {me} and me in members, "cohort:offers")
        require(len(masking) >= run.threshold, "cohort:offers")
        for sender, offer in offers.items():
            require(me in offer["shares"], "crypto:sender")
            deal, about = offer["deals"].get(me), self.about(sender, me)
            stated = offer["statement"]
            clear = [offer["public"], offer["seed"], list(deal.values()) if deal else None,
                     list(stated.values()) if stated else None]  # fmt: skip
            context = labelled(" ".join(map(str, ("step keys", *about))).encode(), packed(clear))
            made = Receiver(run.keys[me], run.cards[sender], b"secure-fl run " + run.id)
            channel = run.channels.setdefault((sender, me), made)
            try:
                plain = channel.open(offer["shares"][me], context)
            except Refused as refused:
                raise Refused(refused.code.replace("crypto:", "keys:")) from None
            size = 64 if run.host in (sender, me) else 64 + 34
            require(len(plain) == size and plain[:32] == offer["public"], "keys:key")
            if size > 64:
                parts = zip(
                    ("key", "self", "half"), (plain[32:49], plain[49:66], plain[66:]), strict=True
                )
                key, own, half_ = (commit(part, *about, kind) for kind, part in parts)
                dealt = {"key": key, "own": own, "half": half_}
                require(dealt == deal, "keys:share")

    def seed(self, owner: str, place: int) -> bytes:
        """A recorded seed: of the mask key, or of the self mask."""
        return bytes.fromhex(self.run.case["secrets"][str(self.number)][owner][place])

    # --- uploads (4.8) ----------------------------------------------------------------------------

    def taken(self, me: str) -> bytes:
        """The digest of all keys and shares that a member took."""
        held = {}
        for party, offer in self.offers.items():
            if party != self.run.host:
                deal = offer["deals"].get(me, {})
                held[party] = offer["public"] + offer["seed"] + b"".join(deal.values())
        return commit(packed(sorted(held.items())), *self.about(me, "taken"))

    def upload(self, me: str, frame: Frame) -> None:
        """Check an upload, as the coordinator does."""
        sent, offer = frame.message, self.offers[me]
        require(sent["sum"] == self.number, "wire:sum")
        bound = offer["public"] + offer["seed"]
        require((sent["bound"], sent["taken"]) == (bound, self.taken(me)), "wire:keys")
        for segment in sent["segments"]:
            peers = [peer for salt in segment["salts"] for peer in salt["peers"]]
            sharing = set(segment["owners"] or self.parties) & set(self.parties) - {me}
            require(len(set(peers)) == len(peers) and sharing >= set(peers), "wire:salts")
        masked = set(self.parties) - {me} if me != self.run.host else set()
        require(set(sent["links"]) == masked, "wire:links")
        sizes = [segment["size"] for segment in sent["segments"]]
        require(sum(sizes) == len(frame.bulk), "wire:size")
        keys = [segment["key"] for segment in sent["segments"]]
        require(len(set(keys)) == len(keys), "wire:segments")
        several = sum(map(bool, sizes)) > 1
        for segment, part in zip(sent["segments"], sizes_cut(frame.bulk, sizes), strict=True):
            key, layout = segment["key"], (segment["slots"], segment["owners"])
            require(self.layouts.setdefault(key, layout) == layout, "disagreement:layout")
            owners = segment["owners"] or self.run.parties
            require(bool(part) == (me in owners), "disagreement:owners")
            if part:
                if self.run.cohort is not None and sent["audience"] == "parties":
                    kinds = {one[:1] for one in bfv.cut(part, segment["slots"])}
                    require(kinds == {bytes([bfv.SEEDED])}, "wire:form")
                require(not several or sha(part) == segment["digest"], "wire:digest")
                self.parts[me, key] = self.slots(part, segment["slots"], 1, sent["audience"])
        self.uploads[me] = frame

    def slots(self, data: bytes, count: int, contributors: int, audience: str) -> Slots:
        """The integers of an upload or a total, encrypted or not."""
        if self.run.cohort is None or audience == "host":
            return from_wire(data, count)
        return bfv.opened(self.run.cohort, bfv.cut(data, count), count, contributors)

    # --- survivors and shares (4.9, 4.10) ---------------------------------------------------------

    def settle(self, me: str, lists: Message) -> None:
        """Check the lists, as a party does before it reveals shares."""
        alive, gone = (set(lists[name]) - {self.run.host} for name in ("survivors", "dropped"))
        require(lists["sum"] == self.number, "cohort:sum")
        twice = len(lists["survivors"]) + len(lists["dropped"])
        everybody = alive | gone == set(self.parties) and not alive & gone
        require(
            everybody and twice == len({*lists["survivors"], *lists["dropped"]}), "cohort:lists"
        )
        require(me not in gone, "cohort:gone")
        require(len(alive) >= self.run.threshold, "cohort:threshold")
        names = ("\n".join(sorted(some)).encode() for some in (alive, gone))
        about = " ".join(map(str, self.about())).encode()
        self.lists, self.statement = lists, labelled(b"secure-fl survivors", about, *names)

    def confirm(self, signatures: Mapping[str, bytes]) -> None:
        """A threshold of survivors must have signed the same lists."""
        agreed = (set(self.lists["survivors"]) - {self.run.host}).intersection(signatures)
        for party in sorted(agreed):
            try:
                self.run.cards[party].verify(self.statement, signatures[party])
            except Refused as refused:
                raise Refused(refused.code.replace("crypto:", "keys:")) from None
        require(len(agreed) >= self.run.threshold, "cohort:confirmations")

    def reveal(self, me: str, shares: Message) -> None:
        """Check shares, as the coordinator does."""
        if me == self.run.host or not (shares["seeds"] or shares["keys"]):
            return
        alive = set(self.lists["survivors"]) - {self.run.host}
        found = shares["sum"], set(shares["keys"]), set(shares["seeds"])
        require(found == (self.number, set(self.parties) - alive, alive), "wire:shares")
        for kind, field, of in (("key", "key", shares["keys"]), ("self", "own", shares["seeds"])):
            for owner, share in of.items():
                deal = self.offers[owner]["deals"].get(me)
                require(deal is not None, "wire:deal")
                known = deal and commit(share, *self.about(owner, me, kind)) == deal[field]
                require(known, "misconduct:share")
        self.shares[me] = shares

    def check_seeds(self) -> None:
        """The seeds that the revealed shares give are those that their owners committed to."""
        for owner in self.parties:
            alive = owner in self.lists["survivors"]
            field = "seeds" if alive else "keys"
            held = {self.run.numbers[p]: of[field][owner] for p, of in self.shares.items()}
            seed, offer = recover(held, self.run.threshold), self.offers[owner]
            if alive:
                require(commit(seed, *self.about(owner)) == offer["seed"], "keys-refused:keys")
                continue
            require(public(seed) == offer["public"], "keys-refused:keys")
            for peer, deal in offer["deals"].items():
                own = half(seed, self.run.numbers[peer])
                dealt = commit(own, *self.about(owner, peer, "half")) == deal["half"]
                require(dealt, "keys-refused:keys")
                if peer in self.uploads and peer in self.lists["survivors"]:
                    other = linked(own, self.uploads[peer].message["links"][owner])
                    known = self.offers[peer]["deals"][owner]["half"]
                    signed = commit(other, *self.about(peer, owner, "half")) == known
                    require(signed, "keys-refused:keys")

    # --- the total (4.11) -------------------------------------------------------------------------

    def total(self, me: str, frame: Frame) -> dict[str, list[float]]:
        """Open a total as one of its readers; the values that are in its segments."""
        sent, own = frame.message, self.uploads[me].message
        self.check_seeds()
        heads = {party: self.uploads[party].digest for party in self.lists["survivors"]}
        inputs = commit(packed(sorted(heads.items())), "inputs")
        require(self.lists["inputs"] == inputs, "wire:inputs")
        self._check_lost(sent["lost"])
        opened: dict[str, list[float]] = {}
        parts = sizes_cut(frame.bulk, sent["sizes"])
        require(len(parts) == len(own["segments"]), "tamper:wrong-sum")
        layouts = self.run.layouts(self.number)
        for place, (segment, part) in enumerate(zip(own["segments"], parts, strict=True)):
            owners = segment["owners"] or self.run.parties
            here = [party for party in owners if party in sent["survivors"]]
            salts: dict[str, dict[str, bytes]] = {party: {} for party in here}
            for peer, of in sent["lost"].items():
                for party, salt in (of["salts"][place] if place < len(of["salts"]) else {}).items():
                    if party in salts:
                        salts[party][peer] = salt
            slots = self.slots(part, segment["slots"], len(here), own["audience"])
            at = self.run.id.hex(), segment["key"].hex(), self.number
            self._check_tag(slots, here, owners, sent["lost"], salts, at)
            clear = slots[:-1]
            if own["audience"] == "host":
                masks = (self._pair(p, me, at, "host", clear.size) for p in here)
                clear = added(clear, *map(minus, masks))
            self._check_inputs(segment, here, clear, own["audience"])
            if self.run.cohort is None and own["audience"] == "parties":
                pad = minus(stream(self.run.pad_key, *at, "pad", clear.size))
                clear = added(clear, *[pad] * len(here))
            if own["audience"] == "parties":
                self._note_opened(place, segment, sent["survivors"], clear)
            opened |= decode(layouts[place], clear, len(here))
        return opened

    def _check_lost(self, lost: Mapping[str, Message]) -> None:
        """Exactly the dropouts are there, with their seeds and links."""
        alive = set(self.lists["survivors"])
        require(lost.keys() == set(self.parties) - alive, "cohort:lost")
        for party, of in lost.items():
            fits = len(of["seed"]) == 16 and public(of["seed"]) == self.offers[party]["public"]
            require(fits and set(of["links"]) == alive - {self.run.host}, "cohort:lost")

    def _note_opened(self, place: int, segment: Message, alive: list[str], clear: Slots) -> None:
        run, fields = self.run, self.run.layouts(self.number)[place]["fields"]
        readers = run.table["readers"].get(fields[0][0].removeprefix("|"), []) if run.table else []
        readers = {*(segment["owners"] or run.parties), *readers}
        everybody = set(alive) - {run.host} <= readers
        audience = "\nparties" if everybody else "\n".join(sorted(readers))
        note(run.history, audience, "\n".join(alive).encode(), clear.astype("<u8").tobytes())

    def _check_tag(
        self,
        slots: Slots,
        here: list[str],
        owners: list[str],
        lost: Mapping[str, Message],
        salts: Mapping[str, Mapping[str, bytes]],
        at: tuple[str, str, int],
    ) -> None:
        numbers, key = self.run.numbers, self.run.tag_key
        clear, sent = slots[:-1], int(slots[-1])
        for party, by_peer in salts.items():
            sent -= bonds(key, numbers[party], {numbers[p]: s for p, s in by_peer.items()}, at)
            for peer, of in lost.items():
                if peer in owners:
                    own = half(of["seed"], numbers[party])
                    theirs = self.offers[party]["public"], own, linked(own, of["links"][party])
                    secret = mask_secret(mask_key(of["seed"]), *theirs)
                    mask = stream(secret + by_peer.get(peer, b""), *at, "pair", clear.size)
                    clear = added(clear, mask if numbers[party] < numbers[peer] else minus(mask))
        expected = tag(key, clear, [numbers[party] for party in here], at)
        require(sent % T == expected, "tamper:wrong-sum")

    def _pair(self, party: str, peer: str, at: tuple[str, str, int], purpose: str, size: int,
              salt: bytes = b"") -> Slots:  # fmt: skip
        one, other, numbers = self.seed(party, 0), self.seed(peer, 0), self.run.numbers
        halves = half(one, numbers[peer]), half(other, numbers[party])
        secret = mask_secret(mask_key(one), self.offers[peer]["public"], *halves)
        return stream(secret + salt, *at, purpose, size)

    def _check_inputs(self, segment: Message, here: list[str], total: Slots, audience: str) -> None:
        """Open every upload with the keys of all members: their inputs add up to the total."""
        inputs, numbers = [], self.run.numbers
        at, count = (self.run.id.hex(), segment["key"].hex(), self.number), segment["slots"]
        for party in here:
            slots = self.parts[party, segment["key"]]
            slots = added(slots, minus(stream(self.seed(party, 1), *at, "self", count)))
            sent = next(
                s for s in self.uploads[party].message["segments"] if s["key"] == segment["key"]
            )
            salts = listed(sent["salts"])
            by_number = {numbers[peer]: salt for peer, salt in salts.items()}
            own = tag(self.run.tag_key, slots[:-1], [numbers[party]], at)
            own += bonds(self.run.tag_key, numbers[party], by_number, at)
            require(own % T == int(slots[-1]), "misconduct:tag")
            clear = slots[:-1]
            for peer in set(segment["owners"] or self.run.parties) & set(self.parties) - {party}:
                mask = self._pair(party, peer, at, "pair", count - 1, salts.get(peer, b""))
                clear = added(clear, minus(mask) if numbers[party] < numbers[peer] else mask)
            if audience == "host":
                mask = self._pair(party, self.run.host, at, "host", count - 1)
                clear = added(clear, minus(mask))
            inputs.append(clear)
        require(bool(np.array_equal(added(*inputs), total)), "tamper:inputs")


class Recording:
    """A run's frames in order, and the keys of all members."""

    def __init__(self, case: Mapping[str, Any], cohort: Any) -> None:
        self.case, self.id = case, bytes.fromhex(case["run"])
        self.host, self.threshold = case["host"], case["threshold"]
        self.keys = {name: Identity(bytes.fromhex(of)) for name, of in case["identities"].items()}
        self.cards = {name: key.card for name, key in self.keys.items()}
        self.channels: dict[tuple[str, str], Receiver] = {}  # by sender and receiver
        self.numbers = {name: number for number, name in enumerate(sorted(self.keys), 1)}
        self.parties = [name for name in sorted(self.keys) if name != self.host]
        self.coordinator = Card.read(bytes.fromhex(case["coordinator"]))
        self.tag_key = bytes.fromhex(case["tag_key"])
        channel_key = bytes.fromhex(case["channel_key"])
        self.pad_key = derive(channel_key, b"secure-fl pad")
        self.digest_key = derive(channel_key, b"secure-fl agree", self.id)
        self.history: dict[str, bytes] = {}  # of the reader
        self.here: list[str] = []  # members, by the last list that the reader got
        self.table: Message = {}  # of contributors
        self.cohort = cohort if case["mode"] == "he+secagg" else None
        self.sums: dict[int, Sum] = {}
        self.current = dict.fromkeys(self.keys, 0)  # the number of each member's last sum
        self.logs = dict.fromkeys(self.keys, (0, bytes(32)))

    def layouts(self, number: int) -> list[Message]:
        """The layouts of a sum's segments."""
        return list(self.case["sums"][str(number)]["layouts"])

    def sum(self, number: int) -> Sum:
        """The sum of this number."""
        return self.sums.setdefault(number, Sum(self, number))

    def play(self) -> Iterator[tuple[int, dict[str, list[float]]]]:
        """Check all frames in their order; yields number and values of what the reader opens."""
        ends = {
            name: (Link(self.id, name, self.coordinator, False),
                   Link(self.id, self.coordinator.name, card, True))
            for name, card in self.cards.items()
        }  # fmt: skip
        for name, direction, data in self.case["frames"]:
            party, hub = ends[name]
            if direction == "out":
                self._arrived(name, hub.accept(b64decode(data)))
                continue
            frame = party.accept(b64decode(data))
            hub.exchange, hub.round = frame.exchange, frame.round
            yield from self._delivered(name, frame)

    def _arrived(self, name: str, frame: Frame) -> None:
        """The coordinator's half."""
        sent = frame.message
        match sent["kind"]:
            case "Ready":
                self.sum(1).offers[name] = sent["offer"]
            case "SumInput":
                self.current[name] += 1
                self.sum(self.current[name]).upload(name, frame)
                if name == self.case["reader"]:
                    self._check_keys(sent)
            case "UnmaskShares":
                number = self.current[name]
                self.sum(number).reveal(name, sent)
                if sent["offer"]:
                    self.sum(number + 1).offers[name] = sent["offer"]

    def _check_keys(self, sent: Message) -> None:
        """The keys of the reader's segments follow from its history (5.7)."""
        of = self.case["sums"].get(str(sent["sum"]))
        for segment, layout in zip(sent["segments"], of["layouts"] if of else (), strict=False):
            names = [name.removeprefix("|") for name, *_ in layout["fields"]]
            parties = [name for name in self.here if name != self.host]
            owners = self.table["owners"][names[0]] if self.table else parties
            readers = self.table["readers"].get(names[0], []) if self.table else []
            seen = common(self.history, (*owners, *readers), sent["audience"])
            vectors = [field[:2] for field in layout["fields"]]
            about = {"vectors": vectors, "owners": owners, "readers": readers, "at": sent["at"]}
            case = {**of["rule"], **about, "audience": sent["audience"]}
            key = segment_key(case, keyed(self.digest_key, seen, b"seen"))
            require(key == segment["key"], "disagreement:history")

    def _members(self, names: list[str]) -> None:
        self.here = names
        note(self.history, "\nall", b"members", "\n".join(names).encode())

    def _noted(self, sent: Message) -> None:
        """Entries of the reader's history, before an opened sum."""
        match sent["kind"]:
            case "Start" | "Begin":
                self._members(sent["members"])
            case "Unmask":
                self._members(sent["survivors"])
            case "Total":
                self._members(sent["members"])
            case "Owners":
                self.table = sent
                form = packed([22, sent["owners"], sent["readers"], sent["unscaled"]])
                note(self.history, "\nall", b"owners", form)

    def _delivered(self, name: str, frame: Frame) -> Iterator[tuple[int, dict[str, list[float]]]]:
        """A member's half."""
        sent, now = frame.message, self.sum(self.current[name] or 1)
        if name == self.case["reader"]:
            self._noted(sent)
        match sent["kind"]:
            case "Begin":
                now.check_offers(name, sent["offers"], sent["members"])
            case "Unmask":
                self._survivors(name, sent)
                now.settle(name, sent)
            case "Confirmed":
                now.confirm(sent["signatures"])
            case "Total":
                if frame.bulk and name == self.case["reader"]:
                    yield now.number, now.total(name, frame)
                if name == self.case["reader"] and not sent["more"]:
                    self.table = {}
                if sent["offers"]:
                    self.sum(now.number + 1).check_offers(name, sent["offers"], sent["members"])

    def _survivors(self, name: str, lists: Message) -> None:
        """The signed chain of all survivor lists of a run (4.9)."""
        number, digest = self.logs[name]
        chained = [digest, sorted(lists["survivors"]), sorted(lists["dropped"])]
        number, digest = self.logs[name] = number + 1, sha(packed(chained))
        found = lists["statement"]
        stated = found and (found["run"], found["number"], found["digest"])
        require(stated == (self.id, number, digest), "cohort:statement")
        signed = sha(b"secure-fl told\0" + packed([self.id, number, digest]))
        self.coordinator.verify(signed, found["signature"])
