"""Frames of an inquiry that a coordinator and a colluding member sign after the sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from secure_fl.crypto.blame.evidence import digest_inputs
from secure_fl.crypto.keys.identity import Identity
from secure_fl.federation.assembly import COORDINATOR
from secure_fl.protocol import frames as wire
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Complaint, Examine, Total, Unmask


class SumTold(NamedTuple):
    """A sum of a run, as the coordinator tells it to one reader of an inquiry."""

    run: bytes
    number: int
    coordinator: Identity
    reader: str
    heads: Mapping[str, bytes]  # of the uploads that the coordinator commits to

    def complaint(self, me: Identity, taken: Mapping[str, bytes]) -> tuple[bytes, Frame]:
        """Return lists, and a member's complaint about a total that the coordinator made up."""
        names, part = tuple(sorted(self.heads)), b"forged it"
        inputs = {name: wire.digest(head) for name, head in self.heads.items()}
        lists = Unmask(names, (), None, self.number, digest_inputs(inputs))
        total = Total(names, names, (len(part),), sum=self.number)
        sent = signed(self.run, self.coordinator, me.name, total, part).head
        filed = signed(self.run, me, COORDINATOR, Complaint(sent, 0), part).head
        shown = Examine(
            me.name,
            filed,
            input=self.heads[me.name],
            sum=self.number,
            inputs=inputs,
            taken=dict(taken),
        )
        return self._frame(lists).head, self._frame(shown, part)

    def upload(self, name: str, seed: bytes, bulk: bytes) -> Frame:
        """Show a member's upload."""
        return self._frame(Examine(name, self.heads[name], seed, sum=self.number), bulk)

    def _frame(self, message: Unmask | Examine, bulk: bytes = b"") -> Frame:
        return signed(self.run, self.coordinator, self.reader, message, bulk)


def signed(run: bytes, me: Identity, receiver: str, message: object, bulk: bytes = b"") -> Frame:
    """Sign a frame of one end of a link."""
    digest = wire.digest(bulk)
    envelope = wire.Envelope(run, 9, 1, me.name, receiver, len(bulk), digest, message)  # type: ignore[arg-type]
    return wire.encode(envelope, bulk, me.sign)
