"""A hospital's party without network, whose frames a courier relays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from secure_fl.engines.responder import Deliver, Responder
from secure_fl.errors import SecureFLError
from secure_fl.features.air_gap.file_message import Endpoint
from secure_fl.features.air_gap.folder_end import PATIENCE, FolderEnd
from secure_fl.protocol.frames import Frame


class FolderParty(Responder):
    """Answers the coordinator's frames through a folder."""

    end: FolderEnd

    def __init__(
        self,
        folder: Path,
        key: bytes,
        *,
        patience: float = PATIENCE,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`refusing`: called with the error of a frame that is not answered."""

        def start_end(deliver: Deliver) -> FolderEnd:
            self.end = FolderEnd(
                folder, Endpoint.TRAINER, key, deliver, patience=patience, on_error=self.stop
            )
            return self.end

        super().__init__(start_end, refusing=refusing)

    def serve(
        self,
        step: Callable[[Frame], Frame],
        done: Callable[[], bool] = lambda: False,
        linger: float = 10.0,
    ) -> None:
        """Answer steps as every responder does; raise the error that stopped the folder's end."""
        super().serve(step, done, linger)
        if self.end.error is not None:
            raise self.end.error
