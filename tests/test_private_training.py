"""DP-SGD: what bounds a record, what is spent for it and when, and that it can be undone."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
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

from secure_fl.algorithms.baselines.centralized import Centralized
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.accounting import epsilon
from secure_fl.crypto.events import DpSgdSteps
from secure_fl.crypto.ledger import Account, Ledger, events_of, load_chain
from secure_fl.errors import (
    BudgetError,
    DataError,
    ModelError,
    SettingsError,
    TamperError,
    TrainingError,
)
from secure_fl.examples import Tagged, Text
from secure_fl.federation import Federation
from secure_fl.models import freeze_embeddings, trainable
from secure_fl.privacy import Privacy
from secure_fl.private_coins import Coins, PoissonBatches
from secure_fl.private_model import Bounds, privately
from secure_fl.private_scope import open_ledger, require_private, sampling_units
from secure_fl.private_training import clipped_sum, fit_privately, neighbour_ratio
from secure_fl.recorder import Event, Recorder
from secure_fl.settings import (
    DPSettings,
    ModelSettings,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)
from secure_fl.silo import Silo, Site
from secure_fl.tasks import Batch, Task, make_task
from secure_fl.training import make_optimizer, step

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
    task = TASKS[family]
    return lambda model, batch: task.loss(task.forward(model, batch), batch, reduction="none")


def gradients_one_by_one(family: str, model: nn.Module, batch: Batch) -> list[Tensor]:
    """The naive way: one record at a time through autograd."""
    found = []
    for row in range(len(batch["labels"])):
        model.zero_grad()
        loss_of(family)(model, {k: v[row : row + 1] for k, v in batch.items()}).sum().backward()
        parts = [
            p.grad.flatten() for p in model.parameters() if p.requires_grad and p.grad is not None
        ]
        found.append(torch.cat(parts))
    model.zero_grad()
    return found


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_clipped_sum_is_that_of_autograd(family: str, clipping: Any, frozen: bool) -> None:
    model, batch = make_model(family), make_batch(family)
    if frozen:
        freeze_embeddings(model)
    each = gradients_one_by_one(family, model, batch)
    clip = float(np.median([float(g.norm()) for g in each]))  # half of them are clipped
    expected = torch.stack([g * min(1.0, clip / (float(g.norm()) + 1e-6)) for g in each]).sum(0)
    found = clipped_sum(model, loss_of(family), batch, Bounds(clip, clipping=clipping))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * clip)


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_moves_the_clipped_sum_by_at_most_the_bound(family: str, clipping: Any) -> None:
    model, batch = make_model(family, dropout=0.1), make_batch(family)
    bounds = Bounds(0.05, clipping=clipping)
    ratios = [neighbour_ratio(model, loss_of(family), batch, bounds, row) for row in range(ROWS)]
    assert max(ratios) <= 1 + 1e-4
    assert max(ratios) > 0.9  # the bound is met, so the test says something


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_from_the_whole_batch_breaks_the_bound(family: str, clipping: Any) -> None:
    """Mutual distillation weights its losses by a batch's mean: no ε covers that."""
    model, batch = make_model(family), make_batch(family, rows=24)

    def weighted(module: nn.Module, rows: Batch) -> Tensor:
        losses: Tensor = loss_of(family)(module, rows)
        return losses * losses.detach().mean() ** 8

    one = {name: tensor[:1] for name, tensor in batch.items()}
    bounds = Bounds(
        float(clipped_sum(model, loss_of(family), one, Bounds(1e9)).norm()), clipping=clipping
    )
    ratios = [neighbour_ratio(model, weighted, batch, bounds, row) for row in range(24)]
    print(ratios)
    assert max(ratios) > 1.05
