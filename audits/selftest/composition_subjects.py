"""What the composition lint is run on: the modules that DP-SGD trains, and neighbouring batches.

A plain model with its task's loss; and FedKD's teacher and student as the one module that they are
(`algorithms.distillation.Pair`), where a weight taken from a whole batch would break the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.fedkd.algorithm import losses
from secure_fl.algorithms.fedkd.mutual_distillation import Pair
from secure_fl.algorithms.fedkd.settings import Distillation
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.selftest.composition import (
    BOUNDS,
    MEASURE,
    NAME,
    NOBODY,
    ROLE,
    TOLERANCE,
    Move,
    Neighbours,
    lint,
    private_step,
    without_clipping,
)
from secure_fl.data.examples import Example
from secure_fl.learning.anatomy import body_of, cut, depth
from secure_fl.learning.dp.private_model import Loss
from secure_fl.learning.tasks import Batch

ROWS = 24  # of a batch: the more records, the more of them one record could touch
SURE = 6.0  # logits by which a head is made to prefer one class
APART = 0.05  # std of the noise that sets a teacher apart from its student

Adaptive = Literal["batch", "sample", "none"]


@dataclass(frozen=True, slots=True)
class LintedModule:
    """A module that DP-SGD trains, its loss of each record, and batches to try it on."""

    model: nn.Module
    loss: Loss
    neighbours: tuple[Neighbours, ...]


def plain(prior: Prior, rows: int = ROWS) -> LintedModule:
    """The model of the run under its task's loss."""
    model, task = prior.model(), prior.task

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        return task.loss(task.forward(module, batch), batch, reduction="none")

    return LintedModule(model, loss, neighbours(prior, model, loss, rows))


def paired(prior: Prior, adaptive: Adaptive, rows: int = ROWS) -> LintedModule:
    """A teacher and its student under FedKD's losses; "batch" is what DP-SGD refuses."""
    given = prior.algorithm
    cfg: Distillation = given if isinstance(given, FedKD) else Distillation()
    cfg = cfg.model_copy(update={"adaptive": adaptive})
    teacher, student = _eager(prior.model()), _eager(prior.model())
    layers = given.student_layers if isinstance(given, FedKD) else 1
    cut(student, min(layers, depth(student)))
    noise = torch.Generator().manual_seed(int(prior.rng(NAME, "teacher").integers(1 << 31)))
    with torch.no_grad():
        for weight in teacher.parameters():
            drawn = torch.randn(weight.shape, generator=noise)
            weight.add_(APART * drawn.to(weight.device))
    for model in (teacher, student):
        _make_sure(model, prior.task.outputs_per_row)
    pair = Pair(teacher, student, prior.task, cfg, (1.0, 1.0))
    return LintedModule(pair, losses, neighbours(prior, pair, losses, rows))


def neighbours(prior: Prior, model: nn.Module, loss: Loss, rows: int) -> tuple[Neighbours, ...]:
    """Records as they come; and those that the model knows best, with the one it knows worst."""
    device = next(model.parameters()).device
    encoded = prior.task.encode(_records(prior)[: 4 * rows], prior.tokenizer)
    everything = encoded.batch(range(len(encoded)), device=device)
    with torch.no_grad():
        order = loss(model.eval(), everything).argsort().tolist()
    common = encoded.batch(range(min(rows, len(encoded))), device=device)
    easy = order[: min(rows, len(encoded)) - 1]
    mixed = encoded.batch([*easy, order[-1]], device=device)
    last = len(easy)
    return Neighbours(common, (0, len(common["labels"]) - 1)), Neighbours(mixed, (0, last))


def composition_trials(prior: Prior, quick: bool = False) -> tuple[AuditTrial, ...]:
    """Lint the plain model against one without clipping, and FedKD's pair against batch weights."""
    if prior.task.head == "ranking":
        what = "DP-SGD trains tasks of texts and sentences"
        blank = AuditFinding(
            NAME, ROLE, "any model", MEASURE, None, 1.0, 1 + TOLERANCE, 0, note=what
        )
        return (AuditTrial(None, blank, None, reason=what),)
    rows = ROWS // 2 if quick else ROWS
    alone, sample = plain(prior, rows), paired(prior, "sample", rows)
    batch = paired(prior, "batch", rows)
    steps = [private_step(s.model, s.loss, prior.training) for s in (alone, sample, batch)]
    return (
        _trial("the model of the run", alone, steps[0], alone, without_clipping(steps[0])),
        _trial("a teacher with its student", sample, steps[1], batch, steps[2]),
    )


def _trial(
    target: str, subject: LintedModule, step: Move, other: LintedModule, planted: Move
) -> AuditTrial:
    deployed = lint(step, subject.neighbours, target=target)
    if deployed.value is None:
        return AuditTrial(None, deployed, None, reason=deployed.note)
    same = [Neighbours(pair.batch, (NOBODY,)) for pair in subject.neighbours]
    null = lint(step, same, target=target, bounds=BOUNDS[:1])  # equal batches, whatever the bound
    return AuditTrial(lint(planted, other.neighbours, target=target), deployed, null)


def _records(prior: Prior) -> list[Example]:
    """Records of the run's kind; the lint runs at home, and gives no record away."""
    own = [record for truth in prior.truth.values() for record in truth.records]
    return [*prior.outsiders, *own]


def _eager(model: nn.Module) -> nn.Module:
    """Attention maps are seen in the eager form only; the pair compares them."""
    body: Any = body_of(model)
    body.set_attn_implementation("eager")
    return model


def _make_sure(model: nn.Module, outputs: int) -> None:
    """Let a head prefer its first class, so that some records are known by heart."""
    last = [p for n, p in model.named_parameters() if n.endswith("bias") and p.shape == (outputs,)]
    if outputs > 1 and last:
        with torch.no_grad():
            last[-1][0] += SURE
