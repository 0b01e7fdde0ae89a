"""The local loop: a party trains a model on its own records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from secure_fl.errors import ModelError, SettingsError, TrainingError
from secure_fl.settings import TrainingSettings

if TYPE_CHECKING:
    from secure_fl.silo import Site

REPORTS_PER_ROUND = 4


def pick_device(name: str) -> torch.device:
    """The device of this setting; "auto" takes an accelerator where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("no CUDA device here", fix='set training.device = "auto" or "cpu"')
    if name == "mps" and not torch.backends.mps.is_available():
        raise ModelError("no Apple GPU here", fix='set training.device = "auto" or "cpu"')
    return torch.device(name)


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimiser of the settings over the parameters that are trained."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )


def fit(site: Site, model: nn.Module, epochs: int) -> float:
    """Train for whole passes over the site's records; return the mean loss."""
    settings = site.training
    optimizer = make_optimizer(model, settings)
    steps = epochs * -(-len(site.train) // settings.batch_size)
    report_every = max(1, steps // REPORTS_PER_ROUND)
    total, done = torch.zeros((), device=site.device), 0
    model.train()
    for _ in range(epochs):
        for batch in site.train.batches(settings.batch_size, site.batches_rng, site.device):
            total += step(site, model, optimizer, batch)
            done += 1
            if done % report_every == 0:
                loss = float(total) / done
                _require_finite(loss, done)
                site.recorder.event(
                    "train", round=site.recorder.round, step=done, steps=steps, loss=loss
                )
    loss = float(total) / max(done, 1)
    _require_finite(loss, done)
    return loss


def step(
    site: Site, model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """One optimiser step; returns the loss without waiting for the device."""
    settings = site.training
    if settings.dp is not None:
        raise SettingsError(
            "this algorithm makes steps of its own, which DP-SGD does not protect",
            fix="remove training.dp, or use an algorithm that trains by site.fit",
            field="training.dp",
        )
    optimizer.zero_grad(set_to_none=True)
    bf16 = settings.precision == "bfloat16"
    with torch.autocast(site.device.type, dtype=torch.bfloat16, enabled=bf16):
        loss = site.task.loss(site.task.forward(model, batch), batch)
    loss.backward()  # type: ignore[no-untyped-call]
    if settings.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
    optimizer.step()
    return loss.detach()


def _require_finite(loss: float, step: int) -> None:
    if not torch.isfinite(torch.tensor(loss)):
        raise TrainingError(
            f"the training loss is {loss}",
            fix="lower training.learning_rate, set max_grad_norm, or look at the data",
            step=step,
        )
