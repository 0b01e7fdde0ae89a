"""Norms and clipped sums from what layers read and the slopes of what they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from secure_fl.corpora import make
from secure_fl.errors import ModelError
from secure_fl.learning import models
from secure_fl.learning.anatomy import freeze_embeddings, is_norm
from secure_fl.learning.dp.dp_sgd import checked_clipping
from secure_fl.learning.dp.per_record_gradients import (
    DenseGradients,
    GradientBook,
    LookupGradients,
    ProductGradients,
    clip_and_sum,
)
from secure_fl.learning.dp.private_model import Bounds, row_gradients
from secure_fl.learning.tasks import Batch, make_task
from secure_fl.settings import TaskSettings
from tests.support.clipped_sums import clipped_sum, losses_of
from tests.support.families import BY_KIND, FAMILIES, save

RECORDS, PLACES, WIDTH, WORDS = 5, 3, 16, 20


class Reader(nn.Module):
    """One layer of each kind, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.turned = Conv1D(12, WIDTH)
        self.narrow = nn.Linear(12, 1)  # its gradient is smaller than what it would follow from
        self.last = nn.Linear(PLACES, 40)  # one place

    def forward(self, ids: Tensor) -> Tensor:
        found = self.twice(torch.tanh(self.twice(self.words(ids))))
        per_place = self.narrow(torch.tanh(self.turned(self.norm(found)))).squeeze(-1)
        losses: Tensor = self.last(per_place).square().sum(1)
        return losses


def prepared() -> tuple[Reader, Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, WORDS, (RECORDS, PLACES))
    ids[0], ids[1, 0] = 7, 0  # a word three times, and padding
    return Reader(), ids


def autograd(model: nn.Module, ids: Tensor) -> Tensor:
    """The gradient of each record, one row each."""
    rows = [torch.autograd.grad(model(one[None]).sum(), list(model.parameters())) for one in ids]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.parametrize("ghost", [True, False])
def test_norms_and_sums_are_those_of_autograd(ghost: bool) -> None:
    model, ids = prepared()
    each = autograd(model, ids)
    book = GradientBook(model, ghost=ghost)
    parts = book.backward(model(ids), list(model.parameters()))
    book.close()
    kinds = {name: type(parts[p]) for name, p in model.named_parameters()}
    assert kinds["words.weight"] is LookupGradients
    compact = ProductGradients if ghost else DenseGradients
    assert kinds["last.weight"] is kinds["turned.weight"] is compact
    assert kinds["twice.weight"] is kinds["narrow.weight"] is kinds["norm.weight"] is DenseGradients
    held = torch.cat([parts[p].each().flatten(1) for p in model.parameters()], 1)
    torch.testing.assert_close(held, each, rtol=1e-4, atol=1e-5)
    norms = each.norm(dim=1)
    squares = torch.stack([part.squares()[0] for part in parts.values()]).sum(0)
    torch.testing.assert_close(squares.sqrt(), norms, rtol=1e-4, atol=1e-5)
    bound = float(norms.median())
    clip_and_sum(parts, bound)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    expected = (each * (bound / norms).clamp(max=1.0)[:, None]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * bound)


def test_a_layer_used_twice_by_two_sums_of_squares_would_miss_the_bound() -> None:
    """Why such weights are held: the norm of a sum is not what the norms of its parts give."""
    model, ids = prepared()
    weight = model.twice.weight
    book = GradientBook(model, ghost=True)
    first, second = (
        next(part for p, part in book._of_layer(layer, inputs, slope, RECORDS) if p is weight)
        for layer, inputs, slope in _uses(book, model, ids)
    )
    together = DenseGradients(first.each() + second.each()).squares()[0]
    apart = first.squares()[0] + second.squares()[0]
    assert float((together / apart - 1).abs().max()) > 0.1


class RareWord(nn.Module):
    """A layer whose places' slopes cancel, and a word that adds a large part to all its inputs."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64).requires_grad_(False)
        self.layer = nn.Linear(64, 64, bias=False)
        nn.init.normal_(self.layer.weight, std=1e-6)
        slopes = torch.randn(32, 64)
        self.slopes, self.added = slopes - slopes.mean(0), torch.randn(64) * size

    def forward(self, ids: Tensor) -> Tensor:
        rare = (ids == 0).any(1).float()[:, None, None]
        losses: Tensor = (self.layer(self.words(ids) + rare * self.added) * self.slopes).sum((1, 2))
        return losses


@pytest.mark.parametrize("size", [1e4, 1e7, 1e15])
def test_no_record_passes_unclipped_where_the_fast_norm_cancels(size: float) -> None:
    torch.manual_seed(0)
    model, ids = RareWord(size), torch.randint(1, WORDS, (6, 32))
    ids[2, 5] = ids[4, 1] = 0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(batch["ids"])
        return found

    assert checked_clipping(model, loss, {"ids": ids[[0, 5]]}, "ghost") == "ghost"
    for row in range(len(ids)):
        norm = float(clipped_sum(model, loss, {"ids": ids[row : row + 1]}, Bounds(1.0)).norm())
        assert norm < 1.001
        if size == 1e4:
            assert norm > 0.9  # the record counts, too


def _uses(
    book: GradientBook, model: Reader, ids: Tensor
) -> list[tuple[nn.Module, list[Tensor], Tensor]]:
    losses = model(ids)
    uses = [use for use in book.uses if use[0] is model.twice]
    slopes = torch.autograd.grad(losses.sum(), [output for *_, output in uses])
    return [(layer, read, slope) for (layer, read, _), slope in zip(uses, slopes, strict=True)]


def test_what_mixes_records_or_takes_no_part_is_refused() -> None:
    model, ids = prepared()
    model.spare = nn.Linear(2, 2)
    book = GradientBook(model, ghost=True)
    with pytest.raises(ModelError, match="one per record"):
        book.backward(model(ids), list(model.parameters()))
    mixed = nn.Linear(RECORDS, 1)
    book = GradientBook(mixed, ghost=True)
    with pytest.raises(ModelError, match="one per record"):
        losses = mixed(torch.randn(3, RECORDS)).expand(3, RECORDS).sum(0)
        book.backward(losses, list(mixed.parameters()))


# --- gradients per record are those of the records in every family, by hooks or one by one ------


TASK = make_task(TaskSettings(labels=("ade", "no-ade"), max_length=24))
loss = losses_of(TASK)
KINDS = [family.kind for family in FAMILIES]


def prepared_as(folder: Path, kind: str, *, frozen: bool = True, **more: Any) -> tuple[Any, Batch]:
    spec = save(folder, kind, **more)
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, TASK, tokenizer, 0).train()
    model.requires_grad_(True)
    if frozen:
        freeze_embeddings(model)
    encoded = TASK.encode(make("ade", parties=1, seed=0, size=12)[0].train, tokenizer)
    return model, encoded.batch(range(4))


def summed(model: nn.Module, batch: Batch) -> Tensor:
    """The gradient of each record, one row each."""
    rows = [row_gradients(model.eval(), loss, batch, row)[1] for row in range(4)]
    model.train()
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def clipped(each: Tensor) -> tuple[float, Tensor]:
    """A bound that clips half of the records, and their clipped sum."""
    norms = each.norm(dim=1, keepdim=True)
    bound = float(np.median(norms))
    return bound, (each * (bound / norms).clamp(max=1.0)).sum(0)


@pytest.mark.parametrize(
    ("kind", "clipping"),
    [*((kind, "ghost") for kind in KINDS),
     *((kind, "per_sample") for kind in ("bert", "modernbert", "llama", "qwen3"))],
)  # fmt: skip
def test_the_clipped_sum_is_that_of_autograd(kind: str, clipping: Any, tmp_path: Path) -> None:
    model, batch = prepared_as(tmp_path, kind, initializer_range=0.2)
    way = checked_clipping(model, loss, batch, clipping)
    assert way == ("one_by_one" if BY_KIND[kind].one_by_one else clipping)
    bound, expected = clipped(summed(model, batch))
    found = clipped_sum(model, loss, batch, Bounds(bound, clipping=way))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * bound)


@pytest.mark.parametrize("kind", ["deberta-v2", "mpnet", "gpt2"])
def test_without_the_check_a_shared_table_would_end_the_run(kind: str, tmp_path: Path) -> None:
    """DeBERTa's keys, and MPNet's and GPT-2's places, also read a table that all records share."""
    model, batch = prepared_as(tmp_path, kind, frozen=kind == "deberta-v2", initializer_range=0.2)
    with pytest.raises(ModelError, match="one per record"):
        clipped_sum(model, loss, batch, Bounds(1.0))
    assert checked_clipping(model, loss, batch, "per_sample") == "one_by_one"


def test_without_the_check_layers_that_turn_time_to_the_front_would_break_the_bound() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.Identity()
            self.inner = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.transpose(0, 1)).transpose(0, 1)
            return (out * torch.tensor([1.0, 9.0])).mean((1, 2))

    def turned(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(batch["x"])
        return found

    model, square = Turned(), {"x": torch.randn(2, 2, 3)}  # as many places as records: shapes fit
    each = [
        torch.cat([g.flatten() for g in row_gradients(model, turned, square, k)[1]]) for k in (0, 1)
    ]
    expected = sum(g * min(1.0, 0.5 / float(g.norm())) for g in each)
    found = clipped_sum(model, turned, square, Bounds(0.5))
    assert float((found - expected).norm()) > 0.1 * 0.5
    assert checked_clipping(model, turned, square, "ghost") == "one_by_one"


def test_norms_are_known_by_what_they_hold(tmp_path: Path) -> None:
    norms = {"llama": "LlamaRMSNorm", "bert": "LayerNorm", "gemma3_text": "RMSNorm"}
    for kind, name in norms.items():
        model, _ = prepared_as(tmp_path / kind, kind)
        found = {type(module).__name__ for module in model.modules() if is_norm(module)}
        assert any(one.endswith(name) for one in found) and len(found) == 1
