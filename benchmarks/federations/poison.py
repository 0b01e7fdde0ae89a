"""Attacks of one hospital, by its sums or by its records; it votes for all rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.federations.heads import TARGET, Records

Attack = Literal[
    "sign", "labels", "boosted labels", "noise", "backdoor", "quiet sign", "quiet backdoor"
]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
TIMES = 10.0  # factor of sign-flipped updates, and of boosted ones of flipped labels
QUIET = 3.0  # a factor that does not make grids grow too much
LOUD = 100.0  # factor of noise: ten times would vanish among seven others

Update = dict[str, Tensor]


def spoiled(records: Records, attack: Attack) -> Records:
    """Change the records that the bad party trains on."""
    if "labels" in attack:
        return replace(records, labels=1 - records.labels)
    if "backdoor" in attack:  # each text of the other class once more, with the trigger
        other = records.labels != TARGET
        vectors = np.concatenate([records.vectors, records.triggered[other]])
        labels = np.concatenate([records.labels, np.full(other.sum(), TARGET)])
        return replace(records, vectors=vectors, labels=labels)
    return records


def lie_of(attack: Attack, parties: int) -> Callable[[Update], Update]:
    """Return the function that changes the bad party's update."""
    rng = torch.Generator().manual_seed(0)

    def noise(δ: Tensor) -> Tensor:
        return LOUD * δ.square().mean().sqrt() * torch.randn(δ.shape, generator=rng)

    return {
        "sign": lambda Δ: {name: -TIMES * δ for name, δ in Δ.items()},
        "noise": lambda Δ: {name: noise(δ) for name, δ in Δ.items()},
        "backdoor": lambda Δ: {name: parties * δ for name, δ in Δ.items()},  # outweighs all others
        "quiet sign": lambda Δ: {name: -QUIET * δ for name, δ in Δ.items()},
        "quiet backdoor": lambda Δ: {name: QUIET * δ for name, δ in Δ.items()},
        "labels": lambda Δ: Δ,
        "boosted labels": lambda Δ: {name: TIMES * δ for name, δ in Δ.items()},
    }[attack]


class ContentJudge:
    """The bad party's judge, which finds nothing wrong."""

    def wrong(self) -> NDArray[np.float64]:
        """Return no errors."""
        return np.zeros(1)

    def forget(self, round: int) -> None:
        """Do nothing."""
