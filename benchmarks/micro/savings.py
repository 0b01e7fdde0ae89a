"""What bfloat16, layers computed again and batches of like lengths save: training and writing.

Writing is by the built-in decoder: answers to prompts, one by one, or those of one length together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import checkpoint
from benchmarks.report import Report, table
from secure_fl import corpora
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.learning_rates import ALONE
from secure_fl.learning.local_training import autocast, task_loss
from secure_fl.learning.models import load_model
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings

BATCH, TOKENS, NOTES = 16, 128, 8  # a record: one to so many built-in notes
WAYS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {},
        "bfloat16": {"precision": "bfloat16"},
        "checkpointing": {"checkpointing": True},
        "bucketing": {"bucketing": True},
        "all three": {"precision": "bfloat16", "checkpointing": True, "bucketing": True},
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way: median CPU seconds of an epoch, plain's by these, and what a step holds."""

    way: str
    cpu_seconds: float
    over_plain: float
    kept_bytes: int  # of activations, for the gradients of a batch of the longest records


def measure(
    *,
    records: int = 160,
    repeats: int = 3,
    prompts: int = 400,
    model: str | None = None,
    seed: int = 0,
) -> Report:
    """Train an epoch in each way, in turns, and write answers; torch on one thread."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    about = checkpoint.find(model)
    try:
        rows = _rows(about.name, records, repeats)
        alone, together = _writing(prompts, repeats)
    finally:
        torch.set_num_threads(threads)
    columns = ("way", "CPU s", "of plain", "MB of a step")
    cells = [
        (r.way, f"{r.cpu_seconds:.2f}", f"{r.over_plain:.2f}", f"{r.kept_bytes / 1e6:.0f}")
        for r in rows
    ]
    return Report(
        "savings",
        {"records": records, "batch": BATCH, "tokens": TOKENS, "model": about.identity},
        seed,
        {"rows": [asdict(row) for row in rows], "alone": alone, "together": together},
        [
            table("an epoch of training", columns, cells),
            table(
                f"answers to {prompts} prompts",
                ("way", "CPU s"),
                [("one by one", f"{alone:.2f}"), ("of one length together", f"{together:.2f}")],
            ),
        ],
        seconds=time.perf_counter() - started,
    )


def _rows(name: str, records: int, repeats: int) -> list[Row]:
    sites = {way: _site(name, fields, records) for way, fields in WAYS.items()}
    models: dict[str, nn.Module] = {way: site.model() for way, site in sites.items()}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        for way, site in sites.items():
            before = time.process_time()
            site.fit(models[way], 1, ALONE)
            if turn:  # the first turn warms up
                taken[way].append(time.process_time() - before)
    plain = taken["plain"]
    return [
        Row(
            way,
            median(seconds),
            median(s / p for s, p in zip(seconds, plain, strict=True)),
            kept(sites[way], models[way]),
        )
        for way, seconds in taken.items()
    ]


def _writing(prompts: int, repeats: int) -> tuple[float, float]:
    """CPU seconds in which a decoder answers prompts: one by one, and 64 at a time."""
    task, tokenizer = make_task(TaskSettings(kind="completion", max_length=64)), tiny_tokenizer()
    asked = corpora.make("summaries", parties=1, seed=3, size=prompts)[0].train
    decoder = load_model(ModelSettings(), task, tokenizer, 0)
    taken: dict[int, list[float]] = {1: [], 64: []}
    for _ in range(repeats):
        for at_once, seconds in taken.items():
            before = time.process_time()
            task.predict(decoder, asked, tokenizer, batch_size=at_once)
            seconds.append(time.process_time() - before)
    return median(taken[1]), median(taken[64])


def kept(site: Site, model: nn.Module) -> int:
    """Bytes of activations that a step keeps for the gradients of the longest records."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)  # so that no other takes its place
        return tensor

    held: list[Tensor] = []
    batch = site.train.batch(site.train.sizes().argsort()[-BATCH:])
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with autocast(site), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        task_loss(site)(model.train(), batch)
    return sum(size for at, size in sizes.items() if at not in weights)


def _site(name: str, fields: Mapping[str, Any], records: int) -> Site:
    notes = corpora.make("ade", parties=1, seed=0, size=records * NOTES)[0].train
    texts = [note for note in notes if isinstance(note, Text)]
    joined = [
        Text(
            first.id,
            " ".join(note.text for note in texts[at * NOTES : at * NOTES + 1 + at % NOTES]),
            label=first.label,
        )
        for at, first in enumerate(texts[::NOTES])
    ]
    return Site(
        Silo("north", joined),
        SiteSpec(
            make_task(TaskSettings(max_length=TOKENS), joined),
            ModelSettings(name=name),
            TrainingSettings(batch_size=BATCH, device="cpu", **fields),
            0,
        ),
        SiteContext(EventLog("north")),
    )
