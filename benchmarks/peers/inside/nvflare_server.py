"""A server's filter that listens, and that takes one site's weights for everybody's."""

from __future__ import annotations

import numpy as np
from job import Job
from nvflare.apis.dxo import DXO
from nvflare.apis.dxo_filter import DXOFilter


class Lying(DXOFilter):
    """Sees what each site sent, sealed or not, before it is added."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self._seen: dict[int, list[dict]] = {}

    def process_dxo(self, dxo, shareable, fl_ctx) -> DXO:
        """Keep it; give the first site's for every site's, where only one is to be added."""
        job = Job()
        round = int(shareable.get_header("current_round", 0)) + 1
        seen = self._seen.setdefault(round, [])
        seen.append(dict(dxo.data))
        job.tap(round, len(seen) - 1, {name: bytes_of(held) for name, held in dxo.data.items()})
        if job.wrong == "alone":
            dxo.data = dict(seen[0])
        return dxo


def bytes_of(held) -> np.ndarray:
    """Weights as they are; sealed ones as the bytes that they are."""
    held = held.serialize() if hasattr(held, "serialize") else held
    return np.frombuffer(held, np.uint8) if isinstance(held, bytes) else np.asarray(held)
