"""What one exchange of a student with BERT-base's shapes costs in bytes: no model is trained.

Bytes depend on shapes and on how wide factors are, not on values; so real parties sum noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.simulation import simulate
from secure_fl.algorithms.fedkd.lowrank import useful_rank
from secure_fl.learning.anatomy import freeze_embeddings, trainable
from secure_fl.learning.tasks.heads import AttentiveClassifier
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ProtectionSettings

LAYERS = 12
Values = dict[str, NDArray[np.float32]]


def model(layers: int, scale: int = 1) -> nn.Module:
    """BERT-base's first layers under the paper's classifier, embeddings frozen, at random.

    `scale` divides all widths; the number of heads stays.
    """
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=layers)
    config.hidden_size //= scale
    config.intermediate_size //= scale
    made = AttentiveClassifier(BertModel(config, add_pooling_layer=False), 2)
    freeze_embeddings(made)
    return made


def shapes(layers: int, scale: int = 1) -> dict[str, torch.Size]:
    """What is trained of BERT-base's first layers, with the paper's classifier; no memory used."""
    with torch.device("meta"):
        return {name: weight.shape for name, weight in trainable(model(layers, scale)).items()}


def kind(name: str) -> str:
    """A weight's name without the number of its layer."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def exchange_bytes(
    layers: int,
    widths: Mapping[str, float],
    protection: ProtectionSettings,
    parties: int,
    scale: int = 1,
) -> float:
    """Bytes of one party, up and down, in a run of one round, with all that begins and ends it.

    `widths`: of factors, as a share of the largest useful rank, by kind; 1 or more: sent whole.
    """
    rng = np.random.default_rng(0)
    ranks, first, second = {}, {}, {}
    for name, shape in shapes(layers, scale).items():
        share, useful = widths.get(kind(name), 1.0), useful_rank(shape)
        if share >= 1 or not useful:
            first[name] = _noise(rng, shape.numel())
        else:
            width = ceil(share * useful)
            first[name] = _noise(rng, shape[0] * width)
            second[f"{name}|B"] = _noise(rng, shape[1] * width)
            ranks[f"{name}|rank"] = np.ones(1, np.float32)

    async def round(cohort: Cohort) -> None:
        for values in filter(None, (ranks, first, second)):
            await cohort.sum(values, carry=True)

    ran = simulate(protection, parties, round).exchanges
    return sum(exchange.up + exchange.down for exchange in ran) / parties


def _noise(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    return rng.standard_normal(size, np.float32)
