"""FedKD: parties keep large teachers; they share and send a small student.

Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation.
Nature Communications 13, 2032, 2022, arXiv 2108.13323, Algorithm 1. The losses (Eqs. 1-7) are in
`mutual_distillation`, the factors (Eqs. 8 and 9, lines 8-21) in `lowrank` and `factor_exchange`.

Differs: the student is its teacher's first layers, not a separate network (`tied`). So teachers
contain the layers that all parties train together, and only the layers above them stay local.

`shared_teachers` is not in the paper, whose teachers know one hospital's records each: adapters of
teacher and student travel in one sealed sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd.factor_exchange import factor_exchange
from secure_fl.algorithms.fedkd.lowrank import energy_threshold
from secure_fl.algorithms.fedkd.mutual_distillation import Pair, losses, make_pair
from secure_fl.algorithms.fedkd.settings import FedKD
from secure_fl.algorithms.updates import (
    Update,
    add_,
    agree_on,
    digest,
    local_names,
    shared_and_local,
    update_by,
    weighted_mean,
)
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

APART = {"tied": False, "mutual": False, "hidden": False}  # of a student beside its teacher


async def fedkd(cohort: Cohort, site: Site, cfg: FedKD) -> None:
    """Run FedKD at one party."""
    if cfg.teachers != "private":
        await shared_teachers(cohort, site, cfg)
        return
    pair = make_pair(site, cfg)
    shared, local = shared_and_local(site, pair.student)
    Θ = shared.weights()
    exchange = factor_exchange(cfg.factors, cohort, site.recorder, Θ, site.seed, cfg.max_rank)
    weight = site.records if cfg.mean == "records" else 1.0
    descent = Descent(site, pair, Θ)
    await cohort.agree(shared_fingerprint(site, cfg), "task")
    async for round in cohort.rounds(
        cfg.rounds,
        keep={
            "teacher": pair.teacher,
            "W": pair.W,
            "head": local,
            "residuals": exchange.personal,
            "optimizer": descent.local,
        },
        shared={"student": shared, "factors": exchange.shared, "student_optimizer": descent.shared},
    ):
        T = energy_threshold(cfg.energy_start, cfg.energy_end, round.progress)  # Eq. 9
        if cfg.exchange == "epoch":
            # Differs: parties send the student's update of an epoch, as in the authors' code.
            g = update_by(Θ, partial(descent.fit, cfg.epochs, round))
            add_(pair.student, await exchange.mean(g, weight, T))  # lines 8-22
        else:
            batches = lots(endless(site), site.training.accumulate)
            for done, group in enumerate(islice(batches, cfg.steps)):
                g = descent.gradients(group)  # line 6
                g = await exchange.mean(g, weight, T)  # lines 7-22
                descent.step(g, round.at(done, cfg.steps))
        await agree_on(cohort, pair.student, Θ)
        site.score(pair.student, round.number, "student")
        site.score(pair.teacher, round.number)  # "the teacher model is used for label inference"
    site.deliver(pair.student, "student", shared=not local.names)
    site.deliver(pair.teacher, shared=False)


def shared_fingerprint(site: Site, cfg: FedKD) -> bytes:
    """Encode the task, student and method, which all parties must share. Teachers may differ."""
    task, shared = site.task, site.shared_model_settings.model_dump(mode="json")
    labels = [] if site.local_head else list(task.labels)
    common = [task.kind, labels, task.max_length, shared, cfg.model_dump(mode="json")]
    return json.dumps(common).encode()


class Moments:
    """An optimiser's state for some weights: the shared ones, or this party's own."""

    def __init__(self, optimizer: Optimizer, weights: Iterable[Tensor]) -> None:
        self._optimizer, self._weights = optimizer, list(weights)

    def forget(self) -> None:
        """Drop the moments: aggregation replaces these weights."""
        for weight in self._weights:
            self._optimizer.state.pop(weight, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments for a checkpoint; empty before the first step."""
        state = self._optimizer.state
        return {str(at): dict(state[w]) for at, w in enumerate(self._weights) if w in state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the moments from `state_dict`."""
        self.forget()
        for at, moments in state.items():
            self._optimizer.state[self._weights[int(at)]] = dict(moments)


class Descent:
    """One optimiser for a pair, which can take the shared weights' gradients from the cohort."""

    def __init__(self, site: Site, pair: nn.Module, shared: Mapping[str, Tensor]) -> None:
        self._site, self._pair, self._shared = site, pair, shared
        self._optimizer = make_optimizer(pair, site.training)
        common = {id(w) for w in shared.values()}
        local = [w for w in trainable(pair).values() if id(w) not in common]
        self.shared = Moments(self._optimizer, shared.values())
        self.local = Moments(self._optimizer, local)

    def fit(self, epochs: int, round: Round) -> None:
        """Train the pair locally, then drop the moments of weights that a sum will replace."""
        self._site.fit(self._pair, epochs, round, objective=losses, optimizer=self._optimizer)
        self.shared.forget()

    def gradients(self, batches: Sequence[Batch]) -> Update:
        """Return the shared weights' gradients; those of other weights stay in place for `step`."""
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
        """Move the shared weights by the cohort's gradients, and all others by their own.

        Every party takes the same step with the same optimiser, so shared weights stay equal.
        """
        with self._site.recorder.phase("train"):
            for name, weight in self._shared.items():
                weight.grad = g[name]
            pace(self._optimizer, self._site.training, progress)
            self._optimizer.step()


async def shared_teachers(cohort: Cohort, site: Site, cfg: FedKD) -> None:
    """Run FedKD with shared or personal teachers at one party.

    Public are the checkpoint, which is frozen and never sent, and the first adapters, which are
    drawn alike at all hospitals:

        teacher = W + adapters of [model.adapter] + head
        student = first layers of W + adapters of student_rank + head     # beside the teacher
        each round, at each hospital: train both by Eqs. 1, 2 and 4, with a fresh optimiser
        one sealed sum of nᵢ·Δᵢ and nᵢ, Δᵢ the moves of both models' adapters and heads

    Adapters are factors of a low rank already, so there is no SVD and no second sum. Eqs. 3 and 5
    are off, since a student knows nothing that its teacher does not.

    A personal teacher has an adapter of twice the rank, B·A = B₁·A₁ + B₂·A₂. The first half is
    summed, the second stays at its hospital.
    """
    pair = make_pair(site, cfg.model_copy(update=APART))
    shared, own = shared_and_own(site, pair, cfg)
    weight = site.records if cfg.mean == "records" else 1.0
    await cohort.agree(site.fingerprint() + cfg.model_dump_json().encode(), "task")
    async for round in cohort.rounds(cfg.rounds, keep={"own": own}, shared={"pair": shared}):
        Δ = update_by(shared.views, partial(site.fit, pair, cfg.epochs, round, objective=losses))
        shared.add(await weighted_mean(cohort, Δ, weight))
        await cohort.agree(digest(shared.state_dict()), "model")
        site.score(pair.student, round.number, "student")
        site.score(pair.teacher, round.number)
    site.deliver(pair.student, "student", shared=not site.local_head)
    site.deliver(pair.teacher, shared=not own.views)


class Views:
    """Parts of a pair's trained weights, as state for checkpoints and late joiners."""

    def __init__(self, views: Mapping[str, Tensor]) -> None:
        self.views = views  # they share the weights' memory

    def add(self, Δ: Update) -> None:
        """Add Δ in place."""
        for name, δ in Δ.items():
            self.views[name].add_(δ)

    def state_dict(self) -> dict[str, Any]:
        """Return the values for a checkpoint."""
        return {name: view.contiguous() for name, view in self.views.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the values from `state_dict`."""
        for name, view in self.views.items():
            view.copy_(state[name])


def shared_and_own(site: Site, pair: Pair, cfg: FedKD) -> tuple[Views, Views]:
    """Split the weights into those that are summed and those of this hospital alone.

    The teacher's keep their names, as in FedAvg of its adapters; audits find them by name.
    """
    teacher = {name: weight.detach() for name, weight in trainable(pair.teacher).items()}
    student = {f"student.{n}": weight.detach() for n, weight in trainable(pair.student).items()}
    own = {name: teacher.pop(name) for name in local_names(site, pair.teacher)}
    own |= {f"student.{n}": student.pop(f"student.{n}") for n in local_names(site, pair.student)}
    for name, weight in teacher.items() if cfg.teachers == "personal" else ():
        for factor, dim in ((".lora_A.", 0), (".lora_B.", 1)):
            if factor in name:
                teacher[name], own[name] = torch.chunk(weight, 2, dim)
    return Views(teacher | student), Views(own)
