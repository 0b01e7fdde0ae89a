"""DP-SGD: a party trains so that no one record (or patient) can be told from the result.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy.
CCS 2016, arXiv 1607.00133, Algorithm 1, by Opacus (arXiv 2109.12298); ghost clipping after Li,
Tramèr, Liang, Hashimoto, arXiv 2110.05679. What bounds a record is the norm of *its* gradient, so
a loss must give one value per record that depends on no other record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from secure_fl.errors import BudgetError, SettingsError, TrainingError
from secure_fl.events import PrivacySpent, TrainingProgress, UpdateResent, Warned
from secure_fl.learning.dp.kept import Training
from secure_fl.learning.dp.model import Bounds, Clipping, PrivateModel, privately
from secure_fl.learning.dp.randomness import Coins, PoissonBatches, secret_dropout
from secure_fl.learning.dp.sound import sound
from secure_fl.learning.schedule import ALONE, pace
from secure_fl.learning.training import (
    REPORTS_PER_ROUND,
    Objective,
    Optimizer,
    make_optimizer,
    task_loss,
)
from secure_fl.party.rounds import Round

if TYPE_CHECKING:
    from secure_fl.crypto.privacy.training_account import DpAccount, Spending
    from secure_fl.learning.site import Site


def fit_privately(
    site: Site,
    model: nn.Module,
    epochs: int,
    round: Round = ALONE,
    objective: Objective | None = None,
    steps: int | None = None,
    optimizer: Optimizer | None = None,
    *,
    generator: torch.Generator | None = None,
) -> float:
    """Run the steps of `epochs` passes over the site's units, reserved before the first of them.

    `objective`: what is minimised, in place of the task's loss; one value per record, from that
    record alone. Returns NaN: no ε covers the loss, so nothing that is sent may depend on it. The
    party's own log has it. An optimiser may outlive the round: all that it remembers are gradients
    with their noise, so its state costs no ε; nor do rates, which follow from public progress. In a
    round that is repeated it takes what it came to before (`kept`). A generator makes noise that
    can be repeated, which is for tests only.
    """
    privacy = _account(site, steps)
    number = site.recorder.round
    training = Training.of(privacy, model, epochs, number)
    if training is not None and training.taken(model, optimizer, epochs):
        site.recorder.event(UpdateResent(round=number))
        return math.nan
    lasting = optimizer
    coins = Coins.secret() if generator is None else Coins.of(generator)
    batches = PoissonBatches(len(privacy.units), privacy.steps_per_pass, coins)
    dp, loss = privacy.settings, objective or task_loss(site)
    with privacy.spend(epochs, number) as spending:
        _announce(site, spending, dp.delta)
        optimizer = optimizer or make_optimizer(model, site.training)
        model.train()
        with secret_dropout(coins, site.device):
            wanted: Clipping = "per_sample" if dp.unit == "patient" else dp.clipping
            σ, clipping = spending.event.noise_multiplier, _sound(site, model, loss, wanted)
            bounds = Bounds(dp.max_grad_norm, σ, dp.accountant, clipping)
            made = privately(model, optimizer, loss, bounds, batches, state=privacy.opacus)
            with made as private:
                _run(site, private, epochs, round, privacy)
                privacy.opacus = _agreed(private, privacy.opacus, spending.event.steps)
    _require_finite(model, site)
    if training is not None:
        training.keep(model, lasting)
    return math.nan


def _account(site: Site, steps: int | None) -> DpAccount:
    """What pays for the site's steps; refused where they could not be accounted for."""
    if steps is not None:
        raise SettingsError(
            "DP-SGD is accounted for in whole passes over the records",
            fix="leave algorithm.steps out, and set algorithm.epochs",
            party=site.name,
            field="algorithm.steps",
        )
    if site.privacy is None or site.task.head == "ranking":
        raise SettingsError(
            "this site cannot train by DP-SGD",
            fix="give the site a `DpAccount`, and a task of texts or sentences",
            party=site.name,
            field="training.dp",
        )
    return site.privacy


def _sound(site: Site, model: nn.Module, loss: Objective, clipping: Clipping) -> Clipping:
    """The way of clipping, or records one by one where the model needs that; it is told then."""
    found = sound(
        model, loss, site.train.batch([0, -1][: site.at_once(2)], None, site.device), clipping
    )
    if found != clipping:
        text = f"DP-SGD takes records one by one, which is slower: {type(model).__name__} needs it"
        site.recorder.event(Warned(code="one by one", text=text))
    return found


def _announce(site: Site, spending: Spending, delta: float) -> None:
    site.recorder.event(
        PrivacySpent(
            round=site.recorder.round,
            noise_multiplier=spending.event.noise_multiplier,
            sample_rate=spending.event.sample_rate,
            steps=spending.event.steps,
            epsilon=spending.epsilon,
            epsilon_planned=spending.planned,
            delta=delta,
        )
    )


def _run(site: Site, private: PrivateModel, epochs: int, round: Round, privacy: DpAccount) -> None:
    steps = epochs * privacy.steps_per_pass
    report_every = max(1, steps // REPORTS_PER_ROUND)
    total, seen, done = torch.zeros((), device=site.device), 0, 0
    for _ in range(epochs):
        for drawn in private.batches:
            pace(private.optimizer, site.training, round.at(done, steps))
            losses = _step(site, private, drawn, privacy)
            total, seen, done = total + losses.sum(), seen + len(losses), done + 1
            if done % report_every == 0:
                loss = float(total) / max(seen, 1)
                if not math.isfinite(loss):
                    raise _diverged(site, f"the training loss is {loss}").at(step=done)
                number = site.recorder.round
                progress = TrainingProgress(round=number, step=done, steps=steps, loss=loss)
                site.recorder.event(progress)


def _step(site: Site, private: PrivateModel, drawn: Sequence[int], privacy: DpAccount) -> Tensor:
    """One step on the drawn units, a part at a time; returns the losses of their records."""
    torch.manual_seed(private.coins.seed())  # no two steps share a guess at their dropout
    size = site.at_once(privacy.settings.physical_batch or max(len(drawn), 1))
    parts = [drawn[start : start + size] for start in range(0, len(drawn), size)] or [[]]
    losses = []
    for part in parts:
        members = [privacy.units[unit] for unit in part]
        rows = [row for unit in members for row in unit]
        owners = None
        if privacy.settings.unit == "patient":
            sizes = torch.tensor(
                [len(unit) for unit in members], dtype=torch.long, device=site.device
            )
            owners = torch.repeat_interleave(sizes)
        batch = site.train.batch(rows, site.batches_rng, site.device) if rows else None
        losses.append(private.step(batch, owners, last=part is parts[-1]))
    return torch.cat(losses)


def _agreed(
    private: PrivateModel, before: dict[str, object] | None, steps: int
) -> dict[str, object]:
    """Return the state of Opacus' accountant, which must have counted what was reserved."""
    after: dict[str, object] = dict(private.accountant.state_dict())
    counted = _count(after) - (_count(before) if before else 0)
    if counted != steps:
        raise BudgetError(
            f"{steps} steps were reserved, and {counted} were made: what was spent is not known",
            fix="do not use this round's model; report this as a bug",
            reason="step-count",
        )
    return after


def _count(state: dict[str, object]) -> int:
    history = state["history"]
    assert isinstance(history, list)  # noqa: S101 - Opacus': (σ, q, steps)
    return sum(int(entry[2]) for entry in history)


def _require_finite(model: nn.Module, site: Site) -> None:
    """Let no weight out that a single record made infinite."""
    for parameter in model.parameters():
        if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
            raise _diverged(site, "training made weights that are no numbers")


def _diverged(site: Site, what: str) -> TrainingError:
    return TrainingError(
        what,
        fix="lower training.learning_rate, or look at the data; the steps are spent",
        party=site.name,
        round=site.recorder.round,
    )
