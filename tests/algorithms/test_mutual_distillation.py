"""FedKD's losses against numbers worked out by hand, and what each model learns from the other."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd.mutual_distillation import (
    FLOOR,
    Pair,
    divergence,
    intensity,
    losses,
    mapped,
    masked_mse,
)
from secure_fl.algorithms.fedkd.settings import Distillation
from secure_fl.corpora import make
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.dp.private_model import Bounds
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import Batch, Task, make_task
from secure_fl.settings import ModelSettings, TaskSettings
from tests.support.clipped_sums import neighbour_ratio
from tests.support.saved_models import dropping

__all__ = ["dropping"]  # a fixture

CORPORA = {
    "classification": "ade", "multilabel": "codes", "ner": "ner", "regression": "similarity",
    "ranking": "news",
}  # fmt: skip
KINDS: tuple[Any, ...] = tuple(CORPORA)
ROWS = 6


class Given(NamedTuple):
    task: Task
    batch: Batch  # texts of different lengths


@cache
def given(kind: Any) -> Given:
    records = make(CORPORA[kind], parties=1, seed=3, size=ROWS, labels="shared")[0].train
    task = make_task(TaskSettings(kind=kind, max_length=32), records)
    encoded = task.encode(records, load_tokenizer(ModelSettings()))
    generator = torch.Generator().manual_seed(0) if kind == "ranking" else None
    return Given(task, encoded.batch(range(ROWS), generator))


def pair_of(kind: Any = "classification", **switches: Any) -> Pair:
    """A teacher of two layers and a student of one, not trained, and without dropout."""
    task, tokenizer = given(kind).task, load_tokenizer(ModelSettings())
    pooling: Any = "cls" if kind == "ner" else "attentive"
    teacher, student = (
        load_model(
            ModelSettings(layers=layers),
            task,
            tokenizer,
            seed,
            attn_implementation="eager",
            pooling=pooling,
        )
        for layers, seed in ((2, 1), (1, 2))
    )
    pair = Pair(teacher, student, task, Distillation(**switches), (1e-3, 1e-3)).eval()
    with torch.no_grad():
        for W in pair.W.parameters():
            W.add_(torch.randn(W.shape, generator=torch.Generator().manual_seed(7)), alpha=0.05)
    return pair


class Seen(NamedTuple):
    """What the reference below takes from a model: one tensor per record, without padding."""

    y: Tensor
    H: list[Tensor]  # the last layer's: tokens, width
    A: list[Tensor]  # the last layer's: heads, from, to


def seen(pair: Pair, model: nn.Module, batch: Batch) -> Seen:
    out = pair.task.outputs(model, batch, output_hidden_states=True, output_attentions=True)
    sizes = batch["attention_mask"].sum(-1).tolist()
    H = [h[:n] for h, n in zip(out.hidden_states[-1], sizes, strict=True)]
    A = [a[:, :n, :n] for a, n in zip(out.attentions[-1], sizes, strict=True)]
    return Seen(out.logits, H, A)


def constant(it: Seen) -> Seen:
    return Seen(it.y.detach(), [h.detach() for h in it.H], [a.detach() for a in it.A])


def task_losses(kind: Any, y: Tensor, batch: Batch) -> Tensor:
    """Eqs. 1 and 2, one per record."""
    labels = batch["labels"]
    if kind == "regression":
        return (y[:, 0] - labels) ** 2
    if kind == "multilabel":
        p = torch.where(labels, 1 / (1 + (-y).exp()), 1 / (1 + y.exp()))
        return -p.log().sum(-1)
    log = y - y.logsumexp(-1, keepdim=True)
    if kind == "ranking":  # one click of each impression
        return torch.stack([-row[list(l_).index(1)] for row, l_ in zip(log, labels, strict=True)])
    if kind == "ner":
        rows = zip(log, labels, strict=True)
        return torch.stack(
            [
                torch.stack([-t[c] for t, c in zip(r, l_, strict=True) if c >= 0]).mean()
                for r, l_ in rows
            ]
        )
    return torch.stack([-row[label] for row, label in zip(log, labels, strict=True)])


def kl(kind: Any, of: Tensor, to: Tensor, batch: Batch) -> Tensor:
    """KL(of ‖ to) of each record."""
    if kind == "regression":
        return (of[:, 0] - to[:, 0]) ** 2
    if kind == "multilabel":
        p, q = 1 / (1 + (-of).exp()), 1 / (1 + (-to).exp())
        return (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(-1)
    p = of.exp() / of.exp().sum(-1, keepdim=True)
    q = to.exp() / to.exp().sum(-1, keepdim=True)
    each = torch.where(p > 0, p * (p.clamp(min=1e-30) / q.clamp(min=1e-30)).log(), 0.0).sum(-1)
    if kind == "ner":
        rows = zip(each, batch["labels"], strict=True)
        return torch.stack([row[labels >= 0].mean() for row, labels in rows])
    return each


def hidden(kind: Any, t: Seen, s: Seen, W: Tensor) -> Tensor:
    """The numerator of Eq. 5, one per record; of a ranking, the mean over its titles."""
    rows = []
    for h_t, h_s, a_t, a_s in zip(t.H, s.H, t.A, s.A, strict=True):
        rows.append(((h_t - h_s @ W.T) ** 2).mean() + ((a_t - a_s) ** 2).mean())
    each = torch.stack(rows)
    return each.mean() if kind == "ranking" else each


def weights_of(pair: Pair, t: Tensor, s: Tensor) -> Tensor:
    """1 / (Lᵗ_t + Lᵗ_s) of Eqs. 3-5."""
    how = pair.cfg.adaptive
    doubt = t + s
    return 1 / (doubt.mean() if how == "batch" else doubt) if how != "none" else torch.ones(())


def gradients(loss: Tensor, module: nn.Module) -> list[Tensor]:
    """By weight, zeros where the loss does not depend on it."""
    weights = list(trainable(module).values())
    return list(
        torch.autograd.grad(
            loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    )


def assert_alike(found: list[Tensor], expected: list[Tensor]) -> None:
    scale = max(float(e.abs().max()) for e in expected)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=2e-4, atol=2e-5 * scale)


# --- the pieces, in numbers -----------------------------------------------------------------------


def test_divergence_of_two_distributions() -> None:
    """KL((3/4, 1/4) ‖ (1/2, 1/2)) = 3/4·ln(3/2) + 1/4·ln(1/2), and not its reverse."""
    sure, unsure = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[5.0, 5.0]])
    forth = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    back = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert float(divergence(sure, unsure, {})) == pytest.approx(forth, abs=1e-6)
    assert float(divergence(unsure, sure, {})) == pytest.approx(back, abs=1e-6)
    assert float(divergence(sure, sure + 7, {})) == pytest.approx(0, abs=1e-6)  # softmax's shift
    scores = divergence(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [1.5]]), {})
    assert scores.tolist() == [4.0, 0.25]  # a regression: squared differences


def test_divergence_of_tokens_is_the_mean_of_those_that_are_judged() -> None:
    sure, unsure = [math.log(3.0), 0.0], [0.0, 0.0]
    model = torch.tensor([[sure, unsure, sure], [sure, sure, sure]])
    learner = torch.zeros(2, 3, 2)
    labels = torch.tensor([[1, 0, -100], [-100, -100, -100]])
    one = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    found = divergence(model, learner, {"labels": labels})
    assert found.tolist() == pytest.approx([one / 2, 0.0], abs=1e-6)  # nothing judged: no loss


def test_intensities() -> None:
    """Eqs. 3-5's 1 / (Lᵗ + Lˢ), for each record, for the batch, or not at all."""
    teacher, student = torch.tensor([0.25, 0.5, 0.0]), torch.tensor([0.25, 1.5, 0.0])

    def found(how: Any) -> list[float]:
        return intensity(teacher, student, Distillation(adaptive=how)).tolist()

    assert found("sample") == [2.0, 0.5, 1 / FLOOR]  # a loss of 0 weighs no more than FLOOR
    assert found("batch") == pytest.approx([1.2] * 3)  # sums 0.5, 2, 0: their mean is 2.5 / 3
    assert found("none") == [1.0] * 3
    grown = teacher.clone().requires_grad_()
    assert not intensity(grown, student, Distillation()).requires_grad
    assert intensity(grown, student, Distillation(joint_loss=True)).requires_grad


def test_masked_mse_leaves_padding_out() -> None:
    a = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    # (1 + 4 + 9 + 16) / 4, and (1 + 1) / 2: the second token of the second record is padding
    assert masked_mse(a, torch.zeros_like(a), mask).tolist() == [7.5, 1.0]
    assert masked_mse(a, torch.zeros_like(a), mask & False).tolist() == [0.0, 0.0]


def test_student_layers_imitate_teacher_layers() -> None:
    assert mapped(12, 4) == (3, 6, 9, 12) and mapped(6, 4) == (2, 3, 5, 6)
    assert mapped(3, 3) == (1, 2, 3) and mapped(5, 1) == (5,)


# --- the whole, against a reference that is written record by record ------------------------------

SWITCHES: list[dict[str, Any]] = [
    {"adaptive": "none"},
    {"mutual": False},
    {"soft_labels": False},
    {"hidden": False},
    {"transform": False},
    {"joint_loss": True},
    {"joint_loss": True, "adaptive": "sample", "hidden": False},
    {"mutual": False, "soft_labels": False, "hidden": False},
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_learns_its_own_loss(kind: Any) -> None:
    for adaptive in ("batch", "sample"):
        check(kind, {"adaptive": adaptive})


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_every_switch_does_what_it_says(switches: dict[str, Any]) -> None:
    check("classification", switches)


def check(kind: Any, switches: dict[str, Any]) -> None:
    """Eqs. 6 and 7 with the partner as constants, or joined: values and gradients."""
    pair, batch = pair_of(kind, **switches), given(kind).batch
    cfg, found = pair.cfg, losses(pair, batch)
    assert found.shape == (len(batch["labels"]),)
    t, s = seen(pair, pair.teacher, batch), seen(pair, pair.student, batch)
    W = next(pair.W.parameters(), torch.eye(64))
    Lt_t, Lt_s = task_losses(kind, t.y, batch), task_losses(kind, s.y, batch)
    w = weights_of(pair, Lt_t, Lt_s)
    if not cfg.joint_loss:
        w = w.detach()
    t0, s0 = (t, s) if cfg.joint_loss else (constant(t), constant(s))

    d_t = w * kl(kind, s0.y, t.y, batch) * (cfg.soft_labels and cfg.mutual)  # Eq. 3
    d_s = w * kl(kind, t0.y, s.y, batch) * cfg.soft_labels  # Eq. 4
    h_t = w * hidden(kind, t, s0, W) * (cfg.hidden and cfg.mutual)  # Eq. 5, twice
    h_s = w * hidden(kind, t0, s, W) * cfg.hidden
    L_t, L_s = Lt_t + d_t + h_t, Lt_s + d_s + h_s  # Eqs. 6 and 7

    total = found.mean()
    both = (L_t + L_s).mean()
    value = both if cfg.joint_loss else both - h_t.mean()  # Eq. 5 is one number, counted once
    torch.testing.assert_close(total, value, rtol=1e-4, atol=1e-6)
    teacher_s, student_s = (both, both) if cfg.joint_loss else (L_t.mean(), L_s.mean())
    assert_alike(gradients(total, pair.teacher), gradients(teacher_s, pair.teacher))
    assert_alike(gradients(total, pair.student), gradients(student_s, pair.student))
    if len(pair.W):
        learnt = gradients(total, pair.W)
        assert float(learnt[0].norm()) > 0
        assert_alike(learnt, gradients(student_s, pair.W))
    if not cfg.mutual:
        assert_alike(gradients(total, pair.teacher), gradients(Lt_t.mean(), pair.teacher))


@pytest.mark.parametrize("kind", ["classification", "ner", "regression"])
def test_padding_and_neighbours_have_no_influence(kind: Any) -> None:
    """A record's loss is the same alone, in a batch, and in a batch that is padded further."""
    batch, pair = given(kind).batch, pair_of(kind, adaptive="sample")
    whole = losses(pair, batch)
    padding = {"labels": -100} if kind == "ner" else {}
    wider = {
        name: nn.functional.pad(tensor, (0, 5), value=padding.get(name, 0))
        if tensor.dim() == 2
        else tensor
        for name, tensor in batch.items()
    }
    torch.testing.assert_close(losses(pair, wider), whole, rtol=1e-4, atol=1e-5)
    noisy = dict(batch)
    noisy["input_ids"] = torch.where(batch["attention_mask"] > 0, batch["input_ids"], 77)
    torch.testing.assert_close(losses(pair, noisy), whole, rtol=1e-4, atol=1e-5)
    alone = [losses(pair, one(batch, row)) for row in range(ROWS)]
    torch.testing.assert_close(torch.cat(alone), whole, rtol=1e-4, atol=1e-5)
    assert len(set(batch["attention_mask"].sum(-1).tolist())) > 1  # there is padding


def one(batch: Batch, row: int) -> Batch:
    """A record by itself, as long as it is."""
    length = int(batch["attention_mask"][row].sum())
    return {
        n: t[row : row + 1, :length] if t.dim() == 2 else t[row : row + 1] for n, t in batch.items()
    }


def test_attention_maps_are_read_before_dropout(dropping: str) -> None:
    """The model answers as with eager attention, bit for bit; its maps have lost nothing."""
    task, batch = given("classification")
    settings = ModelSettings(name=dropping)
    tokenizer, seen = load_tokenizer(settings), {}
    for attention in ("eager", "maps"):
        model = load_model(settings, task, tokenizer, 1, attn_implementation=attention)
        torch.manual_seed(5)
        out = task.outputs(model.train(), batch, output_attentions=True)
        seen[attention] = (out.logits, out.attentions[0].sum(-1))
    assert torch.equal(seen["eager"][0], seen["maps"][0])
    assert not torch.allclose(seen["eager"][1], torch.ones(()), atol=1e-3)
    assert torch.allclose(seen["maps"][1], torch.ones(()), atol=1e-5)


def test_w_begins_as_the_identity_and_its_own_part_learns_it() -> None:
    task, tokenizer = given("classification").task, load_tokenizer(ModelSettings())
    model = load_model(ModelSettings(layers=2), task, tokenizer, 1, attn_implementation="eager")
    for switches, size in (({}, 2), ({"transform": False}, 0), ({"hidden": False}, 0)):
        pair = Pair(model, model, task, Distillation(**switches), (1e-3, 2e-3))  # type: ignore[arg-type]
        assert len(pair.W) == size and len(pair.parts()) == 2 + (size > 0)
        assert all(torch.equal(linear.weight, torch.eye(64)) for linear in pair.W)  # type: ignore[arg-type]
        assert [rate for _, rate in pair.parts()] == [1e-3, 2e-3, 2e-3][: 2 + (size > 0)]


# --- differential privacy -------------------------------------------------------------------------


def one_odd_record(adaptive: Any) -> tuple[Pair, Batch]:
    """A pair that both know all records by heart, but for the last one, whose label is wrong."""
    pair, batch = pair_of(adaptive=adaptive), dict(given("classification").batch)
    with torch.no_grad():
        for model in (pair.teacher, pair.student):
            classifier: Any = model.classifier
            classifier.weight.zero_()
            classifier.bias.copy_(torch.tensor([9.0, -9.0]))
    batch["labels"] = torch.tensor([0] * (ROWS - 1) + [1])
    return pair, batch


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_only_weights_of_single_records_pass_the_neighbour_test(clipping: Any) -> None:
    """Without the record with the wrong label, a batch's weights rise to 1 / FLOOR."""

    def ratio(pair: Pair, batch: Batch, C: float, row: int = 0) -> float:
        return neighbour_ratio(pair, losses, batch, Bounds(C, clipping=clipping), row)

    pair, batch = one_odd_record("sample")
    assert max(ratio(pair, batch, C, row) for C in (0.1, 30.0) for row in (0, ROWS - 1)) <= 1 + 1e-4
    pair, usual = pair_of(adaptive="sample"), given("classification").batch
    ratios = [ratio(pair, usual, 0.1, row) for row in range(ROWS)]
    assert 0.9 < max(ratios) <= 1 + 1e-4  # the bound is tight
    pair, batch = one_odd_record("batch")
    assert neighbour_ratio(pair, losses, batch, Bounds(30.0, clipping=clipping)) > 1.5
