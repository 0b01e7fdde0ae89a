"""A hospital's end without network: what it says lies in a folder until a courier takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from secure_fl.engines.responder import Deliver, Responder
from secure_fl.errors import SecureFLError
from secure_fl.features.air_gap.file_message import Endpoint
from secure_fl.features.air_gap.folder_end import PATIENCE, FolderEnd
from secure_fl.protocol.frames import Frame


class FolderParty(Responder):
    """Answers the coordinator's frames, which a courier carries."""

    end: FolderEnd

    def __init__(
        self,
        folder: Path,
        key: bytes,
        *,
        patience: float = PATIENCE,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`refusing` hears why a frame was not answered: only here it is said."""

        def post(deliver: Deliver) -> FolderEnd:
            self.end = FolderEnd(
                folder, Endpoint.TRAINER, key, deliver, patience=patience, failing=self.stop
            )
            return self.end

        super().__init__(post, refusing=refusing)

    def serve(
        self,
        step: Callable[[Frame], Frame],
        done: Callable[[], bool] = lambda: False,
        linger: float = 10.0,
    ) -> None:
        """As every party does; raise what keeps the folder from being used."""
        super().serve(step, done, linger)
        if self.end.failed is not None:
            raise self.end.failed
