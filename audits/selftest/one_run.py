"""The one-run audit: tests a claimed ε with canaries that coin flips put into one training run.

Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, arXiv
2305.08846, Algorithm 1. It audits the *code*: the program's own DP-SGD with the run's settings, on
canaries with random labels instead of records. Each has a weight of its own on a linear model, so
only the noise hides it. More right guesses of coins than (ε, δ)-DP allows disprove ε. The tighter
bound of Gaussian DP decides no verdict, because DP-SGD's curve is only nearly Gaussian.

Finding nothing does not prove the claim: in our trials it found a tenth of the noise, and missing
clipping, at ε = 1 and 3, and three tenths of the noise barely, at ε = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.audits.attacks.shadow_models import Floats, Mask, losses, made_site
from secure_fl.audits.audit_statistics import (
    clopper_pearson,
    one_run_epsilon,
    one_run_gaussian_epsilon,
)
from secure_fl.audits.findings import AuditFinding, Prior, PublicView
from secure_fl.crypto.privacy.training_account import DpAccount
from secure_fl.errors import BudgetError
from secure_fl.learning.dp.dp_sgd import fit_privately
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.token_table import TokenTable
from secure_fl.settings import DPSettings, TaskSettings

NAME = "one-run DP audit"
ABOUT = (
    "Coin flips put made-up records into a training run, or leave them out; if the model reveals "
    "the coins better than the promised ε allows, the promise is broken."
)
CANARIES = 1000
LOUD = 10.0  # a canary's gradient, in clipping norms
GUESSED = 0.2  # share of canaries guessed to be in, and the same to be out; fixed beforehand
CONFIDENCE = 0.95
TARGET = "a linear model trained with the run's DP-SGD settings"
MEASURE = "ε that is disproved, at 95 %"
UNBOUNDED = 1e6  # a clipping norm that clips nothing

Integers = NDArray[np.int_]


@dataclass(frozen=True, slots=True)
class Build:
    """The deviation of a build from its settings, for controls in which a defect is planted.

    The noise is always `noise`·σ·C, with or without clipping.
    """

    noise: float = 1.0
    clipped: bool = True
    blind: bool = False  # trained on other coins: a null with nothing to find


SOUND, LITTLE_NOISE = Build(), Build(noise=0.1)
UNCLIPPED, BLIND = Build(clipped=False), Build(blind=True)


def one_run(
    view: PublicView, prior: Prior, build: Build = SOUND, *, count: int = CANARIES
) -> AuditFinding:
    """Audit a build of the run's DP-SGD. Success: it disproves an ε above the claimed one."""
    dp = prior.training.dp
    if dp is None:
        return _nothing(view, "the run claims no ε for records: there is no [training.dp]")
    if prior.algorithm.step_rate is not None:  # `shared_steps` tests these steps
        return _nothing(view, "not tested: this run trains by single steps, not by batches")
    count = min(count, int(0.5 / dp.delta))  # δ must stay below 1/canaries
    known, records = canaries(prior, count, dp.max_grad_norm)
    inside = flips(prior, count, "coins")
    trained_on = flips(prior, count, "other coins") if build.blind else inside
    try:
        model, claimed = train(known, records, dp, trained_on, build)
    except BudgetError as error:
        return _nothing(view, f"not tested: {error.what}")
    before, after = (losses(known.task, m, records) for m in (known.model(), model))
    return judged(view, guess_coins(before - after), inside, claimed, dp)


class Linear(nn.Module):
    """A linear classifier of canaries by number, with gradients that are always clipped."""

    def __init__(self, count: int, loudness: float) -> None:
        super().__init__()
        self.count, self.loudness = count, loudness
        self.weights = nn.Linear(count, 2, bias=False)
        nn.init.zeros_(self.weights.weight)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Compute logits, as models of transformers return them."""
        onehot = F.one_hot(input_ids[:, 0], self.count).float()
        return SimpleNamespace(logits=self.weights(self.loudness * onehot))


def canaries(prior: Prior, count: int, bound: float) -> tuple[Prior, TokenTable]:
    """Make canaries that share no weight, and a prior with their linear model and task.

    `bound` is the clipping norm.
    """
    labels = torch.from_numpy(prior.rng("canaries", "labels").integers(2, size=count))
    numbers = torch.arange(count, dtype=torch.int32).unsqueeze(1)
    records = TokenTable({"input_ids": numbers}, torch.ones(count).long(), {"labels": labels})
    task = make_task(TaskSettings(labels=("no", "yes")))
    return replace(prior, model=lambda: Linear(count, LOUD * bound), task=task), records


def flips(prior: Prior, count: int, purpose: str) -> Mask:
    """Flip a fair coin for each canary."""
    inside: Mask = prior.rng(NAME, purpose).integers(2, size=count).astype(bool)
    return inside


def train(
    prior: Prior, records: TokenTable, dp: DPSettings, inside: Mask, build: Build
) -> tuple[nn.Module, float]:
    """Train by the program's own DP-SGD; also return the ε that its accountant claims.

    Canaries that are left out keep an empty place, so the sample rate reveals nothing about the
    coins. The noise is seeded so that the report repeats; this model is never released.
    """
    passes = prior.algorithm.rounds * prior.algorithm.epochs
    units = [(row,) if put else () for row, put in enumerate(inside)]
    size = prior.training.batch_size
    claim = DpAccount("audit", dp, units, size, passes=passes)
    claimed, σ, C = claim.planned(), claim.noise_multiplier, dp.max_grad_norm
    assert claimed is not None  # noqa: S101 - passes are planned
    bound = C if build.clipped else UNBOUNDED
    changed = dp.model_copy(
        update={
            "epsilon": math.inf,
            "target_epsilon": None,
            "noise_multiplier": build.noise * σ * C / bound,
            "max_grad_norm": bound,
            "unit": "record",
            "accountant": "rdp",
            "ledger": None,
        }
    )
    training = prior.training.model_copy(update={"dp": changed})
    site = made_site(prior, training, records, "audit", prior.seed)
    site.privacy = DpAccount("audit", changed, units, size)
    return _trained(prior, site, passes), claimed


def guess_coins(scores: Floats, share: float = GUESSED) -> Integers:
    """Guess 1 ("in") where the loss fell most and -1 ("out") where it fell least, else 0.

    `share`: of the canaries, for each of the two.
    """
    order = np.argsort(scores, kind="stable")
    k = int(share * len(scores))
    coins = np.zeros(len(scores), dtype=int)
    coins[order[len(order) - k :]], coins[order[:k]] = 1, -1
    return coins


def right_guesses(coins: Integers, inside: Mask) -> int:
    """Count the right guesses."""
    return int((coins == np.where(inside, 1, -1)).sum())


def judged(
    view: PublicView, coins: Integers, inside: Mask, claimed: float, dp: DPSettings
) -> AuditFinding:
    """Compare the guesses with the coins, which nothing has read before."""
    m, r, v = len(inside), int(np.count_nonzero(coins)), right_guesses(coins, inside)
    return AuditFinding(
        NAME,
        view.role,
        TARGET,
        MEASURE,
        one_run_epsilon(m, r, v, dp.delta, CONFIDENCE),
        0.0,
        claimed,
        m,
        evidence=view.evidence,
        details={
            "canaries": m,
            "guesses": r,
            "right": v,
            "right_interval": list(clopper_pearson(v, r)),
            "claimed_epsilon": claimed,
            "delta": dp.delta,
            "most_it_could_disprove": one_run_epsilon(m, r, r, dp.delta, CONFIDENCE),
            "gaussian_epsilon": one_run_gaussian_epsilon(m, r, v, dp.delta, CONFIDENCE),
            "most_gaussian": one_run_gaussian_epsilon(m, r, r, dp.delta, CONFIDENCE),
        },
        note="finding nothing proves nothing: a third of the noise may pass undetected; "
        "gaussian_epsilon assumes Gaussian noise, which DP-SGD nearly is",
    )


def _trained(prior: Prior, site: Site, passes: int) -> nn.Module:
    generator = torch.Generator().manual_seed(int(prior.rng(NAME, "noise").integers(2**53)))
    model = prior.model().to(site.device)
    with site.surroundings():
        fit_privately(site, model, passes, generator=generator)
    return model


def _nothing(view: PublicView, reason: str) -> AuditFinding:
    return AuditFinding(
        NAME, view.role, TARGET, MEASURE, None, 0.0, math.inf, 0,
        evidence=view.evidence, note=reason,
    )  # fmt: skip
