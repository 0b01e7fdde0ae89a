"""FedKD with shared teachers: adapters of teacher and student travel in one sealed sum.

Not in the paper, whose teachers know one hospital's records each. Public are the checkpoint, which
is frozen and never sent, and the first adapters, which are drawn alike at all hospitals:

    teacher = W + adapters of [model.adapter] + head
    student = first layers of W + adapters of student_rank + head     # beside the teacher
    each round, at each hospital: train both by Eqs. 1, 2 and 4, with a fresh optimiser
    one sealed sum of nᵢ·Δᵢ and nᵢ, Δᵢ the moves of both models' adapters and heads

Adapters are factors of a low rank already, so there is no SVD and no second sum. Eqs. 3 and 5 are
off, since a student knows nothing that its teacher does not.

A personal teacher has an adapter of twice the rank, B·A = B₁·A₁ + B₂·A₂. The first half is summed,
the second stays at its hospital.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd.mutual_distillation import Pair, losses, make_pair
from secure_fl.algorithms.fedkd.settings import FedKD
from secure_fl.algorithms.updates import Update, digest, local_names, weighted_mean
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round

APART = {"tied": False, "mutual": False, "hidden": False}


async def shared_teachers(cohort: Cohort, site: Site, cfg: FedKD) -> None:
    """Run FedKD with shared or personal teachers at one party."""
    pair = make_pair(site, cfg.model_copy(update=APART))
    shared, own = shared_and_own(site, pair, cfg)
    weight = site.records if cfg.mean == "records" else 1.0
    await cohort.agree(site.fingerprint() + cfg.model_dump_json().encode(), "task")
    async for round in cohort.rounds(cfg.rounds, keep={"own": own}, shared={"pair": shared}):
        Δ = moves(site, pair, shared, cfg.epochs, round)
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


def moves(site: Site, pair: nn.Module, shared: Views, epochs: int, round: Round) -> Update:
    """Train both models; return the shared parts' moves, and restore these parts."""
    before = {name: view.clone() for name, view in shared.views.items()}
    site.fit(pair, epochs, round, objective=losses)
    Δ = {name: view - before[name] for name, view in shared.views.items()}
    shared.load_state_dict(before)
    return Δ


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
