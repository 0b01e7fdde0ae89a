"""What adapters send and cost: ModernBERT-base's shapes, sealed, and DP-SGD over plain training.

Bytes depend on shapes, not on values, so real parties sum noise. The training that protection is
compared with is that of ModernBERT-base with adapters, at random, on made-up tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.micro import dp
from benchmarks.report import Report, Target, table
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
COLUMNS = ("trained", "values", "MB up", "in round 1", "CPU s of a party", "of a round")
Values = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind: what is summed, the bytes that one party sends for it, the CPU it takes.

    In the first round scales are not known, and the norms that they follow from are summed, too.
    """

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
    """Sum each kind's values once; train one step; `records` at each party make a round.

    `scale` divides ModernBERT-base's width, for a quick look.
    """
    started, threads = time.perf_counter(), torch.get_num_threads()
    protection = ProtectionSettings.model_validate({"mode": "he+secagg", "bits": bits})
    torch.set_num_threads(1)
    try:
        step = step_seconds(model("lora", scale), batch, tokens)
        round_ = step * records / batch
        rows = [_row(kind, protection, parties, round_, scale) for kind in KINDS]
        private = dp.rows("adapters", ModelSettings(adapter=AdapterSettings()), dp_records, repeats)
    finally:
        torch.set_num_threads(threads)
    rows.append(_whole(rows[0], round_, scale))
    found = {row.kind: row for row in rows}
    targets = [Target(f"{k}, bytes", LIMITS[k], found[k].up_bytes) for k in LIMITS]
    targets += [Target(f"{k}, of a round", SHARE, found[k].share_of_round) for k in LIMITS]
    targets += [Target("DP-SGD over plain", DP, min(r.over_plain for r in private[1:]))]
    cells = [(r.way, f"{r.cpu_seconds:.2f}", f"{r.over_plain:.2f}") for r in private]
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
            table(
                f"ModernBERT-base, {parties} parties, {bits} bits", COLUMNS, [*map(_cells, rows)]
            ),
            table("an epoch of adapters by DP-SGD", ("way", "CPU s", "over plain"), cells),
        ],
        targets,
        seconds=time.perf_counter() - started,
    )


def model(kind: str, scale: int = 1) -> nn.Module:
    """ModernBERT-base as a classifier, at random, with adapters of this kind."""
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
    """CPU seconds of one step of training: the second, for the first warms up."""
    ids = torch.randint(3, 1000, (batch, tokens), generator=torch.Generator().manual_seed(0))
    taken = []
    for _ in range(2):
        before = time.process_time()
        model(input_ids=ids, labels=torch.zeros(batch, dtype=torch.long)).loss.backward()
        taken.append(time.process_time() - before)
    return taken[-1]


def _row(kind: str, protection: ProtectionSettings, parties: int, round_: float, scale: int) -> Row:
    with torch.device("meta"):  # shapes without memory
        sums = _sums(model(kind, scale), kind, parties)
    once, twice = (exchanged(sums * rounds, protection, parties) for rounds in (1, 2))
    sealing = sum(exchange.parties for exchange in once.exchanges) / parties
    first, both = (sum(e.up for e in ran.exchanges) / parties for ran in (once, twice))
    return Row(
        kind,
        sum(sum(sizes.values()) for sizes in sums),
        both - first,
        first,
        sealing,
        sealing / (sealing + round_),
    )


def _whole(lora: Row, round_: float, scale: int) -> Row:
    """All weights but the embeddings, at what a value of LoRA's costs: 110 million take minutes."""
    with torch.device("meta"):
        values = sum(weight.numel() for weight in trainable(model(WHOLE, scale)).values())
    times = values / lora.values
    sealing = lora.protection_seconds * times
    sent = (lora.up_bytes * times, lora.first_bytes * times)
    return Row(WHOLE, values, *sent, sealing, sealing / (sealing + round_))


def _sums(made: nn.Module, kind: str, parties: int) -> list[Mapping[str, int]]:
    """How many values each tensor has in each of a round's sums."""
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
    """Real parties that sum noise of these sizes."""
    rng = np.random.default_rng(0)
    noise = [{n: rng.standard_normal(k, np.float32) for n, k in sizes.items()} for sizes in sums]

    async def program(cohort: Cohort) -> None:
        for values in noise:
            await cohort.sum(values, carry=True)

    return simulate(protection, parties, program)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.kind,
        f"{row.values:,}",
        f"{row.up_bytes / 1e6:.3f}",
        f"{row.first_bytes / 1e6:.3f}",
        f"{row.protection_seconds:.2f}",
        f"{row.share_of_round:.2%}",
    )
