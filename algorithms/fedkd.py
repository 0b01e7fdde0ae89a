"""FedKD: parties keep large teachers; what they share and send is a small student.

Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation.
Nature Communications 13, 2032, 2022, arXiv 2108.13323, Algorithm 1. The losses (Eqs. 1-7) are in
`distillation`, the factors (Eqs. 8 and 9, lines 8-21) in `lowrank` and `factors`; `Descent`
exchanges gradients at every step, as Algorithm 1 is printed.

Differs: the student is its teacher's first layers, not a network beside it (`tied`), so teachers
are made of what all parties learned, and only what is above these layers stays at home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.distillation import Distillation
from secure_fl.algorithms.factors import Way, exchange_of
from secure_fl.algorithms.lowrank import energy_threshold
from secure_fl.algorithms.pairing import make_pair, shared_fingerprint
from secure_fl.algorithms.updates import Update, add_, agree_on, common_and_own, moved
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import (
    Optimizer,
    backward,
    clip,
    endless,
    lots,
    make_optimizer,
)
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round
from secure_fl.settings import ModelSettings, Positive, TrainingSettings

Share = Annotated[float, Field(gt=0, le=1)]


class FedKD(Algorithm, Distillation):
    """Teachers stay at home, a student is shared; only its sealed low-rank factors travel."""

    name: Literal["fedkd"] = "fedkd"
    student_layers: Positive = 2  # the student: the first layers of the shared model
    teacher_learning_rate: Annotated[float, Field(gt=0)] | None = None  # None: a quarter of the
    # student's, training.learning_rate; the paper's Table 6 has 1/5 to 1/2.5
    factors: Way = "joint"  # per_party: as printed, and every party sees every other's factors
    energy_start: Share = 0.95  # T_start
    energy_end: Share = 0.98  # T_end
    max_rank: Positive | None = None  # of any matrix; None: as long as factors are smaller
    exchange: Literal["epoch", "gradient"] = "epoch"  # once a round, or at every step (Alg. 1)
    steps: Positive = 10  # of a round, with exchange = "gradient"
    mean: Literal["records", "parties"] = "records"  # parties: g/N, as line 22

    @model_validator(mode="after")
    def _rising(self) -> FedKD:
        if self.energy_start > self.energy_end:
            raise ValueError("an energy_start up to energy_end: precision grows with training")
        return self

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """One exchange in each round, or one at each of its steps."""
        each = self.steps if self.exchange == "gradient" else 1
        fit = Demands.of_fit(self, training)
        return replace(fit, exchanges=self.rounds * each, steps=self.steps)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The student, and the teacher that stays at home."""
        return (self.student(model), model)

    def student(self, model: ModelSettings) -> ModelSettings:
        """The first layers of the shared model."""
        return model.model_copy(update={"layers": self.student_layers})

    @property
    def caveat(self) -> str:
        """What a reader of the result must know about who sees what."""
        if self.factors != "per_party":
            return ""
        records = " and how many records it has" if self.mean == "records" else ""
        return (
            f"Every party sees the factors of every other party's update{records} "
            "(factors = per_party)."
        )


async def fedkd(cohort: Cohort, site: Site, cfg: FedKD) -> None:
    """The party program."""
    pair = make_pair(site, cfg)
    common, own = common_and_own(site, pair.student)
    Θ = common.weights()
    way = exchange_of(cfg.factors, cohort, site.recorder, Θ, site.seed, cfg.max_rank)
    weight = site.records if cfg.mean == "records" else 1.0
    descent = Descent(site, pair, Θ)
    await cohort.agree(shared_fingerprint(site, cfg), "task")
    async for round in cohort.rounds(
        cfg.rounds,
        keep={
            "teacher": pair.teacher,
            "W": pair.W,
            "head": own,
            "residuals": way.personal,
            "optimizer": descent.home,
        },
        shared={"student": common, "factors": way.shared, "student_optimizer": descent.shared},
    ):
        T = energy_threshold(cfg.energy_start, cfg.energy_end, round.progress)  # Eq. 9
        if cfg.exchange == "epoch":
            # Differs: what travels is how an epoch moved the student, as in the authors' code.
            g = moved(pair.student, partial(descent.fit, cfg.epochs, round), own.names)
            add_(pair.student, await way.mean(g, weight, T))  # lines 8-22
        else:
            batches = lots(endless(site), site.training.accumulate)
            for done, lot in enumerate(islice(batches, cfg.steps)):
                g = descent.gradients(lot)  # line 6
                g = await way.mean(g, weight, T)  # lines 7-22
                descent.step(g, round.at(done, cfg.steps))
        await agree_on(cohort, pair.student, Θ)
        site.score(pair.student, round.number, "student")
        site.score(pair.teacher, round.number)  # "the teacher model is used for label inference"
    site.deliver(pair.student, "student", shared=not own.names)
    site.deliver(pair.teacher, shared=False)


def losses(pair: nn.Module, batch: Batch) -> Tensor:
    """Lines 25-28: both models' losses, one per record."""
    each: Tensor = pair(batch)
    return each


class Moments:
    """An optimiser's state of some weights: the shared ones', or this party's own."""

    def __init__(self, optimizer: Optimizer, weights: Iterable[Tensor]) -> None:
        self._optimizer, self._weights = optimizer, list(weights)

    def forget(self) -> None:
        """Begin afresh: what other weights these become, by a sum, is not what was followed."""
        for weight in self._weights:
            self._optimizer.state.pop(weight, None)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints; empty before the first step."""
        state = self._optimizer.state
        return {str(at): dict(state[w]) for at, w in enumerate(self._weights) if w in state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for at, found in state.items():
            self._optimizer.state[self._weights[int(at)]] = dict(found)


class Descent:
    """One optimiser for a pair, that may take the shared weights' gradients from the cohort."""

    def __init__(self, site: Site, pair: nn.Module, shared: Mapping[str, Tensor]) -> None:
        self._site, self._pair, self._shared = site, pair, shared
        self._optimizer = make_optimizer(pair, site.training)
        common = {id(w) for w in shared.values()}
        home = [w for w in trainable(pair).values() if id(w) not in common]
        self.shared = Moments(self._optimizer, shared.values())
        self.home = Moments(self._optimizer, home)

    def fit(self, epochs: int, round: Round) -> None:
        """Train the pair alone; what a sum will replace is followed through this round only."""
        self._site.fit(self._pair, epochs, round, objective=losses, optimizer=self._optimizer)
        self.shared.forget()

    def gradients(self, batches: Sequence[Batch]) -> Update:
        """The gradients of the shared weights; all others' wait in place for `step`."""
        with self._site.recorder.phase("train"):
            self._pair.train()
            self._optimizer.zero_grad(set_to_none=True)
            backward(self._site, self._pair, self._optimizer, batches, losses)
            clip(self._site, self._optimizer)
            return {
                name: torch.zeros_like(w) if w.grad is None else w.grad.detach().clone()
                for name, w in self._shared.items()
            }

    def step(self, g: Update, progress: float) -> None:
        """Move everything: the shared weights by the cohort's gradients, the others by their own.

        Every party takes the same step with the same optimiser, so shared weights stay equal.
        """
        with self._site.recorder.phase("train"):
            for name, weight in self._shared.items():
                weight.grad = g[name]
            pace(self._optimizer, self._site.training, progress)
            self._optimizer.step()
