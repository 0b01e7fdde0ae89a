"""A way to one other end: what a party answers over, whatever carries it."""

from __future__ import annotations

from typing import Protocol

from secure_fl.engines.transport_message import TransportMessage


class Sending(Protocol):
    """A parcel on its way out."""

    connection: str | None  # which one it was given to
    began: float
    ended: float

    def done(self) -> bool:
        """Whether all of it is handed over; it has not arrived for that."""

    def cancel(self) -> None:
        """Stop sending."""


class PartyConnection(Protocol):
    """Carries parcels to one other end; each may be lost, doubled or late."""

    def send(self, parcel: TransportMessage) -> Sending:
        """Start to send; nothing says whether it arrived."""

    def connection(self) -> str | None:
        """Which connection there is now; a new one has a new name."""

    def close(self) -> None:
        """Leave."""
