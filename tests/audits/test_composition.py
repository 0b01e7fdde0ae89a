"""The composition lint: a record moves the shipped step by C at most, and planted ones by more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd.mutual_distillation import Pair, losses
from secure_fl.algorithms.fedkd.settings import Distillation
from secure_fl.audits.findings import Prior, Verdict
from secure_fl.audits.selftest.composition import (
    NOBODY,
    TOLERANCE,
    Neighbours,
    composition_trials,
    lint,
    paired,
    private_step,
    without_clipping,
    worst,
)
from secure_fl.corpora import make
from secure_fl.learning.dp.private_model import Bounds
from secure_fl.learning.tasks import Batch, make_task
from secure_fl.settings import DPSettings, TaskSettings, TrainingSettings
from tests.support.clipped_sums import clipped_sum
from tests.support.private import TASKS, loss_of, make_batch, make_model
from tests.support.readings import prior_of

TRAINING = TrainingSettings(device="cpu")


@cache
def prior(kind: Any = "classification") -> Prior:
    labels = None if kind == "ranking" else ("no-ade", "ade")
    records = make("ade", parties=3, seed=3, size=40)[0].train
    task = make_task(TaskSettings(kind=kind, labels=labels))
    return prior_of({}, TRAINING, task=task, public=records, layers=1, seed=3)


def neighbours(rows: int = 6) -> list[Neighbours]:
    return [Neighbours(make_batch("bert", rows), (0, rows - 1))]


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_the_lint_sees_the_clipped_sum_of_training(clipping: Any) -> None:
    model, batch = make_model("bert", dropout=0.2), make_batch("bert")
    before = [p.detach().clone() for p in model.parameters()]
    training = TRAINING.model_copy(update={"dp": DPSettings(epsilon=1.0, clipping=clipping)})
    finding = private_step(model, loss_of("bert"), training)(batch, 0.3)
    expected = clipped_sum(model, loss_of("bert"), batch, Bounds(0.3, clipping=clipping))
    torch.testing.assert_close(finding.float(), expected, rtol=1e-3, atol=1e-5)
    for parameter, kept in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, kept)  # nothing is left of the step


def test_the_shipped_step_meets_its_bound_and_an_unclipped_one_does_not() -> None:
    step = private_step(make_model("bert", dropout=0.2), loss_of("bert"), TRAINING)
    finding = worst(step, neighbours(), bounds=(0.1, 1.0))
    assert 0.99 < finding.ratio <= 1 + TOLERANCE and finding.pairs == 4
    assert lint(without_clipping(step), neighbours(), target="model", bounds=(0.1,)).succeeded
    same = [Neighbours(make_batch("bert"), (NOBODY,))]
    assert worst(step, same).ratio == 0


def test_weights_of_a_whole_batch_break_the_bound() -> None:
    sample, batch = paired(prior(), "sample", 12), paired(prior(), "batch", 12)
    ratios = [
        worst(private_step(s.model, s.loss, TRAINING), s.neighbours, bounds=(10.0,)).ratio
        for s in (sample, batch)
    ]
    assert ratios[0] <= 1 + TOLERANCE
    assert ratios[1] > 5


def test_a_teacher_trained_without_noise_breaks_the_bound() -> None:
    """Only the student is protected: what the record did to its teacher reaches it unbounded."""
    teacher, student = make_model("bert"), make_model("bert")
    for model in (teacher, student):
        model.set_attn_implementation("eager")
    start = {name: value.clone() for name, value in teacher.state_dict().items()}
    task, cfg = TASKS["bert"], Distillation(adaptive="sample", mutual=False)

    def moved(steps: int, batch: Batch, bound: float) -> Tensor:
        teacher.load_state_dict(start)
        teacher.requires_grad_(True)
        optimizer = torch.optim.SGD(teacher.parameters(), lr=1.0)
        for _ in range(steps):
            optimizer.zero_grad()
            task.loss(task.forward(teacher.eval(), batch), batch).backward()
            optimizer.step()
        teacher.requires_grad_(False)
        pair = Pair(teacher, student, task, cfg, (1.0, 1.0))
        return private_step(pair, losses, TRAINING)(batch, bound)

    pairs = [Neighbours(make_batch("bert", 16), (0, 3, 15))]
    assert worst(partial(moved, 0), pairs, bounds=(1.0,)).ratio <= 1 + TOLERANCE
    assert worst(partial(moved, 3), pairs, bounds=(1.0,)).ratio > 1.2


def test_a_loss_that_is_no_number_is_a_defect() -> None:
    def broken(batch: Batch, _bound: float) -> Tensor:
        return torch.full((3,), float("nan") if len(batch["labels"]) > 5 else 0.0)

    assert lint(broken, neighbours(), target="model").succeeded


def test_what_dp_sgd_refuses_is_not_judged() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    step = private_step(model, lambda m, b: m(b["x"]).sum(1), TRAINING)
    finding = lint(step, [Neighbours({"x": torch.randn(4, 2)}, (0,))], target="model")
    assert finding.value is None and not finding.succeeded and finding.note


def test_a_model_that_dp_sgd_refuses_is_not_tested() -> None:
    known = prior()

    def model() -> nn.Module:
        finding: Any = known.model()
        finding.classifier = nn.Sequential(
            nn.BatchNorm1d(64).requires_grad_(False), nn.Linear(64, 2)
        )
        changed: nn.Module = finding.eval()
        return changed

    for trial in composition_trials(replace(known, model=model), quick=True):
        assert trial.verdict is Verdict.UNTESTED and trial.reason


def test_the_trials_hold() -> None:
    trials = composition_trials(prior(), quick=True)
    assert [t.verdict for t in trials] == [Verdict.HOLDS] * 2
    for trial in trials:
        assert trial.control and trial.control.value and trial.control.value > 5
        assert trial.deployed and trial.deployed.value == pytest.approx(1, abs=TOLERANCE)
        assert trial.null and trial.null.value == 0


def test_ranking_is_not_tested_and_says_so() -> None:
    (trial,) = composition_trials(prior("ranking"), quick=True)
    assert trial.verdict is Verdict.UNTESTED and trial.reason
