"""Norms and clipped sums from what layers read and the slopes of what they gave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from secure_fl.errors import ModelError
from secure_fl.learning.dp.per_record_gradients import (
    DenseGradients,
    GradientBook,
    LookupGradients,
    ProductGradients,
    clip_and_sum,
)

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
    assert (
        kinds["last.weight"]
        is kinds["turned.weight"]
        is (ProductGradients if ghost else DenseGradients)
    )
    assert kinds["twice.weight"] is kinds["narrow.weight"] is kinds["norm.weight"] is DenseGradients
    held = torch.cat([parts[p].each().flatten(1) for p in model.parameters()], 1)
    torch.testing.assert_close(held, each, rtol=1e-4, atol=1e-5)
    norms = each.norm(dim=1)
    squares = torch.stack([part.squares() for part in parts.values()]).sum(0)
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
    together = DenseGradients(first.each() + second.each()).squares()
    assert float((together / (first.squares() + second.squares()) - 1).abs().max()) > 0.1


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
