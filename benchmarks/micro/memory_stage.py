"""A real coordinator among puppets: parties with keys and an upload, but no model.

An upload is made beforehand and copied when it is asked for, as if it had just arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.federation.assembly import connect
from secure_fl.federation.keys import make_keys, privacy_layer
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Bulk, Frame, Link
from secure_fl.protocol.messages import Segment
from secure_fl.protocol.ports import Rule, SumInProgress, SumLayer
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold


@dataclass(slots=True)
class Puppet:
    """A party without a model: it answers with its keys and an upload made beforehand."""

    link: Link
    sums: SumLayer
    segment: Segment
    data: bytes
    received: int = 0
    under_way: SumInProgress | None = None

    def step(self, frame: Frame) -> Frame:
        """Answer one frame."""
        message, bulk = self.link.unpack(frame), b""
        answer: messages.FromParty = messages.Done()
        match message:
            case messages.Start():
                answer = messages.Ready((), self.sums.next_keys(message.members))
            case messages.Begin():
                self.sums.accept(message.offers, message.members)
                self.under_way = self.sums.begin((), Rule(), (0, 1))
                answer, bulk = (
                    messages.SumInput(messages.Audience.PARTIES, (self.segment,)),
                    bytes(bytearray(self.data)),
                )
            case messages.Unmask() if self.under_way is not None:
                self.under_way.settle(message)
                shares = self.under_way.shares(None)
                keys = self.sums.next_keys(message.survivors)
                answer = structs.replace(shares, offer=keys)
            case messages.Total():
                self.received = sum(message.sizes)
        return self.link.pack(answer, Bulk.of(bulk))


@dataclass(frozen=True, slots=True)
class Stage:
    """An engine whose parties are puppets."""

    puppets: Mapping[str, Puppet]

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """One answer after the other."""
        for party, frame in frames.items():
            yield party, self.puppets[party].step(frame)


def stage(
    mode: Protection, bits: Literal[8], parties: int, data: bytes, slots: int
) -> Callable[[], int]:
    """Set up a run of one sum; calling what comes back plays it and gives the sum's size."""
    protection = ProtectionSettings(mode=mode, bits=bits, min_cohort=2)
    names = [f"p{number:04d}" for number in range(parties)]
    rules = CoordinatorRules(None, 2, default_threshold(parties))
    keys = make_keys(mode, names, None)
    wires = connect(keys)
    segment = Segment(bytes(32), len(data), slots)
    puppets = {
        name: Puppet(
            wires.parties[name],
            privacy_layer(protection, keys[name], rules, run=wires.run, seed=0).sums,
            segment,
            data,
        )
        for name in names
    }
    coordinator = lead_run(wires.coordinator, Stage(puppets), rules, protection)

    def play() -> int:
        coordinator.run()
        return puppets[names[0]].received

    return play
