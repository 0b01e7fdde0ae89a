"""Seeds for one purpose each, far from one another. Never for keys or for noise."""

from __future__ import annotations

import hashlib


def seed_for(seed: int, *names: object) -> int:
    """A 56-bit seed out of the run's seed and the purpose's names."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
