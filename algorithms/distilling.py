"""What FedID and the distillation baselines have in common: their settings, and what must agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.ensembles import Counted, Ensemble
from secure_fl.algorithms.public_records import PublicRecords, Rows, cross_entropy, logits
from secure_fl.errors import SettingsError
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import Optimizer, make_optimizer, public_step
from secure_fl.learning.site import Site
from secure_fl.learning.tasks.classification import label_name
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round, Stateful
from secure_fl.settings import ModelSettings, Positive, TrainingSettings

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of logits against targets

Rate = Annotated[float, Field(gt=0)]
OwnShares = Literal["kept", "divided"]


class Distilling(Algorithm):
    """Parties predict public records; the host opens the mean, and its central model learns."""

    epochs: Positive = 3  # predictions travel, however long all trained before: FedID's own E
    distill_epochs: Positive = 1  # passes over the public records in each round
    counted: Counted = "records"  # what the mean counts; under noise only "parties"
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0  # ε: share of parties in each round
    labelled: bool = True  # the host trains on its labelled records, too
    own_shares: OwnShares | None = "kept"  # of classes at a party, in its predictions; divided: it
    # predicts as if it had as many records of each; None: divided, but kept under DP-SGD
    host_learning_rate: Rate | None = None  # η of the central model; None: training.learning_rate
    distill_learning_rate: Rate | None = None  # ηᵏ of Eq. 15; None: that of Eq. 4, as printed

    @model_validator(mode="after")
    def _counts_stay_private(self) -> Self:
        if self.sample < 1 and self.counted == "records":
            raise ValueError(
                'counted = "parties" where sample is below 1: sums of records over the parties of '
                "differing draws are equations that tell everybody how many each hospital has"
            )
        return self

    @property
    def balances(self) -> bool:
        """Not where own shares are divided out: what was balanced once has none any more."""
        return self.own_shares == "kept"

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Passes over own and over public records, which are held by [training]'s batches."""
        return replace(
            Demands.of_fit(self, training),
            passes=max(self.epochs, self.distill_epochs),
            batch=training.batch_size,
            drawn=self.sample,
        )

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """One model at each member."""
        return (model,)

    @property
    def exchanging(self) -> int:
        """How many rounds have an exchange."""
        return self.rounds

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        """One sum over all public records in each round that has an exchange."""
        return public, self.exchanging


class Teaching(Distilling):
    """Every member has a model of its own for the whole run, and all teach it from round to round.

    A fresh model answers alike to all records for its first hundred steps. Who is taught that by
    all others, as often as it learns from its own records, never leaves it.
    """

    alone: Annotated[int, Field(ge=0)] | None = None  # rounds before the first exchange, in which
    # members learn from their own records; None: half of four or more. Papers have none

    @model_validator(mode="after")
    def _teaches_at_last(self) -> Self:
        if not self.exchanging > 0:
            raise ValueError("alone = below rounds: nobody would learn from anybody")
        return self

    @property
    def exchanging(self) -> int:
        """All rounds but those that members begin alone."""
        usual = self.rounds // 2 if self.rounds >= 4 else 0
        return self.rounds - (usual if self.alone is None else self.alone)

    def teaches(self, round: int) -> bool:
        """Whether this round has an exchange."""
        return round > self.rounds - self.exchanging


def rate_of(site: Site, cfg: Distilling) -> float | None:
    """η at the host, ηᵏ at the parties: of steps on public records; None: the model's own."""
    host = site.silo.role == "host"
    own = cfg.host_learning_rate if host else cfg.distill_learning_rate
    return own or site.training.learning_rate


def optimizer_of(site: Site, cfg: Distilling, model: nn.Module) -> Optimizer:
    """A fresh optimiser for steps on public records."""
    settings = site.training.model_copy(update={"learning_rate": rate_of(site, cfg)})
    return make_optimizer(model, settings, alone=True)


@dataclass(frozen=True, slots=True)
class Learner:
    """A model that never leaves its member; its optimisers live through the run as it does."""

    model: nn.Module
    own: Optimizer  # of steps on the member's labelled records
    public: Optimizer  # of steps on public records

    @classmethod
    def of(cls, site: Site, cfg: Distilling, model: nn.Module) -> Learner:
        """A member's model, which has learned nothing so far."""
        return cls(model, site.optimizer(model), optimizer_of(site, cfg, model))

    @property
    def keep(self) -> dict[str, Stateful]:
        """What a checkpoint holds of it."""
        return {"model": self.model, "own": self.own, "public": self.public}


def predicted(
    site: Site, cfg: Distilling, model: nn.Module, records: PublicRecords, rows: Rows
) -> Tensor:
    """A party's logits on public records; with `own_shares` divided, less the logs of its shares.

    A model that was trained where a class is frequent says that class too often elsewhere: by
    Bayes' rule, by the ratio of the shares (logit adjustment: Menon et al., arXiv 2007.07314).
    """
    z = logits(site, model, records, rows)
    if cfg.own_shares == "kept" or (cfg.own_shares is None and site.training.dp):
        return z
    return z - class_shares(site).log().to(z.device)


def class_shares(site: Site) -> Tensor:
    """The shares of a party's own classes, half a record added to each. They never leave it."""
    if site.training.dp is not None:
        raise SettingsError(
            "counts of a party's records of each class are not covered by DP-SGD",
            fix='set algorithm.own_shares = "kept"',
            field="algorithm.own_shares",
        )
    counts = Counter(label_name(example) for example in site.silo.train)
    found = torch.tensor([counts[label] + 0.5 for label in site.task.labels])
    return found / found.sum()


async def agree_on_ground(
    cohort: Cohort, site: Site, cfg: Distilling, ensemble: Ensemble, *, same_model: bool = False
) -> None:
    """Stop unless all have alike: the classes in their order, D⁰, the method; perhaps the model."""
    task = [site.task.kind, list(site.task.labels), site.task.max_length]
    rules = [site.training.batch_size, site.seed, cfg.model_dump(mode="json"), ensemble.rules]
    model = site.model_settings.model_dump(mode="json") if same_model else None
    common = [*task, site.public_digest.hex(), *rules, model]
    what = "classes, public records, settings" + (" or model" if same_model else "")
    await cohort.agree(json.dumps(common).encode(), what)


def ensemble_of(
    cohort: Cohort, site: Site, cfg: Distilling, records: PublicRecords, bound: float = 1.0
) -> Ensemble:
    """The sums that the settings ask for."""
    examples, sums = cfg.releases(len(records), site.training.batch_size)
    return Ensemble(
        cohort,
        site,
        (examples, records.classes),
        sums // cfg.exchanging,
        cfg.exchanging,
        counted=cfg.counted,
        share=cfg.sample,
        bound=bound,
    )


def learn_alone(site: Site, cfg: Teaching, learner: Learner, round: Round, drawn: bool) -> None:
    """A round without an exchange: who is drawn, and a host that learns labels, trains."""
    host = site.silo.role == "host"
    if cfg.labelled if host else drawn:
        site.fit(learner.model, cfg.epochs, round, optimizer=learner.own)
    site.score(learner.model, round.number, "" if host else "local")


def distil(
    site: Site,
    cfg: Distilling,
    model: nn.Module,
    records: PublicRecords,
    targets: Tensor,
    round: Round,
    optimizer: Optimizer | None = None,  # None: a fresh one
    loss: Loss = cross_entropy,
) -> None:
    """Eqs. 7 and 8 of FedID: passes over D⁰, towards these targets."""
    optimizer = optimizer or optimizer_of(site, cfg, model)
    passes = [records.batches(round.number, epoch) for epoch in range(cfg.distill_epochs)]
    batches = list(chain.from_iterable(passes))
    targets = targets.to(site.device)
    model.train()
    with site.recorder.phase("train"):
        for done, rows in enumerate(batches):
            x, y = records.read(rows), targets[rows.to(site.device)]
            pace(optimizer, site.training, round.at(done, len(batches)))
            public_step(site, optimizer, lambda: loss(site.task.forward(model, x), y))  # noqa: B023 - called at once
