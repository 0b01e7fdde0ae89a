"""What the ways of training cost on a GPU: BERT-base's shape at random, on built-in notes.

The same sites as in `savings`; beside its ways, DP-SGD and adapters. Seconds are of the clock, with
the device waited for, and memory is what torch had allocated at most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from benchmarks.micro.savings import WAYS, joined
from benchmarks.report import Report, table
from secure_fl.data.silo import Silo
from secure_fl.errors import ModelError
from secure_fl.events import EventLog
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.dp.account import DpAccount
from secure_fl.learning.dp.scope import sampling_units
from secure_fl.learning.schedule import ALONE
from secure_fl.learning.shelf import Shelf
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.settings import (
    AdapterSettings,
    DPSettings,
    ModelSettings,
    TaskSettings,
    TrainingSettings,
)

BATCH, TOKENS = 32, 128
DP: Mapping[str, Any] = {"epsilon": 1e6, "noise_multiplier": 1.0, "accountant": "rdp"}
LORA = {"adapter": AdapterSettings(kind="lora", rank=8, targets="linear")}
TRIED: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = MappingProxyType(
    {way: (fields, {}) for way, fields in WAYS.items()}
    | {
        "DP-SGD, ghost": ({"dp": DPSettings(clipping="ghost", **DP)}, {}),
        "DP-SGD, per sample": ({"dp": DPSettings(clipping="per_sample", **DP)}, {}),
        "LoRA": ({}, LORA),
        "LoRA, bfloat16": ({"precision": "bfloat16"}, LORA),
        "LoRA, DP-SGD, ghost": ({"dp": DPSettings(clipping="ghost", **DP)}, LORA),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way: median seconds of an epoch, plain's by these, and the memory that it took."""

    way: str
    seconds: float
    over_plain: float
    peak_bytes: int


def measure(
    *, records: int = 320, repeats: int = 3, layers: int = 12, width: int = 768, seed: int = 0
) -> Report:
    """Train an epoch in each way, in turns, after one that warms up."""
    if not torch.cuda.is_available():
        raise ModelError("no CUDA device here", fix="measure where there is one")
    started = time.perf_counter()
    with TemporaryDirectory(prefix="gpu-") as folder:
        save(Path(folder), layers, width)
        rows = _rows(folder, records, repeats)
    cells = [
        (r.way, f"{r.seconds:.2f}", f"{r.over_plain:.2f}", f"{r.peak_bytes / 1e6:.0f}")
        for r in rows
    ]
    device = torch.cuda.get_device_name()
    return Report(
        "gpu",
        {"records": records, "batch": BATCH, "tokens": TOKENS, "layers": layers, "width": width},
        seed,
        {"device": device, "rows": [asdict(row) for row in rows]},
        [table(f"an epoch on {device}", ("way", "s", "of plain", "MB at most"), cells)],
        seconds=time.perf_counter() - started,
    )


def save(folder: Path, layers: int, width: int) -> None:
    """A checkpoint of BERT's shape at random, with the built-in tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=max(1, width // 64),
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def _rows(name: str, records: int, repeats: int) -> list[Row]:
    taken: dict[str, list[float]] = {way: [] for way in TRIED}
    peaks: dict[str, int] = {}
    sites = {
        way: _site(name, *fields, records, Shelf(repeats + 1)) for way, fields in TRIED.items()
    }
    for turn in range(repeats + 1):
        for way, site in sites.items():
            model = site.model()  # one at a time on the device
            seconds, peaks[way] = _epoch(site, model)
            if turn:
                taken[way].append(seconds)
    plain = taken["plain"]
    return [
        Row(
            way,
            median(seconds),
            median(s / p for s, p in zip(seconds, plain, strict=True)),
            peaks[way],
        )
        for way, seconds in taken.items()
    ]


def _epoch(site: Site, model: nn.Module) -> tuple[float, int]:
    """Seconds of one, and the most memory that was held meanwhile, the model's own included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = time.perf_counter()
    site.fit(model, 1, ALONE)
    torch.cuda.synchronize()
    return time.perf_counter() - before, torch.cuda.max_memory_allocated()


def _site(
    name: str,
    training: Mapping[str, Any],
    model: Mapping[str, Any],
    records: int,
    shelf: Shelf,
) -> Site:
    notes = joined(records)
    settings = TrainingSettings(batch_size=BATCH, device="cuda", **training)
    privacy = None
    if settings.dp is not None:
        units = sampling_units(notes, settings.dp, "north")
        privacy = DpAccount("north", settings.dp, units, BATCH)
    return Site(
        Silo("north", notes),
        make_task(TaskSettings(max_length=TOKENS), notes),
        ModelSettings(name=name, **model),
        settings,
        0,
        EventLog("north"),
        privacy=privacy,
        shelf=shelf,
    )
