"""Independent seeds, one for each purpose. Never for keys or for noise."""

from __future__ import annotations

import hashlib


def seed_for(seed: int, *names: object) -> int:
    """Derive a 56-bit seed from the run's seed and the names of a purpose."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
