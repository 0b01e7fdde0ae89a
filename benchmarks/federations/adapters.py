"""Bytes and cost of adapters of ModernBERT-base, sealed, and of DP-SGD over plain training.

Bytes depend on shapes, not on values, so the parties sum noise. Protection is compared with the
training of a random ModernBERT-base with adapters on random tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.measuring import one_thread
from benchmarks.micro import dp
from benchmarks.report import Columns, Grid, Report, Target
from benchmarks.simulation import Simulated, simulate
from secure_fl.features.adapters.exact_average import SPARE
from secure_fl.features.adapters.part import add
from secure_fl.learning.anatomy import adapted, freeze_embeddings, trainable
from secure_fl.party.cohort import Cohort
from secure_fl.settings import AdapterSettings, ModelSettings, ProtectionSettings

RANK = 8
KINDS = ("lora", "ffa", "exact", "dora")
WHOLE = "whole model"
LIMITS = {"lora": 1.6e6, "ffa": 1.0e6}  # bytes of a party's sum, up
SHARE, DP = 0.01, 1.5
COLUMNS: Columns = {
    "trained": "{r.kind}",
    "values": "{r.values:,}",
    "MB up": lambda r: f"{r.up_bytes / 1e6:.3f}",
    "in round 1": lambda r: f"{r.first_bytes / 1e6:.3f}",
    "CPU s of a party": "{r.protection_seconds:.2f}",
    "of a round": "{r.share_of_round:.2%}",
}
Values = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """One kind: summed values, bytes and CPU of one party; the first round sums norms, too."""

    kind: str
    values: int
    up_bytes: float
    first_bytes: float
    protection_seconds: float
    share_of_round: float


def measure(
    parties: int = 3,
    bits: int = 8,
    records: int = 800,
    tokens: int = 128,
    batch: int = 8,
    scale: int = 1,
    dp_records: int = 480,
    repeats: int = 5,
    seed: int = 0,
) -> Report:
    """Sum each kind's values once and train one step; a round has `records` at each party.

    `scale` divides ModernBERT-base's width.
    """
    protection = ProtectionSettings.model_validate({"mode": "he+secagg", "bits": bits})
    with one_thread():
        step = step_seconds(model("lora", scale), batch, tokens)
        round_ = step * records / batch
        rows = [_row(kind, protection, parties, round_, scale) for kind in KINDS]
        adapter = ModelSettings(adapter=AdapterSettings())
        private = dp.epochs("adapters", adapter, dp_records, repeats)
    rows.append(_whole(rows[0], round_, scale))
    found = {row.kind: row for row in rows}
    targets = [Target(f"{k}, bytes", LIMITS[k], found[k].up_bytes) for k in LIMITS]
    targets += [Target(f"{k}, of a round", SHARE, found[k].share_of_round) for k in LIMITS]
    targets += [Target("DP-SGD over plain", DP, min(r.over_plain for r in private[1:]))]
    return Report(
        "adapters",
        {"parties": parties, "bits": bits, "records": records, "tokens": tokens, "rank": RANK},
        seed,
        {
            "rows": [asdict(r) for r in rows],
            "step_seconds": step,
            "dp": [asdict(r) for r in private],
        },
        [
            Grid.of(f"ModernBERT-base, {parties} parties, {bits} bits", rows, COLUMNS),
            Grid.of("an epoch of adapters by DP-SGD", private, dp.COLUMNS),
        ],
        targets,
    )


def model(kind: str, scale: int = 1) -> nn.Module:
    """Make a random ModernBERT-base classifier with adapters of this kind."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    config = ModernBertConfig(num_labels=2)
    shape = {"hidden_size": 768 // scale, "intermediate_size": 1152 // scale}
    config.update(shape | {"num_attention_heads": 12 // min(scale, 4)})
    made: nn.Module = ModernBertForSequenceClassification(config)
    freeze_embeddings(made)
    if kind != WHOLE:
        adapter = AdapterSettings.model_validate({"kind": kind, "rank": RANK})
        add(made, ModelSettings(adapter=adapter), seed=0, fresh=())
    return made


def step_seconds(model: nn.Module, batch: int, tokens: int) -> float:
    """Measure the CPU seconds of the second step of training; the first warms up."""
    ids = torch.randint(3, 1000, (batch, tokens), generator=torch.Generator().manual_seed(0))
    taken = []
    for _ in range(2):
        before = time.process_time()
        model(input_ids=ids, labels=torch.zeros(batch, dtype=torch.long)).loss.backward()
        taken.append(time.process_time() - before)
    return taken[-1]


def _row(
    kind: str, protection: ProtectionSettings, parties: int, round_: float, scale: int
) -> AdapterRow:
    with torch.device("meta"):  # shapes without memory
        sums = _sums(model(kind, scale), kind, parties)
    once, twice = (exchanged(sums * rounds, protection, parties) for rounds in (1, 2))
    sealing = sum(exchange.parties for exchange in once.exchanges) / parties
    first, both = (sum(e.up for e in ran.exchanges) / parties for ran in (once, twice))
    return AdapterRow(
        kind,
        sum(sum(sizes.values()) for sizes in sums),
        both - first,
        first,
        sealing,
        sealing / (sealing + round_),
    )


def _whole(lora: AdapterRow, round_: float, scale: int) -> AdapterRow:
    """Estimate all weights but the embeddings by the cost of a value of LoRA."""
    with torch.device("meta"):
        values = sum(weight.numel() for weight in trainable(model(WHOLE, scale)).values())
    times = values / lora.values
    sealing = lora.protection_seconds * times
    sent = (lora.up_bytes * times, lora.first_bytes * times)
    return AdapterRow(WHOLE, values, *sent, sealing, sealing / (sealing + round_))


def _sums(made: nn.Module, kind: str, parties: int) -> list[Mapping[str, int]]:
    """List the number of values of each tensor in each of a round's sums."""
    trained = {name: weight.numel() for name, weight in trainable(made).items()}
    if kind != "exact":
        return [trained]
    head = {name: count for name, count in trained.items() if ".lora_" not in name}
    shapes = {name: layer.base_layer.weight.shape for name, layer in adapted(made).items()}
    columns = parties * RANK + SPARE
    left = {name: shape[0] * columns for name, shape in shapes.items()}
    return [left | head, {name: shape[1] * columns for name, shape in shapes.items()}]


def exchanged(
    sums: list[Mapping[str, int]], protection: ProtectionSettings, parties: int
) -> Simulated:
    """Sum noise of these sizes with real parties."""
    rng = np.random.default_rng(0)
    noise = [{n: rng.standard_normal(k, np.float32) for n, k in sizes.items()} for sizes in sums]

    async def program(cohort: Cohort) -> None:
        for values in noise:
            await cohort.sum(values, carry=True)

    return simulate(protection, parties, program)
