"""Batches of tensors, and their windows: the rows that a model reads, joined by record.

A text that is longer than the model's input is read in overlapping windows, each by itself. A
text's logits are the mean of its windows' logits. A token of a sentence has the logits of one
window.

Batches of windows contain `input_ids` and `attention_mask` of (records, windows, tokens), and
`windows`, the number of each record's windows. Missing windows have no visible token, and no model
reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = dict[str, Tensor]

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WINDOWS = "windows"  # of a batch: the number of each record's windows
AT_ONCE = 64  # windows that a model reads together without gradients


def packed(batch: Batch) -> Batch:
    """The model's inputs, one row for each window that exists; without windows, unchanged."""
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    if WINDOWS not in batch:
        return inputs
    present = inputs["attention_mask"].any(-1)
    return {name: value[present] for name, value in inputs.items()}


def in_parts(inputs: Batch) -> Iterator[Batch]:
    """Split packed inputs, so that memory without gradients does not grow with the windows."""
    parts = {name: torch.split(value, AT_ONCE) for name, value in inputs.items()}
    for at in range(len(parts["input_ids"])):
        yield {name: values[at] for name, values in parts.items()}


def by_record(values: Tensor, batch: Batch, *, words: bool) -> Tensor:
    """Join one row for each packed window: the mean of a record's windows, or all its tokens.

    Rows of a batch without windows are records already.
    """
    if WINDOWS not in batch:
        return values
    present = batch["attention_mask"].any(-1)
    rows = values.new_zeros(*present.shape, *values.shape[1:])
    rows = rows.index_put(present.nonzero(as_tuple=True), values)
    if words:
        return rows.flatten(1, 2)
    exists = torch.arange(present.shape[1], device=values.device) < batch[WINDOWS][:, None]
    shares = exists.to(values.dtype) / batch[WINDOWS][:, None].to(values.dtype)
    return (rows * shares.view(*shares.shape, *(1 for _ in values.shape[1:]))).sum(1)


def all_present(batch: Batch) -> tuple[Batch, int]:
    """Show one token of every missing window, so that each record has equally many rows.

    Return the number of rows of each record too. A missing window has no part in a mean.
    """
    if WINDOWS not in batch:
        return batch, 1
    mask = batch["attention_mask"].clone()
    mask[..., 0] = 1
    return {**batch, "attention_mask": mask}, mask.shape[1]
