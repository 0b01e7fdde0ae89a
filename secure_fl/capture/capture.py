"""The interface for recording a run for audits, and the default that records nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from secure_fl.coordinator.machine import Engine
from secure_fl.protocol.ports import PrivacyLayer

if TYPE_CHECKING:
    from secure_fl.crypto.sealing.envelopes import PartyKeys


class Capture(Protocol):
    """A recorder that wraps the engine and each party's sums, and changes nothing."""

    def begin(self, mode: str, host: str | None, members: tuple[str, ...], run: bytes) -> None:
        """Note that a run begins, or begins again after a crash, with new keys."""

    def engine(self, engine: Engine) -> Engine:
        """Record the coordinator's wires."""

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Record one party's sums and envelopes."""

    def close(self) -> None:
        """Finish the recording: the run has ended or failed."""


class NoCapture:
    """A recorder that records nothing."""

    def begin(self, mode: str, host: str | None, members: tuple[str, ...], run: bytes) -> None:
        """Note nothing."""

    def engine(self, engine: Engine) -> Engine:
        """Return the engine unchanged."""
        return engine

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Return the layer unchanged."""
        return layer

    def close(self) -> None:
        """Close nothing."""
