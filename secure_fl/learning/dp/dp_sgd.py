"""DP-SGD: local training after which no single record (or patient) is recognisable in the result.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy.
CCS 2016, arXiv 1607.00133, Algorithm 1, by Opacus (arXiv 2109.12298); ghost clipping after Li,
Tramèr, Liang, Hashimoto, arXiv 2110.05679. What bounds a record is the norm of *its* gradient, so
a loss must give one value per record that depends on no other record.

A repeated round sends the saved result again, so nothing is spent a second time: a result of
DP-SGD may be released any number of times. It is therefore on disk before it leaves, and a session
that starts the same training from the same weights loads it. `runs.party_checkpoints` decides over
which parties its sum may be opened, as for inputs without noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.crypto.privacy.training_account import DpAccount, Spending, TrainingStore
from secure_fl.errors import BudgetError, ModelError, SettingsError, TrainingError
from secure_fl.events import PrivacySpent, UpdateResent, Warned
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.dp.private_model import (
    Bounds,
    Clipping,
    Loss,
    PrivateModel,
    ids_per_record,
    no_dropout,
    privately,
    require_supported,
    row_gradients,
)
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches, secret_dropout
from secure_fl.learning.learning_rates import ALONE, pace
from secure_fl.learning.local_training import (
    Objective,
    Optimizer,
    make_optimizer,
    report,
    reports,
    task_loss,
)
from secure_fl.learning.site_context import TrainingContext
from secure_fl.learning.tasks.batches import Batch, all_present
from secure_fl.party.rounds import Round


def fit_privately(
    site: TrainingContext,
    model: nn.Module,
    epochs: int,
    round: Round = ALONE,
    objective: Objective | None = None,
    steps: int | None = None,
    optimizer: Optimizer | None = None,
    *,
    generator: torch.Generator | None = None,
) -> float:
    """Train for `epochs` passes over the site's units; reserve all steps before the first.

    Return NaN: no ε covers the loss, so only the party's own log has it. `objective`: gives one
    value per record, from that record alone. `optimizer`: may outlive the round, because its state
    consists of noised gradients and costs no ε. `generator`: makes the noise repeatable, for tests.
    """
    privacy = account_of(site, steps)
    saved = SavedRound.of(privacy, model, epochs, site.recorder.round)
    if saved is not None and saved.restore(model, optimizer, epochs):
        site.recorder.event(UpdateResent(round=site.recorder.round))
        return math.nan
    coins = Coins.secret() if generator is None else Coins.of(generator)
    if (text := privacy.warning()) is not None:
        site.recorder.event(Warned(code="noise", text=text))
    with privacy.spend(epochs, site.recorder.round) as spending:
        announce(site, spending, privacy.settings.delta)
        training = optimizer or make_optimizer(model, site.training)
        model.train()
        with secret_dropout(coins, site.device):
            batches = PoissonBatches(len(privacy.units), privacy.steps_per_pass, coins)
            loss = objective or task_loss(site)
            bounds = _bounds(site, model, loss, spending)
            with privately(model, training, loss, bounds, batches, state=privacy.opacus) as private:
                _run(site, private, epochs, round, privacy)
                privacy.opacus = _agreed(private, privacy.opacus, spending.event.steps)
    _require_finite(model, site)
    if saved is not None:
        saved.save(model, optimizer)
    return math.nan


@dataclass(frozen=True, slots=True)
class SavedRound:
    """One DP-SGD training in the store, identified by its round and everything it starts from."""

    store: TrainingStore
    privacy: DpAccount
    round: int
    key: str

    @classmethod
    def of(cls, privacy: DpAccount, model: nn.Module, passes: int, round: int) -> SavedRound | None:
        """Identify a training; None: nothing is stored beyond this process."""
        if privacy.trainings is None:
            return None
        digest = sha256(f"{privacy.trained_in(round)} {passes}\n".encode())
        for name, weight in trainable(model).items():
            digest.update(f"{name} {tuple(weight.shape)}\n".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return cls(privacy.trainings, privacy, round, digest.hexdigest()[:32])

    @torch.no_grad()
    def restore(self, model: nn.Module, optimizer: Optimizer | None, passes: int) -> bool:
        """Set the model to the result of an earlier session; False: there is none."""
        state = self.store.find(self.round, self.key)
        if state is None:
            return False
        self.privacy.spent_before(state["account"], passes)
        for name, weight in trainable(model).items():
            weight.copy_(state["weights"][name])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
        return True

    def save(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Write the result to disk before it leaves; `optimizer`: one that outlives the round."""
        weights = {name: weight.detach() for name, weight in trainable(model).items()}
        state = {"weights": weights, "account": self.privacy.state_dict()}
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        self.store.keep(self.round, self.key, state)


def account_of(site: TrainingContext, steps: int | None = None) -> DpAccount:
    """The account of the site's training; refuse steps, or a site without one."""
    if steps is not None:
        raise SettingsError(
            "DP-SGD is accounted for in whole passes over the records",
            fix="remove algorithm.steps, and set algorithm.epochs",
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


def _bounds(site: TrainingContext, model: nn.Module, loss: Objective, spending: Spending) -> Bounds:
    """The clipping and noise of this training; warn where records must be clipped one by one."""
    dp = account_of(site).settings
    wanted: Clipping = "per_sample" if dp.unit == "patient" else dp.clipping
    clipping = checked_clipping(model, loss, checked_records(site), wanted)
    if clipping != wanted:
        text = f"DP-SGD takes records one by one, which is slower: {type(model).__name__} needs it"
        site.recorder.event(Warned(code="one by one", text=text))
    return Bounds(dp.max_grad_norm, spending.event.noise_multiplier, dp.accountant, clipping)


def announce(site: TrainingContext, spending: Spending, delta: float) -> None:
    """Log the reserved steps, their noise and their ε."""
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


def _run(
    site: TrainingContext, private: PrivateModel, epochs: int, round: Round, privacy: DpAccount
) -> None:
    steps = epochs * privacy.steps_per_pass
    total, seen, done = torch.zeros((), device=site.device), 0, 0
    for _ in range(epochs):
        for drawn in private.batches:
            pace(private.optimizer, site.training, round.at(done, steps))
            losses = _step(site, private, drawn, privacy)
            losses = losses[torch.isfinite(losses)]
            total, seen, done = total + losses.sum(), seen + len(losses), done + 1
            if reports(done, steps):
                report(site, float(total) / max(seen, 1), done, steps)
    warn_of_lost(site, private.lost)


def warn_of_lost(site: TrainingContext, lost: int) -> None:
    """Log how many gradients were no numbers; an error would show it to all hospitals."""
    if lost:
        text = f"{lost} gradients of records were infinite or not a number, and counted as zero"
        fix = "lower training.learning_rate, or look at the data"
        site.recorder.event(Warned(code="lost gradients", text=f"{text}: {fix}"))


def _step(
    site: TrainingContext, private: PrivateModel, drawn: Sequence[int], privacy: DpAccount
) -> Tensor:
    """Make one step on the drawn units, a part at a time; return the losses of their records."""
    torch.manual_seed(private.coins.seed())  # a guessed dropout mask reveals no other step's
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
    """The state of Opacus' accountant; refuse it if it counted other steps than were reserved."""
    after: dict[str, object] = dict(private.accountant.state_dict())
    counted = _count(after) - (_count(before) if before else 0)
    if counted != steps:
        raise BudgetError(
            f"{steps} steps were reserved, and {counted} were made: the spent ε is unknown",
            fix="do not use this round's model; report this as a bug",
            reason="step-count",
        )
    return after


def _count(state: dict[str, object]) -> int:
    history = state["history"]
    assert isinstance(history, list)  # noqa: S101 - Opacus': (σ, q, steps)
    return sum(int(entry[2]) for entry in history)


def _require_finite(model: nn.Module, site: TrainingContext) -> None:
    """Refuse to send noised weights that are no numbers; no record can make them so alone."""
    for parameter in model.parameters():
        if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
            raise _diverged(site, "training made weights that are infinite or not a number")


def _diverged(site: TrainingContext, what: str) -> TrainingError:
    return TrainingError(
        what,
        fix="lower training.learning_rate, or look at the data; the steps are spent",
        party=site.name,
        round=site.recorder.round,
    )


def checked_records(site: TrainingContext) -> Batch:
    """Two records to check gradients on; with windows, one of them has the most."""
    count, longest = len(site.train), 0
    if site.task.windows > 1:
        longest = int(site.train.sizes().argmax())
    pair = [longest, (longest - 1) % count][: site.max_batch]
    return site.train.batch(pair, None, site.device)


TOLERANCE = 1e-3  # of the bound: float32 differs by 1e-6, a confusion of two records by 1
FAILURES = (ModelError, RuntimeError, AttributeError, LookupError, TypeError, ValueError)


def checked_clipping(model: nn.Module, loss: Loss, batch: Batch, clipping: Clipping) -> Clipping:
    """Return this kind of clipping, or "one_by_one" if its gradients differ from autograd's."""
    require_supported(model)
    rows = range(len(next(iter(batch.values()))))
    if len(rows) < 2:  # one record shows no confusion, and gains nothing from batches
        return "one_by_one"
    with no_dropout(model):
        if not all(_records_first(model, loss, batch, count) for count in (1, len(rows))):
            return "one_by_one"
        slopes = [row_gradients(model, loss, batch, row)[1] for row in rows]
        flat = torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in slopes])
        norms = flat.norm(dim=1, keepdim=True)
        C = float(norms.min()) / 2  # all are clipped, so that no record can replace another
        try:
            clipped = _clipped(model, loss, batch, Bounds(C, clipping=clipping))
        except FAILURES:
            return "one_by_one"
    off = float((clipped - (flat / norms).sum(0) * C).norm())
    return clipping if off <= TOLERANCE * C else "one_by_one"


def _records_first(model: nn.Module, loss: Loss, batch: Batch, rows: int) -> bool:
    """Check that the first dimension of every trained layer's input counts records.

    This finds a table that all records share, however little it contributes to a gradient.
    """
    sizes: set[int] = set()

    def note(_: nn.Module, args: tuple[Any, ...]) -> None:
        sizes.add(len(args[0]) if args else 0)

    undo = [ids_per_record(model)]
    for module in model.modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            undo.append(module.register_forward_pre_hook(note).remove)
    some, windows = all_present({name: tensor[:rows] for name, tensor in batch.items()})
    try:
        with torch.no_grad():
            loss(model, some)
    finally:
        for remove in undo:
            remove()
    return sizes == {rows * windows}


def _clipped(model: nn.Module, loss: Loss, batch: Batch, bounds: Bounds) -> torch.Tensor:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    batches = PoissonBatches(len(next(iter(batch.values()))), 1, Coins.secret())
    with privately(model, optimizer, loss, bounds, batches) as private:
        private.backward(batch)
        return private.summed()
