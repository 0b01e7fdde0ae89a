"""Ways to release noised sums: as the installed program does, and with bugs that others had.

`SkellamNoise.share` takes one vector. Its coordinates are independent, so a vector of n coordinates
is n releases of one, if the bound of its norm grows by √n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.privacy.noise import SkellamNoise, Uniforms

NO_CLIP = "no clip"
OVERSIZED = 4.0  # what the worst-case client sends, in units of the bound that clips it

Floats = NDArray[np.float64]
Release = Callable[[SkellamNoise, bool, int, Uniforms], Floats]
"""So many sums in grid steps, with or without the client: what an attacker decides by."""


def shipped(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Sum as many shares as are promised: all but those who may drop out or collude."""
    return _summed(noise, present, releases, uniforms, promised(noise))


def share_missing(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Planted: one party less adds noise than the sum was sized for."""
    return _summed(noise, present, releases, uniforms, max(1, promised(noise) - 1))


def noise_divided(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Planted: each party divides the std of its share by their number once too often."""
    weak = replace(noise, mu=noise.mu / promised(noise) ** 2)
    return _summed(weak, present, releases, uniforms, promised(noise))


def not_clipped(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Planted: the client sends more than the bound, and nobody shrinks it."""
    sent = OVERSIZED * noise.clip
    lax = replace(noise, clip=10 * sent)
    return _summed(lax, present, releases, uniforms, promised(noise), sent)


def noise_reused(noise: SkellamNoise, present: bool, releases: int, uniforms: Uniforms) -> Floats:
    """Planted: a second sum, without the client, carries the noise of the first."""
    drawn: list[Floats] = []

    def record(count: int) -> Floats:
        drawn.append(uniforms(count))
        return drawn[-1]

    first = shipped(noise, present, releases, record)
    again = iter(drawn)
    return first - shipped(noise, False, releases, lambda _count: next(again))


PLANTED: dict[str, Release] = {  # the least first: what finds it is sharp enough
    "one missing share": share_missing,
    "noise/N": noise_divided,
    "reused noise": noise_reused,
    NO_CLIP: not_clipped,
}


def promised(noise: SkellamNoise) -> int:
    """How many shares a sum is sure to hold."""
    return noise.parties - noise.dropouts - noise.colluders


def seeded(rng: np.random.Generator) -> Uniforms:
    """Uniforms in (0, 1) that can be repeated: only audits and tests may use them."""

    def draw(n: int) -> Floats:
        words = rng.integers(0, 1 << 53, n)
        uniform: Floats = (words.astype(np.float64) + 0.5) * 2.0**-53
        return uniform

    return draw


def _summed(
    noise: SkellamNoise,
    present: bool,
    releases: int,
    uniforms: Uniforms,
    shares: int,
    sent: float | None = None,
) -> Floats:
    batch = replace(noise, dimension=releases, clip=noise.clip * math.sqrt(releases))
    value = OVERSIZED * noise.clip if sent is None else sent
    absent = -value if noise.adjacency == "replace-one" else 0.0
    total = batch.share(np.full(releases, value if present else absent), uniforms)
    for _ in range(shares - 1):
        total = total + batch.share(np.zeros(releases), uniforms)
    return total.astype(np.float64)
