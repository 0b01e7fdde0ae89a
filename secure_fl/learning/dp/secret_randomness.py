"""The secret randomness of DP-SGD: sampling of batches, dropout, and noise.

Nothing here depends on the run's seed, which every party knows. With it, others could repeat the
noise and the sampling, and sampling would no longer amplify privacy. So a resumed run draws other
values than an uninterrupted one, except for rounds that were saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from secure_fl.crypto.privacy.noise import Uniforms, secure_uniforms

CHUNK = 1 << 21  # normals made at once, in float64


@dataclass(frozen=True, slots=True)
class Coins:
    """Sampling, noise and seeds from one stream of uniforms in (0, 1) with 53 bits each."""

    uniforms: Uniforms

    @classmethod
    def secret(cls) -> Coins:
        """AES-256-CTR under a fresh key of the operating system."""
        return cls(secure_uniforms())

    @classmethod
    def of(cls, generator: torch.Generator) -> Coins:
        """Repeatable coins, for tests and never for records."""

        def draw(n: int) -> torch.Tensor:
            return 1 - torch.rand(n, generator=generator, dtype=torch.float64)

        return cls(lambda n: draw(n).numpy())

    def sample(self, count: int, rate: float) -> list[int]:
        """Draw each of `count` units with probability `rate`, independently."""
        drawn: list[int] = (self.uniforms(count) < rate).nonzero()[0].tolist()
        return drawn

    def seed(self) -> int:
        """A seed for torch's own generators."""
        return int(self.uniforms(1)[0] * 2**53)

    def add_normal(self, values: Tensor, std: float) -> Tensor:
        """Return values + N(0, std²), added in float64 and rounded once.

        The low bits of a float32 sum would reveal its inputs (Mironov, CCS 2012; arXiv
        2112.05307).
        """
        device = torch.device("cpu") if values.device.type == "mps" else values.device
        total = values.to(device, torch.float64, copy=True).flatten()
        for start in range(0, len(total), CHUNK):
            part = total[start : start + CHUNK]
            part.add_(self._normal(len(part), device), alpha=std)
        return total.view_as(values).to(values.device, values.dtype)

    def _normal(self, count: int, device: torch.device) -> Tensor:
        """Independent standard normals, by Box and Muller."""
        pairs = -(-count // 2)
        first, second = torch.from_numpy(self.uniforms(2 * pairs)).to(device).view(2, pairs)
        radius, angle = (-2 * first.log()).sqrt_(), second * (2 * math.pi)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


@dataclass(frozen=True, slots=True)
class PoissonBatches:
    """A pass over the units; a batch contains each with probability 1/steps and may be empty."""

    units: int
    steps: int
    coins: Coins

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield self.coins.sample(self.units, 1 / self.steps)


@contextmanager
def secret_dropout(coins: Coins, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators secretly inside; restore their states outside.

    The bound on a clipped sum assumes that equal records have equal dropout masks. This needs
    secret masks: if they are known, one more record shifts those of all others.
    """
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.manual_seed(coins.seed())
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)
