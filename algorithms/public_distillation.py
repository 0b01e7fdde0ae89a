"""Distillation over public records, shared by FedID and its baselines.

D⁰ are unlabelled public records that every member holds. Members predict them, agree on the sums
of these predictions, and learn from the result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.ensembles import Ensemble
from secure_fl.algorithms.public_coins import coins
from secure_fl.algorithms.settings import PersonalDistillation, PublicDistillation, Targets
from secure_fl.errors import SettingsError
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import Optimizer, autocast, make_optimizer, public_step
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.learning.tasks.classification import label_name
from secure_fl.learning.tasks.task import inference
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round, Stateful
from secure_fl.seeds import seed_for

Rows: TypeAlias = Tensor  # positions of records in D⁰
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of logits against targets


class PublicRecords:
    """The records of D⁰ in batches. All members draw the same order from the run's public seed."""

    def __init__(self, site: Site, batch: int | None = None) -> None:
        self._site = site
        self.classes = len(site.task.labels)
        self.batch = min(batch or site.training.batch_size, len(site.public))

    def __len__(self) -> int:
        return len(self._site.public)

    def batches(self, round: int, epoch: int) -> tuple[Rows, ...]:
        """Draw one pass in batches of equal size. Each pass skips other records, if any.

        Differs: every member draws the batches itself, so the host does not send their records.
        """
        seed = seed_for(self._site.seed, "public records", round, epoch)
        order = torch.from_numpy(np.argsort(coins(seed, np.arange(len(self))), kind="stable"))
        return torch.split(order[: len(order) // self.batch * self.batch], self.batch)

    def every(self) -> Rows:
        """Return the positions of all records, in order."""
        return torch.arange(len(self))

    def read(self, rows: Rows) -> Batch:
        """Tokenise these records for this member's model."""
        return self._site.public.batch(rows, device=self._site.device)


def logits(site: Site, model: nn.Module, records: PublicRecords, rows: Rows) -> Tensor:
    """Predict these records, without dropout."""
    with site.recorder.phase("predict"), inference(model), autocast(site):
        parts = [
            site.task.forward(model, records.read(part))
            for part in torch.split(rows, site.at_once())
        ]
    return torch.cat(parts).float()


def answers(z: Tensor, targets: Targets) -> Tensor:
    """Turn logits into what a party sends: class probabilities, or one vote."""
    return z.softmax(-1) if targets == "soft" else votes(z)


def votes(y: Tensor) -> Tensor:
    """Put all weight on the likeliest class."""
    return F.one_hot(y.argmax(-1), y.shape[-1]).float()


def cross_entropy(z: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over records of -Σ y·log p."""
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    return -(targets * z.log_softmax(-1)).sum(-1).mean()


def groups(batches: Sequence[Rows], size: int) -> Iterator[Sequence[Rows]]:
    """Group `size` batches at a time, never fewer, since the noise is sized for equal sums."""
    size = min(size, len(batches))
    for start in range(0, len(batches) // size * size, size):
        yield batches[start : start + size]


async def agree_on_ensemble(
    cohort: Cohort,
    site: Site,
    cfg: PublicDistillation,
    *,
    batch: int | None = None,  # public records of a step; None: training.batch_size
    bound: float = 1.0,  # of every value in a sum
    same_model: bool = False,  # whether all members must have the same model
) -> tuple[PublicRecords, Ensemble]:
    """Make this member's public records and ensemble, and stop unless all members agree on them."""
    records = PublicRecords(site, batch)
    examples, sums = cfg.releases(len(records), site.training.batch_size)
    ensemble = Ensemble(
        cohort,
        site,
        (examples, records.classes),
        sums // cfg.exchanging,
        cfg.exchanging,
        counted=cfg.counted,
        share=cfg.sample,
        bound=bound,
    )
    task = [site.task.kind, list(site.task.labels), site.task.max_length]
    rules = [site.training.batch_size, site.seed, cfg.model_dump(mode="json"), ensemble.rules]
    model = site.model_settings.model_dump(mode="json") if same_model else None
    common = [*task, site.public_digest.hex(), *rules, model]
    what = "classes, public records, settings" + (" or model" if same_model else "")
    await cohort.agree(json.dumps(common).encode(), what)
    return records, ensemble


def public_rate(site: Site, cfg: PublicDistillation) -> float | None:
    """Return η of steps on public records; None: the model's default rate."""
    host = site.silo.role == "host"
    rate = cfg.host_learning_rate if host else cfg.distill_learning_rate
    return rate or site.training.learning_rate


def public_optimizer(site: Site, cfg: PublicDistillation, model: nn.Module) -> Optimizer:
    """Make a fresh optimiser for steps on public records."""
    settings = site.training.model_copy(update={"learning_rate": public_rate(site, cfg)})
    return make_optimizer(model, settings, alone=True)


@dataclass(frozen=True, slots=True)
class Learner:
    """A model that never leaves its member, with optimisers that last for the whole run."""

    model: nn.Module
    own: Optimizer  # of steps on the member's labelled records
    public: Optimizer  # of steps on public records

    @classmethod
    def of(cls, site: Site, cfg: PublicDistillation, model: nn.Module) -> Learner:
        """Make the optimisers of a member's untrained model."""
        return cls(model, site.optimizer(model), public_optimizer(site, cfg, model))

    @property
    def keep(self) -> dict[str, Stateful]:
        """The states that a checkpoint holds."""
        return {"model": self.model, "own": self.own, "public": self.public}


def party_logits(
    site: Site, cfg: PublicDistillation, model: nn.Module, records: PublicRecords, rows: Rows
) -> Tensor:
    """Predict public records; with `own_shares` divided, subtract the logs of the class shares.

    A model trained where a class is frequent predicts that class too often elsewhere. By Bayes'
    rule the factor is the ratio of the shares (logit adjustment: Menon et al., arXiv 2007.07314).
    """
    z = logits(site, model, records, rows)
    return z - log_shares(site, cfg).to(z.device)


def log_shares(site: Site, cfg: PublicDistillation) -> Tensor:
    """Return the logs of the class shares that this party's predictions are divided by."""
    if cfg.own_shares == "kept" or (cfg.own_shares is None and site.training.dp):
        return torch.zeros(len(site.task.labels))
    return class_shares(site).log()


def class_shares(site: Site) -> Tensor:
    """Return the shares of this party's classes, half a record added to each. Never sent."""
    if site.training.dp is not None:
        raise SettingsError(
            "own_shares divides predictions by counts of this party's records, and DP-SGD does "
            "not cover these counts",
            fix='set algorithm.own_shares = "kept"',
            field="algorithm.own_shares",
        )
    counts = Counter(label_name(example) for example in site.silo.train)
    smoothed = torch.tensor([counts[label] + 0.5 for label in site.task.labels])
    return smoothed / smoothed.sum()


def learn_alone(
    site: Site, cfg: PersonalDistillation, learner: Learner, round: Round, drawn: bool
) -> None:
    """Train drawn parties, and a host that has labels to learn, in a round without an exchange."""
    host = site.silo.role == "host"
    if cfg.labelled if host else drawn:
        site.fit(learner.model, cfg.epochs, round, optimizer=learner.own)
    site.score(learner.model, round.number, "" if host else "local")


def distil(
    site: Site,
    cfg: PublicDistillation,
    model: nn.Module,
    records: PublicRecords,
    targets: Tensor,
    round: Round,
    optimizer: Optimizer | None = None,  # None: a fresh one
    loss: Loss = cross_entropy,
) -> None:
    """Pass over D⁰ and learn these targets: Eqs. 7 and 8 of FedID."""
    optimizer = optimizer or public_optimizer(site, cfg, model)
    passes = [records.batches(round.number, epoch) for epoch in range(cfg.distill_epochs)]
    batches = list(chain.from_iterable(passes))
    targets = targets.to(site.device)
    model.train()
    with site.recorder.phase("train"):
        for done, rows in enumerate(batches):
            x, y = records.read(rows), targets[rows.to(site.device)]
            pace(optimizer, site.training, round.at(done, len(batches)))
            public_step(site, optimizer, lambda: loss(site.task.forward(model, x), y))  # noqa: B023 - called at once
