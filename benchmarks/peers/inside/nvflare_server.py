"""A server's filter that eavesdrops, or replaces all weights by one site's."""

from __future__ import annotations

import numpy as np
from job import Job
from nvflare.apis.dxo import DXO
from nvflare.apis.dxo_filter import DXOFilter


class Lying(DXOFilter):
    """Sees each site's weights, sealed or not, before the sum."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self._seen: dict[int, list[dict]] = {}

    def process_dxo(self, dxo, shareable, fl_ctx) -> DXO:
        """Save the weights; with the lie `alone` return the first site's."""
        job = Job()
        round = int(shareable.get_header("current_round", 0)) + 1
        seen = self._seen.setdefault(round, [])
        seen.append(dict(dxo.data))
        job.tap(round, len(seen) - 1, {name: bytes_of(held) for name, held in dxo.data.items()})
        if job.wrong == "alone":
            dxo.data = dict(seen[0])
        return dxo


def bytes_of(held) -> np.ndarray:
    """Return weights unchanged, and sealed ones as bytes."""
    held = held.serialize() if hasattr(held, "serialize") else held
    return np.frombuffer(held, np.uint8) if isinstance(held, bytes) else np.asarray(held)
