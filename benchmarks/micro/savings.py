"""Time and memory saved by bfloat16, checkpointing and batches of similar lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import checkpoint
from benchmarks.measuring import in_turns, one_thread, ratio
from benchmarks.report import Grid, Report
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

BATCH, TOKENS, NOTES = 16, 128, 8  # a record joins one to NOTES built-in notes
WAYS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {},
        "bfloat16": {"precision": "bfloat16"},
        "checkpointing": {"checkpointing": True},
        "bucketing": {"bucketing": True},
        "all three": {"precision": "bfloat16", "checkpointing": True, "bucketing": True},
    }
)
AT_ONCE = {"one by one": 1, "of one length together": 64}  # prompts


@dataclass(frozen=True, slots=True)
class SavingsRow:
    """One way of training: CPU seconds of an epoch, and bytes of activations of a step."""

    way: str
    cpu_seconds: float
    over_plain: float
    kept_bytes: int  # with a batch of the longest records


def measure(
    *,
    records: int = 160,
    repeats: int = 3,
    prompts: int = 400,
    model: str | None = None,
    seed: int = 0,
) -> Report:
    """Train an epoch in each way, in turns, and answer prompts with the built-in decoder."""
    about = checkpoint.find(model)
    with one_thread():
        rows = _rows(about.name, records, repeats)
        written = _writing(prompts, repeats)
    return Report(
        "savings",
        {"records": records, "batch": BATCH, "tokens": TOKENS, "model": about.identity},
        seed,
        {"rows": [asdict(row) for row in rows], "answers": written},
        [
            Grid.of(
                "an epoch of training",
                rows,
                {
                    "way": "{r.way}",
                    "CPU s": "{r.cpu_seconds:.2f}",
                    "of plain": "{r.over_plain:.2f}",
                    "MB of a step": lambda r: f"{r.kept_bytes / 1e6:.0f}",
                },
            ),
            Grid.of(
                f"answers to {prompts} prompts",
                written.items(),
                {"way": "{r[0]}", "CPU s": "{r[1]:.2f}"},
            ),
        ],
    )


def _rows(name: str, records: int, repeats: int) -> list[SavingsRow]:
    sites = {way: _site(name, fields, records) for way, fields in WAYS.items()}
    models = {way: site.model() for way, site in sites.items()}
    calls = {way: partial(site.fit, models[way], 1, ALONE) for way, site in sites.items()}
    taken = in_turns(calls, repeats)
    return [
        SavingsRow(way, median(s), ratio(s, taken["plain"]), kept(sites[way], models[way]))
        for way, s in taken.items()
    ]


def _writing(prompts: int, repeats: int) -> dict[str, float]:
    """Measure the CPU seconds in which a decoder answers prompts."""
    task, tokenizer = make_task(TaskSettings(kind="completion", max_length=64)), tiny_tokenizer()
    asked = corpora.make("summaries", parties=1, seed=3, size=prompts)[0].train
    decoder = load_model(ModelSettings(), task, tokenizer, 0)
    calls = {
        way: partial(task.predict, decoder, asked, tokenizer, batch_size=count)
        for way, count in AT_ONCE.items()
    }
    taken = in_turns(calls, repeats, warm_up=False)
    return {way: median(seconds) for way, seconds in taken.items()}


def kept(site: Site, model: nn.Module) -> int:
    """Count the bytes of activations that a step on the longest records keeps for gradients."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)  # so that its address is not used again
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
    task = make_task(TaskSettings(max_length=TOKENS), joined)
    training = TrainingSettings(batch_size=BATCH, device="cpu", **fields)
    model = ModelSettings(name=name)
    spec = SiteSpec(task, model, training, 0)
    return Site(Silo("north", joined), spec, SiteContext(EventLog("north")))
