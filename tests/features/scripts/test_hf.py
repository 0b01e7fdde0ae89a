"""The callback of transformers.Trainer: means after epochs and steps, and models that differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from secure_fl import ScriptCohort, simulate
from secure_fl.errors import Disagreement, SettingsError
from secure_fl.features.scripts.hf import FederatedCallback
from tests.support.raising import raises

PLAIN = {"mode": "none", "bits": 24}


class Line(torch.nn.Module):
    """A linear model, as Trainer calls one."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((2,), first))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x @ self.w - labels).square().mean()}


def training(folder: Path, every: Any, first: Callable[[int], float] = lambda k: 0.0) -> Any:
    """A script that trains with plain gradient descent, and returns the weights."""

    def main(cohort: ScriptCohort) -> list[float]:
        draw = torch.Generator().manual_seed(cohort.index)
        x = torch.randn(8, 2, generator=draw)
        records = [{"x": one, "labels": one.sum()} for one in x]
        model = Line(first(cohort.index))
        arguments = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=4,
            per_device_train_batch_size=4,
            learning_rate=0.05,
            optim="sgd",
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(model, arguments, train_dataset=records)
        trainer.add_callback(FederatedCallback(cohort, every=every))
        trainer.train()
        return [*model.w.tolist(), float(trainer.state.global_step)]

    return main


@pytest.mark.parametrize(("every", "rounds", "steps"), [("epoch", 3, 6), (2, 4, 8), (1, 5, 5)])
def test_sites_end_with_one_model(tmp_path: Path, every: Any, rounds: int, steps: int) -> None:
    """Training stops after the last round; more steps bring the weights closer to (1, 1)."""
    done = simulate(training(tmp_path, every), rounds=rounds, protection=PLAIN)
    one, two, three = done.results.values()
    assert one == two == three and one[2] == steps
    assert 0.2 < one[0] < 1.1 and 0.2 < one[1] < 1.1
    assert "w = [2]" in done.plan


def test_models_that_differ_and_other_intervals_are_refused(tmp_path: Path) -> None:
    with raises(Disagreement, party="site-3"):
        simulate(training(tmp_path, "epoch", lambda k: float(k == 2)), protection=PLAIN)
    with raises(SettingsError, "every = 0", party="site-1"):
        simulate(training(tmp_path, 0), protection=PLAIN)
