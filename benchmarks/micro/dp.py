"""What DP-SGD costs over plain training of the same model on the same records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.report import Report, table
from secure_fl import corpora
from secure_fl.crypto.privacy.training_account import DpAccount
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import freeze_embeddings
from secure_fl.learning.dp.private_model import Bounds, privately
from secure_fl.learning.dp.scope import sampling_units
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches
from secure_fl.learning.learning_rates import ALONE
from secure_fl.learning.local_training import Optimizer, make_optimizer
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Batch, make_task
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings

BATCH = 32
WAYS: Mapping[str, Mapping[str, Any] | None] = MappingProxyType(
    {"plain": None, "per_sample": {"clipping": "per_sample"}, "ghost": {"clipping": "ghost"}}
)
MODELS: Mapping[str, ModelSettings] = MappingProxyType(
    {"all but embeddings": ModelSettings(), "all": ModelSettings(freeze_embeddings=False)}
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way of training: median CPU seconds of an epoch, and how often plain's that is."""

    weights: str  # which are trained
    way: str
    cpu_seconds: float
    over_plain: float


def measure(*, records: int = 480, repeats: int = 5, layers: int = 4, seed: int = 0) -> Report:
    """Train an epoch of the built-in model in each way, in turns, torch on one thread.

    And make steps of so many layers of ModernBERT-base's shape.
    """
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [
            row
            for weights, model in MODELS.items()
            for row in rows(weights, model, records, repeats)
        ]
        found += steps(layers, repeats)
    finally:
        torch.set_num_threads(threads)
    cells = [(r.weights, r.way, f"{r.cpu_seconds:.3f}", f"{r.over_plain:.2f}") for r in found]
    return Report(
        "dp",
        {"records": records, "batch": BATCH, "repeats": repeats},
        seed,
        {"rows": [asdict(row) for row in found]},
        [
            table(
                "an epoch, and a step, by DP-SGD", ("trained", "way", "CPU s", "over plain"), cells
            )
        ],
        seconds=time.perf_counter() - started,
    )


def rows(weights: str, model: ModelSettings, records: int, repeats: int) -> list[Row]:
    """Epochs of one model in each way, in turns: plain training first."""
    sites = {way: _site(fields, model, records) for way, fields in WAYS.items()}
    models = {way: site.model() for way, site in sites.items()}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        for way, site in sites.items():
            before = time.process_time()
            site.fit(models[way], 1, ALONE)
            if turn:  # the first turn warms up
                taken[way].append(time.process_time() - before)
    return _rows(weights, taken)


def steps(layers: int, repeats: int, texts: int = 8, tokens: int = 128) -> list[Row]:
    """Steps of ModernBERT-base's layers at random, all but embeddings trained, on random tokens."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    config = ModernBertConfig(num_hidden_layers=layers, vocab_size=1000, num_labels=2, **special)
    model = ModernBertForSequenceClassification(config).train()
    freeze_embeddings(model)
    ids, labels = torch.randint(1, 1000, (texts, tokens)), torch.randint(0, 2, (texts,))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    optimizer = make_optimizer(model, TrainingSettings(device="cpu"))
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        for way, fields in WAYS.items():
            before = time.process_time()
            _step(model, optimizer, batch, fields)
            if turn:
                taken[way].append(time.process_time() - before)
    return _rows(f"{layers} layers of ModernBERT-base", taken)


def _step(
    model: nn.Module, optimizer: Optimizer, batch: Batch, fields: Mapping[str, Any] | None
) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return cross_entropy(logits, batch["labels"], reduction="none")

    if fields is not None:
        batches = PoissonBatches(10 * len(batch["labels"]), 10, Coins.secret())
        with privately(model, optimizer, loss, Bounds(1.0, 1.0, **fields), batches) as private:
            private.step(batch, None)
        return
    optimizer.zero_grad(set_to_none=True)
    loss(model, batch).mean().backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _rows(weights: str, taken: Mapping[str, list[float]]) -> list[Row]:
    plain = taken["plain"]
    return [
        Row(
            weights,
            way,
            median(seconds),
            median(s / p for s, p in zip(seconds, plain, strict=True)),
        )
        for way, seconds in taken.items()
    ]


def _site(fields: Mapping[str, Any] | None, model: ModelSettings, records: int) -> Site:
    silo = Silo("north", corpora.make("ade", parties=1, seed=0, size=records)[0].train)
    dp = None
    if fields is not None:
        dp = DPSettings(epsilon=1e6, noise_multiplier=1.0, accountant="rdp", **fields)
    training = TrainingSettings(batch_size=BATCH, device="cpu", dp=dp)
    privacy = None
    if dp is not None:
        privacy = DpAccount(silo.name, dp, sampling_units(silo.train, dp, silo.name), BATCH)
    return Site(
        silo,
        SiteSpec(make_task(TaskSettings(), silo.train), model, training, 0),
        SiteContext(EventLog(silo.name), privacy=privacy),
    )
