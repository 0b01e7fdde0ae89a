"""Tiny models, records and sites for the tests of DP-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.crypto.privacy.training_account import DpAccount
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.dp.scope import sampling_units
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Batch, Task, make_task
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings
from tests.support.clipped_sums import losses_of

ROWS, LENGTH, VOCABULARY = 6, 7, 50
TASKS: dict[str, Task] = {
    "bert": make_task(TaskSettings(labels=("no", "yes"))),
    "distilbert": make_task(TaskSettings(labels=("no", "yes"))),
    "roberta": make_task(TaskSettings(labels=("no", "yes"))),
    "ner": make_task(TaskSettings(kind="ner", labels=("DRUG",))),
    "regression": make_task(TaskSettings(kind="regression")),
}
FAMILIES = tuple(TASKS)


def make_model(family: str, dropout: float = 0.0) -> PreTrainedModel:
    shape = {"vocab_size": VOCABULARY, "pad_token_id": 0}
    bert = shape | {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "initializer_range": 0.3,
        "num_labels": TASKS[family].outputs_per_row,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if family == "distilbert":
            config = DistilBertConfig(
                **shape, dim=8, n_layers=2, n_heads=2, hidden_dim=12, num_labels=2, dropout=dropout,
                attention_dropout=dropout, seq_classif_dropout=dropout, initializer_range=0.3,
            )  # fmt: skip
            return DistilBertForSequenceClassification(config)
        if family == "roberta":
            return RobertaForSequenceClassification(RobertaConfig(**bert, type_vocab_size=1))
        if family == "ner":
            return BertForTokenClassification(BertConfig(**bert))
        return BertForSequenceClassification(BertConfig(**bert))


def make_batch(family: str, rows: int = ROWS) -> Batch:
    rng = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, LENGTH + 1, (rows,), generator=rng)
    lengths[0] = LENGTH
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=rng) * mask
    labels: Tensor = torch.randint(0, 2, (rows,), generator=rng)
    if family == "ner":
        labels = torch.randint(0, 3, (rows, LENGTH), generator=rng).masked_fill(mask == 0, -100)
    if family == "regression":
        labels = labels * 4.0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def loss_of(family: str) -> Any:
    return losses_of(TASKS[family])


def notes(count: int, name: str = "a", patients: int | None = None) -> list[Text]:
    """Records that are easy to tell apart."""
    words = {"yes": "bleeding after warfarin", "no": "no complaints today"}
    found = []
    for i in range(count):
        label = "yes" if i % 2 else "no"
        key = f"{name}{i}" if patients is None else f"{name}{i % patients}/{i}"
        found.append(Text(key, words[label], label=label))
    return found


def dp_settings(**fields: Any) -> DPSettings:
    usual: dict[str, Any] = {"epsilon": 50.0, "noise_multiplier": 1.0, "accountant": "rdp"}
    return DPSettings(**usual | fields)


def make_site(
    records: Sequence[Text] | None = None,
    *,
    batch_size: int = 10,
    ledger: Ledger | None = None,
    passes: int | None = None,
    learning_rate: float = 1e-3,
    optimizer: Any = "adamw",
    listener: Any = None,
    **fields: Any,
) -> Site:
    dp = dp_settings(**fields)
    training = TrainingSettings(
        dp=dp,
        batch_size=batch_size,
        device="cpu",
        learning_rate=learning_rate,
        optimizer=optimizer,
        weight_decay=0.0,
    )
    silo = Silo("north", records or notes(40))
    task = make_task(TaskSettings(labels=("no", "yes")))
    units = sampling_units(silo.train, dp, silo.name)
    privacy = DpAccount(
        silo.name, dp, units, batch_size, passes=passes, ledger=ledger, run="this run"
    )
    model = ModelSettings(layers=1)
    return Site(
        silo,
        SiteSpec(task, model, training, 1),
        SiteContext(EventLog("north", listener), privacy=privacy),
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
