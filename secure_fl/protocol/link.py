"""One end of the wire between a party and the coordinator: what is sent, and what is accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from secure_fl.errors import WireError
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Bulk, Envelope, Frame
from secure_fl.protocol.messages import FromCoordinator, FromParty

if TYPE_CHECKING:
    from secure_fl.crypto.identity import Identity, PublicIdentity

FROM_PARTY = get_args(FromParty)


class Received(NamedTuple):
    """A frame whose signature, form and bulk were checked; what it may do, a `Link` decides."""

    frame: Frame
    envelope: Envelope

    @classmethod
    def of(cls, frame: Frame, sender: PublicIdentity) -> Received:
        """Verify and decode, once for all who look at it."""
        return cls(frame, frames.decode(frame, sender.verify))


@dataclass(slots=True)
class Link:
    """Signs what leaves, and refuses what is forged, replayed, reordered or of another run.

    Exchanges are numbered by the coordinator, one by one; an answer carries the number it answers.
    """

    run: bytes
    me: Identity
    peer: PublicIdentity
    asks: bool  # the coordinator's end asks; the party's end answers
    exchange: int = 0
    round: int = 0
    bytes_out: int = field(default=0, init=False)
    bytes_in: int = field(default=0, init=False)

    def pack(self, message: FromParty | FromCoordinator, bulk: Bulk | None = None) -> Frame:
        """Sign a message to the other end."""
        bulk = bulk or Bulk.of()
        if self.asks:
            self.exchange += 1
        envelope = Envelope(
            self.run,
            self.exchange,
            self.round,
            self.me.name,
            self.peer.name,
            len(bulk.data),
            bulk.digest,
            message,
        )
        frame = frames.encode(envelope, bulk.data, self.me.sign)
        self.bytes_out += frame.size
        return frame

    def unpack(self, frame: Frame) -> Any:
        """Verify a frame from the other end and return its message, of a kind that end may send."""
        return self.accept(Received.of(frame, self.peer))

    def accept(self, received: Received) -> Any:
        """Return the message of a verified frame, if it is the one that is expected now."""
        frame, envelope = received
        self._expect("sender", envelope.sender == self.peer.name)
        self._expect("run", envelope.run == self.run)
        self._expect("receiver", envelope.receiver == self.me.name)
        self._expect("kind", isinstance(envelope.message, FROM_PARTY) == self.asks)
        if self.asks:
            self._expect("exchange", envelope.exchange == self.exchange)
            self._expect("round", envelope.round == self.round)
        else:
            # The coordinator counts: on, over what was lost on the way, but never back.
            self._expect("exchange", envelope.exchange > self.exchange)
            self._expect("round", envelope.round >= self.round)
            self.exchange, self.round = envelope.exchange, envelope.round
        self.bytes_in += frame.size
        return envelope.message

    def _expect(self, field: str, holds: bool) -> None:
        if not holds:
            raise WireError(
                f"a frame from {self.peer.name} does not carry the {field} expected now",
                fix="it was replayed, reordered or meant for another run; nothing was accepted",
                field=field,
                round=self.round,
                step=self.exchange,
            )
