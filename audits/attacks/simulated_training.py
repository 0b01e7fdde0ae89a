"""Simulated training: an attacker trains as a party does, on public records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from secure_fl.audits.attacks.layer_inputs import Array, array
from secure_fl.audits.findings import Arrays, CoordinatorView, Prior, Reading, Truth
from secure_fl.data.examples import Example
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.fetching import seeded
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import make_optimizer
from secure_fl.learning.tasks import Encoded
from secure_fl.learning.tasks.classification import label_name
from secure_fl.party.rounds import Round
from secure_fl.protocol.sum_names import RECORDS

CALIBRATION = "a public record"  # the target of a control on public records
MOST = 256  # records of a simulation
SWEEPS = 10  # over the labels of records with several
RAREST = 1e-3  # share of a label that is drawn at all


def drawn(prior: Prior, shares: Array, *purpose: object, size: int | None = None) -> list[Example]:
    """Draw public records so that labels have these shares; sentences with tags are just drawn.

    `size`: the number of drawn records; default: as many as there are.
    """
    rng, records = prior.rng("rehearsal", *purpose), prior.outsiders[:MOST]
    if not records:
        return []
    count = min(size or len(records), MOST)
    p = (_of_classes if prior.task.exclusive else _of_several)(records, prior, shares)
    return [records[i] for i in rng.choice(len(records), count, p=p / p.sum())]


def _of_classes(records: Sequence[Example], prior: Prior, shares: Array) -> Array:
    kinds = [label_name(record) for record in records]
    share = dict(zip(prior.task.labels, shares, strict=True))
    p = np.array([share.get(kind, 1.0) / kinds.count(kind) for kind in kinds])
    return p if p.sum() > 0 else np.ones(len(records))


def _of_several(records: Sequence[Example], prior: Prior, shares: Array) -> Array:
    """Weigh records so that their several labels have nearly these shares, by raking.

    Each sweep gives one label after the other its share, for which records with it and without it
    are scaled (Deming, Stephan: On a Least Squares Adjustment of a Sampled Frequency Table, 1940).
    """
    truth = prior.task.encode(records, prior.tokenizer).batch(range(len(records)))["labels"].numpy()
    p = np.full(len(records), 1 / len(records))
    for share, having in [*zip(np.clip(shares, RAREST, 1 - RAREST), truth.T, strict=True)] * SWEEPS:
        now = p[having].sum()
        if 0 < now < 1:
            p = np.where(having, p * share / now, p * (1 - share) / (1 - now))
    return p


def simulate(prior: Prior, records: Sequence[Example], at: int, *, dropout: bool = True) -> Arrays:
    """Train on these records as in a party's first round; return how all weights moved."""
    model = prior.model().train(dropout)
    before = {name: array(weight) for name, weight in trainable(model).items()}
    encoded: Encoded = prior.task.encode(records, prior.tokenizer)
    optimizer = make_optimizer(model, prior.training)
    order = torch.Generator().manual_seed(at)
    with seeded(prior.seed + at):
        passes = range(prior.algorithm.epochs)
        batches = [b for _ in passes for b in encoded.batches(prior.training.batch_size, order)]
        for done, batch in enumerate(batches):
            optimizer.zero_grad(set_to_none=True)
            loss = prior.task.loss(prior.task.forward(model, batch), batch)
            loss.backward()  # type: ignore[no-untyped-call]
            if (bound := prior.training.max_grad_norm) is not None:
                nn.utils.clip_grad_norm_(model.parameters(), bound)
            pace(optimizer, prior.training, Round(1, prior.algorithm.rounds).at(done, len(batches)))
            optimizer.step()
    return {name: array(weight) - before[name] for name, weight in trainable(model).items()}


def best_case(prior: Prior, records: int = 1) -> tuple[CoordinatorView, Prior]:
    """Make the best case of gradient attacks: one step of plain SGD on few records, fully read.

    It is a control where a run's own training (AdamW, epochs) defeats these attacks even without
    protection. The records are public; the returned prior has them as its truth.
    """
    fields = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "max_grad_norm": None}
    fields |= {"schedule": "constant", "warmup": None, "accumulate": 1, "class_weights": "none"}
    fields |= {"batch_size": records, "dp": None}
    known, held = prior.outsiders[records:], prior.outsiders[:records]
    changed = replace(
        prior,
        training=prior.training.model_copy(update=fields),
        algorithm=prior.algorithm.model_copy(update={"epochs": 1}),
        truth={CALIBRATION: Truth(CALIBRATION, held)},
        outsiders=known,
    )
    moved = simulate(changed, held, 0, dropout=False)
    reading = Reading((CALIBRATION,), 1, {**moved, RECORDS: np.array([float(records)])})
    return CoordinatorView("coordinator", (reading,)), changed
