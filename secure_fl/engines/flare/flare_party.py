"""NVIDIA FLARE as engine, a hospital's end: it dials out to the coordinator, and to nobody else."""

from __future__ import annotations

from collections.abc import Callable

from secure_fl.engines.flare.cell import HUB, CellEnd, CellOutgoing, cell_name
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.engines.responder import Deliver, Responder
from secure_fl.engines.transport_message import TransportMessage
from secure_fl.errors import SecureFLError

MAX_BYTES = 2**30


class Dialled:
    """A line to the coordinator over mutual TLS."""

    def __init__(
        self, name: str, url: str, tls: TlsFiles, hub: str, max_bytes: int, deliver: Deliver
    ) -> None:
        """`hub` is the name in the coordinator's certificate; over gRPC its host name decides."""

        def delivered(cell: str, parcel: TransportMessage) -> None:
            deliver(parcel)

        self._end = CellEnd(cell_name(name), url, tls, {HUB: hub}, max_bytes, delivered)

    def send(self, parcel: TransportMessage) -> CellOutgoing:
        """Start to send; nothing says whether it arrived."""
        return self._end.send(HUB, parcel)

    def connection(self) -> str | None:
        """Which connection there is now; a new one has a new name."""
        return self._end.connection(HUB)

    def close(self) -> None:
        """Leave."""
        self._end.close()


class FlareParty(Responder):
    """Answers the coordinator's frames, over its own connection."""

    def __init__(
        self,
        name: str,
        url: str,
        tls: TlsFiles,
        *,
        hub: str = "coordinator",
        max_bytes: int = MAX_BYTES,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`refusing` hears why a frame was not answered: only here it is said."""
        super().__init__(
            lambda deliver: Dialled(name, url, tls, hub, max_bytes, deliver), refusing=refusing
        )
