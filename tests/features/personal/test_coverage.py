"""Temperatures and thresholds of one trained model at hospitals whose labels differ in quality."""

from __future__ import annotations

import numpy as np
import torch

from secure_fl import FedAvg, Silo, TrainingSettings
from secure_fl.corpora import make
from secure_fl.features.personal.curves import (
    LossCurves,
    LossSums,
    RiskSums,
    TrueOdds,
    cooled,
    losses_at,
    true_odds,
)
from secure_fl.learning.tasks import Batch
from secure_fl.settings import ModelSettings
from secure_fl.testing.hospitals import small

Outcomes = tuple[list[torch.Tensor], list[Batch]]

WANTED, NEAR = 0.9, 0.02
DEV = 1200  # records of each hospital
WRONG = (0.0, 0.05, 0.2)  # shares of wrong labels


def misses(dev: list[TrueOdds], test: list[TrueOdds]) -> tuple[float, float]:
    """Return the largest distance from the coverage, with the pooled and with own thresholds."""
    parts = [RiskSums.of(one) for one in dev]
    sums = RiskSums(sum(x.records for x in parts), np.sum([x.losses for x in parts], axis=0))
    pooled = [one.coverage(sums.pooled(WANTED)) for one in test]
    own = [t.coverage(sums.own(d, WANTED)) for d, t in zip(dev, test, strict=True)]
    return max(abs(x - WANTED) for x in pooled), max(abs(x - WANTED) for x in own)


def test_own_values_reach_the_coverage_on_built_in_notes_where_the_pooled_one_misses_it() -> None:
    splits = make("ade", parties=3, seed=3, size=1800)
    result = small(
        mode="none",
        silos=[Silo(f"h{k}", one.train[:200]) for k, one in enumerate(splits)],
        algorithm=FedAvg(rounds=3, epochs=2),
        model=ModelSettings(layers=1, freeze_embeddings=False),
        training=TrainingSettings(device="cpu", batch_size=16, learning_rate=2e-3),
    ).run()
    task = result.task
    dev: list[Outcomes] = []
    test: list[Outcomes] = []
    for seed, (one, wrong) in enumerate(zip(splits, WRONG, strict=True)):
        unseen = task.encode([*one.train[200:], *one.dev, *one.test], result.tokenizers["model"])
        logits, batches = task.outcomes(result.model, unseen, 64)
        z, labels = torch.cat(logits), torch.cat([batch["labels"] for batch in batches])
        changed = torch.from_numpy(np.random.default_rng(seed).random(len(z)) < wrong)
        labels = torch.where(changed, 1 - labels, labels)
        dev.append(([z[:DEV]], [{"labels": labels[:DEV]}]))
        test.append(([z[DEV:]], [{"labels": labels[DEV:]}]))

    raw = [[true_odds(task, *one) for one in part] for part in (dev, test)]
    pooled, own = misses(*raw)
    assert pooled > 2.5 * NEAR and own < NEAR

    curves = [LossCurves.of(task, *one) for one in dev]
    parts = [one.sums() for one in curves]
    sums = LossSums(sum(x.records for x in parts), np.sum([x.losses for x in parts], axis=0))
    found = [sums.own(one) for one in curves]
    for tested, T in zip(test, found, strict=True):
        losses = [losses_at(task, *tested, t).mean() for t in (T, 1.0, sums.pooled)]
        assert losses[0] < losses[1] and losses[0] < losses[2] + 1e-3
    calibrated = [
        [true_odds(task, cooled(z, T), b) for (z, b), T in zip(part, found, strict=True)]
        for part in (dev, test)
    ]
    assert misses(*calibrated)[1] < NEAR
