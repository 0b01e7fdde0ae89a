"""A recorded run at the product's own ends: links, the coordinator's sums, and one party's sums."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from secure_fl.crypto.blame.evidence import entry
from secure_fl.crypto.keys.identity import (
    AGREEMENT_BYTES,
    SIGNING_BYTES,
    Identity,
    PublicIdentity,
    commit,
)
from secure_fl.crypto.sealing import masking, secret
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.packing import Codec, Field, Layout
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress, SecureSums, SentSegment
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.transcript import Transcript
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame, Link, Received, SurvivorLog, cut
from secure_fl.protocol.ports import Group, OfferedKeys, Rule
from secure_fl.settings import ProtectionSettings

Opened = dict[str, dict[str, list[float]]]


def public_of(data: bytes) -> PublicIdentity:
    """Read the canonical bytes of a card."""
    start = 1 + SIGNING_BYTES
    cut = start + AGREEMENT_BYTES
    return PublicIdentity(data[cut:].decode(), data[1:start], data[start:cut])


def layout_of(case: Mapping[str, Any]) -> Layout:
    """Make the layout of a segment."""
    codec = Codec(case["bits"], case["parties"], COHORT.modulus, case["extra"])
    return Layout([Field(*field) for field in case["fields"]], codec)


class Replay:
    """The coordinator's half of all sums, and the half of one party that reads them."""

    def __init__(self, case: Mapping[str, Any], cohort: bytes) -> None:
        self.case, self.run, self.reader = case, bytes.fromhex(case["run"]), case["reader"]
        own = {n: Identity.from_private_bytes(bytes.fromhex(of)) for n, of in _sorted(case)}
        cards = {name: of.public for name, of in own.items()}
        self.hub, self.host = public_of(bytes.fromhex(case["coordinator"])), case["host"]
        mode, self.threshold = case["mode"], case["threshold"]
        key = secret.SecretKey.from_bytes(cohort) if mode == "he+secagg" else None
        tag_key, channel_key = (bytes.fromhex(case[name]) for name in ("tag_key", "channel_key"))
        nobody = Identity.generate(self.hub.name)  # the coordinator's own key is not recorded
        self.ends = {
            n: (Link(self.run, of, self.hub, asks=False), Link(self.run, nobody, cards[n], True))
            for n, of in own.items()
        }
        rules: dict[str, Any] = {"host": self.host, "threshold": self.threshold}
        keys = PartyKeys(own[self.reader], cards, key, tag_key, channel_key)
        transcript = Transcript(16, np.random.default_rng())
        self.sums = SecureSums(keys, self.run, transcript, b"", **rules)
        protection = ProtectionSettings(mode=mode)
        self.totals = blind_totals(protection, list(cards), run=self.run, **rules)
        self.offers: dict[int, dict[str, messages.Offer]] = {}
        self.blind: dict[int, Any] = {}
        self.shares: dict[int, dict[str, messages.UnmaskShares]] = {}
        self.current = dict.fromkeys(cards, 0)
        self.log, self.survivors = SurvivorLog(self.run), tuple[str, ...]()
        self.keys: StepKeys | None = None  # of the reader, for the next sum
        self.progress: Any = None
        self.mine: messages.UnmaskShares | None = None
        self.result: Opened = {}

    def play(self) -> Opened:
        """Pass all frames on in their order; returns the values that the reader opens."""
        for name, direction, data in self.case["frames"]:
            frame, (party, hub) = Frame.from_bytes(b64decode(data)), self.ends[name]
            if direction == "out":
                self._arrived(name, hub.unpack(frame), frame.bulk)
                continue
            message = party.accept(Received.of(frame, self.hub))
            hub.exchange, hub.round = party.exchange, party.round
            self.survivors = getattr(message, "survivors", self.survivors)
            if name == self.reader:
                self._delivered(message, frame.bulk)
        return self.result

    # --- the coordinator --------------------------------------------------------------------------

    def _arrived(self, name: str, message: Any, bulk: bytes) -> None:
        match message:
            case messages.SumInput():
                number = self.current[name] + 1
                if number not in self.blind:
                    offered = OfferedKeys(tuple(self.offers[number]), self.offers[number], number)
                    self.blind[number] = self.totals(message.audience, offered)
                self.blind[number].admit(name, message)
                self.blind[number].add(name, message.segments, bulk)
                self.current[name] = number
                if name == self.reader:
                    self._begin(message)
            case messages.UnmaskShares() if name != self.host:
                number = self.current[name]
                self.blind[number].check(name, message, self.survivors)
                self.shares.setdefault(number, {})[name] = message
        if name == self.reader and isinstance(message, messages.UnmaskShares):
            assert structs.replace(message, offer=None) == self.mine  # noqa: S101
        if (offer := getattr(message, "offer", None)) is not None:
            self.offers.setdefault(self.current[name] + 1, {})[name] = offer

    # --- the reader -------------------------------------------------------------------------------

    def _delivered(self, message: Any, bulk: bytes) -> None:
        match message:
            case messages.Begin():
                self._take(1, message)
            case messages.Unmask():
                self.log.verify(self.hub, message)
                if self.progress.settle(message) is None:
                    self.mine = self.progress.shares(None)
            case messages.Confirmed():
                self.mine = self.progress.shares(message)
            case messages.Total():
                if bulk:
                    self._open(message, bulk)
                if message.offers:
                    self._take(message.sum + 1, message)

    def _take(self, number: int, message: messages.Begin | messages.Total) -> None:
        """Restore the reader's keys of a sum, and take the others'."""
        context, drawn = self.sums.context, self.case["secrets"][str(number)][self.reader]
        parties, me = frozenset(self.offers[number]) - {self.host}, self.reader
        keys = StepKeys(me, self.host, context.run, number, parties, context.numbers,
                        self.threshold, self.sums._channels)  # fmt: skip
        keys._mask_seed, keys._self_seed, *held = (bytes.fromhex(one) for one in drawn)
        keys._mask_key = masking.mask_key(keys._mask_seed)
        keys.bound = keys._public + commit(keys._self_seed, context.run, number, me)
        if me != self.host:
            keys._held[me] = held[0], held[1], held[2]
            keys._taken[me] = entry(keys.bound, keys._deal(me, me, keys._held[me]))
        keys.accept(message.offers, message.members)
        self.keys = keys

    def _begin(self, message: messages.SumInput) -> None:
        """Restore the reader's sum as it was when its upload left."""
        layouts = self.case["sums"][str(message.sum)]["layouts"]
        pairs = zip(message.segments, map(layout_of, layouts), strict=True)
        self.progress = SecureSumInProgress.__new__(SecureSumInProgress)
        self.progress._context, self.progress._index = self.sums.context, message.sum
        self.progress._keys, self.progress._rule = self.keys, Rule(message.audience)
        self.progress._sent = [self._segment(message.sum, *pair) for pair in pairs]
        self.progress._opened, self.progress.unscaled = False, []

    def _segment(self, number: int, segment: messages.Segment, layout: Layout) -> SentSegment:
        parties = tuple(name for name in self.sums.context.numbers if name != self.host)
        vectors = {field.name: np.zeros(field.size, np.float32) for field in layout.fields}
        stream = StreamId(self.run.hex(), segment.key.hex(), number)
        return SentSegment(Group(segment.owners or parties, vectors), layout, stream, {})

    def _open(self, message: messages.Total, bulk: bytes) -> None:
        parts, number = cut(bulk, message.sizes), message.sum
        values = self.progress.open(parts, message.survivors, message.lost)
        self.result[str(number)] = {name: of.tolist() for name, of in values.items()}
        made = self.blind[number].result(message.survivors, self.shares[number])
        keys = [segment.stream.segment for segment in self.progress._sent]
        assert [made[bytes.fromhex(key)] for key in keys] == parts  # noqa: S101


def _sorted(case: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    return sorted(case["identities"].items())
