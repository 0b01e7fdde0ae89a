"""The places where an audit can record a run; in other runs nothing is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from secure_fl.coordinator.machine import Engine
from secure_fl.protocol.ports import PrivacyLayer

if TYPE_CHECKING:
    from secure_fl.crypto.sealing.envelopes import PartyKeys


class Capture(Protocol):
    """Wraps what stands at the border; it changes nothing of what passes."""

    def begin(self, mode: str, host: str | None, members: tuple[str, ...], run: bytes) -> None:
        """A run begins, or begins again after a crash, with fresh keys."""

    def engine(self, engine: Engine) -> Engine:
        """Watch the coordinator's wires."""

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Watch one party's sums and envelopes."""

    def close(self) -> None:
        """The run is over, or failed."""


class NoCapture:
    """Watches nothing."""

    def begin(self, mode: str, host: str | None, members: tuple[str, ...], run: bytes) -> None:
        """Nothing is noted."""

    def engine(self, engine: Engine) -> Engine:
        """Return the engine unchanged."""
        return engine

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Return the layer unchanged."""
        return layer

    def close(self) -> None:
        """There is nothing to close."""
