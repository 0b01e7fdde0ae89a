"""Cost of DP-SGD compared with plain training of the same model on the same records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measuring import in_turns, one_thread, ratio
from benchmarks.report import Columns, Grid, Report
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
COLUMNS: Columns = {
    "trained": "{r.weights}",
    "way": "{r.way}",
    "CPU s": "{r.cpu_seconds:.3f}",
    "over plain": "{r.over_plain:.2f}",
}


@dataclass(frozen=True, slots=True)
class DpRow:
    """One way of training: median CPU seconds, and their ratio to those of plain training."""

    weights: str  # that are trained
    way: str
    cpu_seconds: float
    over_plain: float


def measure(*, records: int = 480, repeats: int = 5, layers: int = 4, seed: int = 0) -> Report:
    """Train epochs of the built-in model and steps of some layers of ModernBERT-base's shape."""
    with one_thread():
        found = [
            row
            for weights, model in MODELS.items()
            for row in epochs(weights, model, records, repeats)
        ]
        found += steps(layers, repeats)
    return Report(
        "dp",
        {"records": records, "batch": BATCH, "repeats": repeats},
        seed,
        {"rows": [asdict(row) for row in found]},
        [Grid.of("an epoch, and a step, by DP-SGD", found, COLUMNS)],
    )


def epochs(weights: str, model: ModelSettings, records: int, repeats: int) -> list[DpRow]:
    """Train epochs of one model in each way, in turns."""
    sites = {way: _site(fields, model, records) for way, fields in WAYS.items()}
    calls = {way: partial(site.fit, site.model(), 1, ALONE) for way, site in sites.items()}
    return _rows(weights, in_turns(calls, repeats))


def steps(layers: int, repeats: int, texts: int = 8, tokens: int = 128) -> list[DpRow]:
    """Train steps of random ModernBERT-base layers, embeddings frozen, on random tokens."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    config = ModernBertConfig(num_hidden_layers=layers, vocab_size=1000, num_labels=2, **special)
    model = ModernBertForSequenceClassification(config).train()
    freeze_embeddings(model)
    ids, labels = torch.randint(1, 1000, (texts, tokens)), torch.randint(0, 2, (texts,))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    optimizer = make_optimizer(model, TrainingSettings(device="cpu"))
    calls = {way: partial(_step, model, optimizer, batch, fields) for way, fields in WAYS.items()}
    return _rows(f"{layers} layers of ModernBERT-base", in_turns(calls, repeats))


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


def _rows(weights: str, taken: Mapping[str, list[float]]) -> list[DpRow]:
    plain = taken["plain"]
    return [DpRow(weights, way, median(s), ratio(s, plain)) for way, s in taken.items()]


def _site(fields: Mapping[str, Any] | None, model: ModelSettings, records: int) -> Site:
    silo = Silo("north", corpora.make("ade", parties=1, seed=0, size=records)[0].train)
    dp = privacy = None
    if fields is not None:
        dp = DPSettings(epsilon=1e6, noise_multiplier=1.0, accountant="rdp", **fields)
        privacy = DpAccount(silo.name, dp, sampling_units(silo.train, dp, silo.name), BATCH)
    training = TrainingSettings(batch_size=BATCH, device="cpu", dp=dp)
    task = make_task(TaskSettings(), silo.train)
    context = SiteContext(EventLog(silo.name), privacy=privacy)
    return Site(silo, SiteSpec(task, model, training, 0), context)
