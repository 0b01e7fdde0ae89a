"""The composition lint: how far one record moves a step of DP-SGD, before noise.

Two batches differ by one record. If training is as its accountant assumes, their clipped sums
differ by C at most (Abadi et al., CCS 2016, arXiv 1607.00133, Algorithm 1). The step is the shipped
one (`private_model.privately`) with its noise at 0. Dropout is off, because records of both batches
need equal masks. The lint tests a plain model with its task's loss, and FedKD's teacher and student
as one module (`mutual_distillation.Pair`), where a weight of a whole batch would break the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.fedkd.mutual_distillation import Pair, losses
from secure_fl.algorithms.fedkd.settings import Distillation
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.data.examples import Example
from secure_fl.errors import SecureFLError
from secure_fl.learning.anatomy import body_of, cut, depth
from secure_fl.learning.dp.private_model import Bounds, Loss, no_dropout, privately
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches
from secure_fl.learning.local_training import make_optimizer
from secure_fl.learning.tasks import Batch
from secure_fl.settings import DPSettings, TrainingSettings

NAME = "composition lint"
ABOUT = (
    "Trains on batches with and without one record and compares the steps before noise; success "
    "would mean that one record moves the model further than the privacy accounting assumes."
)
ROLE = "party"
MEASURE = "movement by one record, in units of its bound"
NOBODY = -1  # no row: then the neighbour of a batch is the batch itself
TOLERANCE = 1e-3  # of float32 sums; one record is at the bound, so 1 is the expected value
BOUNDS = (0.1, 1.0, 10.0)  # C: what matters is C against the size of the gradients

Move = Callable[[Batch, float], Tensor]
"""Returns how a batch moves the weights at a bound C, before noise, as one vector."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A batch, and the rows to remove from it, one at a time."""

    batch: Batch
    without: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Worst:
    """The pair of neighbours that moved the weights furthest."""

    ratio: float
    bound: float  # C
    batch: int  # its index
    row: int
    pairs: int  # that were compared


def private_step(model: nn.Module, loss: Loss, training: TrainingSettings) -> Move:
    """Make the step of `fit_privately` without its noise.

    A run without DP-SGD names no way of clipping: then the default is tested.
    """
    kind = (training.dp or DPSettings(epsilon=1.0)).clipping

    def move(batch: Batch, bound: float) -> Tensor:
        rows = len(next(iter(batch.values())))
        plain = training.model_copy(update={"optimizer": "sgd", "weight_decay": 0.0})
        optimizer = make_optimizer(model, plain)
        for group in optimizer.param_groups:
            group["lr"] = float(rows)  # undoes the division by the expected size of a batch
        bounds = Bounds(bound, 0.0, clipping="ghost" if kind == "ghost" else "per_sample")
        batches = PoissonBatches(rows, 1, Coins.secret())
        with _weights_kept(model) as before, no_dropout(model):
            with privately(model, optimizer, loss, bounds, batches) as private:
                private.step(batch, None)
            return _apart(before)

    return move


def without_clipping(move: Move) -> Move:
    """Plant a defect: a step that does not clip gradients."""
    return lambda batch, _bound: move(batch, 1e9)


def worst(move: Move, neighbours: Sequence[Neighbours], bounds: Sequence[float] = BOUNDS) -> Worst:
    """Remove one record after the other, and find the largest difference."""
    largest, pairs = Worst(0.0, 0.0, 0, 0, 0), 0
    for bound in bounds:
        for index, pair in enumerate(neighbours):
            full = move(pair.batch, bound)
            for row in pair.without:
                rest = move(without(pair.batch, row), bound)
                apart = torch.linalg.vector_norm(full - rest, dtype=torch.float64)
                ratio = float(apart) / bound
                pairs += 1
                if not ratio <= largest.ratio:  # also NaN, which no bound covers
                    ratio = ratio if math.isfinite(ratio) else 1e9
                    largest = Worst(ratio, bound, index, row, pairs)
    return replace(largest, pairs=pairs)


def without(batch: Batch, row: int) -> Batch:
    """Make the neighbour of a batch: all rows but one."""
    rows = len(next(iter(batch.values())))
    kept = [k for k in range(rows) if k != row]
    return {name: tensor[kept] for name, tensor in batch.items()}


def lint(
    move: Move, neighbours: Sequence[Neighbours], *, target: str, bounds: Sequence[float] = BOUNDS
) -> AuditFinding:
    """Measure how far one record moves a step, relative to the accountant's bound."""
    blank = AuditFinding(NAME, ROLE, target, MEASURE, None, 1.0, 1 + TOLERANCE, 0)
    try:
        largest = worst(move, neighbours, bounds)
    except SecureFLError as error:
        return blank.at(note=f"DP-SGD does not train this: the program refuses it ({error.code})")
    sizes = [len(next(iter(pair.batch.values()))) for pair in neighbours]
    details = {"bound": largest.bound, "bounds": list(bounds), "records in a batch": sizes}
    return blank.at(value=largest.ratio, samples=largest.pairs, details=details)


SavedWeights: TypeAlias = Sequence[tuple[nn.Parameter, Tensor]]


def _apart(before: SavedWeights) -> Tensor:
    """Measure how far all trained weights have moved, as one vector."""
    with torch.no_grad():
        return torch.cat([(value - parameter).flatten() for parameter, value in before])


@contextmanager
def _weights_kept(model: nn.Module) -> Iterator[SavedWeights]:
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]
    try:
        yield kept
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)


# --- the modules that the lint tests, and neighbouring batches ------------------------------------

ROWS = 24  # of a batch: one record could influence all of them
SURE = 6.0  # logits added so that a head prefers one class
APART = 0.05  # std of the noise between a teacher and its student

Adaptive = Literal["batch", "sample", "none"]


@dataclass(frozen=True, slots=True)
class LintedModule:
    """A module that DP-SGD trains, its loss for each record, and batches for the lint."""

    model: nn.Module
    loss: Loss
    neighbours: tuple[Neighbours, ...]


def plain(prior: Prior, rows: int = ROWS) -> LintedModule:
    """Take the model of the run with its task's loss."""
    model, task = prior.model(), prior.task

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        return task.loss(task.forward(module, batch), batch, reduction="none")

    return LintedModule(model, loss, neighbours(prior, model, loss, rows))


def paired(prior: Prior, adaptive: Adaptive, rows: int = ROWS) -> LintedModule:
    """Pair a teacher with its student under FedKD's losses; DP-SGD refuses "batch"."""
    fedkd = prior.algorithm if isinstance(prior.algorithm, FedKD) else None
    cfg: Distillation = fedkd or Distillation()
    cfg = cfg.model_copy(update={"adaptive": adaptive})
    teacher, student = _eager(prior.model()), _eager(prior.model())
    layers = fedkd.student_layers if fedkd else 1
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
    """Make two batches: the first records; and the best known ones with the worst known one."""
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
    """Lint the plain model and FedKD's pair; the controls lack clipping, or weigh by batch."""
    why = "DP-SGD trains tasks of texts and sentences" if prior.task.head == "ranking" else ""
    if prior.algorithm.step_rate is not None:  # `shared_steps` tests how its integers are clipped
        why = "this run trains by single steps, not by batches"
    if why:
        blank = AuditFinding(
            NAME, ROLE, "any model", MEASURE, None, 1.0, 1 + TOLERANCE, 0, note=why
        )
        return (AuditTrial(None, blank, None, reason=why),)
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
    """Collect records of the run's kind; the lint reveals none of them."""
    private = [record for truth in prior.truth.values() for record in truth.records]
    return [*prior.outsiders, *private]


def _eager(model: nn.Module) -> nn.Module:
    """Make attention maps visible, which the pair compares: only the eager form has them."""
    body: Any = body_of(model)
    body.set_attn_implementation("eager")
    return model


def _make_sure(model: nn.Module, outputs: int) -> None:
    """Let a head prefer its first class, so that the model is sure of some records."""
    last = [p for n, p in model.named_parameters() if n.endswith("bias") and p.shape == (outputs,)]
    if outputs > 1 and last:
        with torch.no_grad():
            last[-1][0] += SURE
