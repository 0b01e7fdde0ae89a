"""Noise on sums of counts: its size for an ε, and the share of each hospital."""

from __future__ import annotations

from functools import lru_cache

from secure_fl.crypto.privacy.accounting import SkellamRelease, calibrate
from secure_fl.crypto.privacy.noise import LARGEST_VARIANCE

COLLUDERS = 1  # hospitals that subtract their own share


@lru_cache(maxsize=64)
def counts_release(epsilon: float, delta: float, *, releases: int, change: float) -> SkellamRelease:
    """Find the least noise within (ε, δ) on so many releases that a unit changes by `change`."""
    mu = calibrate(
        lambda μ: [SkellamRelease(μ, change, change, releases)],
        epsilon,
        delta,
        low=1e-3,
        high=LARGEST_VARIANCE / 2,
        precision=1e-4,
    )
    return SkellamRelease(mu, change, change, releases)


def share_variance(release: SkellamRelease, parties: int, threshold: int) -> float:
    """Return the variance of one site's share: enough with those of the others that remain."""
    return release.mu / (max(1, threshold - COLLUDERS) if parties > 1 else 1)
