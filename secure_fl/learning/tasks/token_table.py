"""Tokenised records: one padded tensor per column, cut to the longest row of a batch.

A long record is several rows: overlapping windows, each as long as the model's input. Of two
windows that contain a token, the one with more context around it owns the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl.data.examples import Text
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.tasks.batches import MODEL_INPUTS, WINDOWS, Batch
from secure_fl.learning.tasks.task import (
    Device,
    Encoded,
    Examples,
    Indices,
    Rng,
    Task,
    expect,
    move,
)
from secure_fl.settings import TaskSettings

IGNORED = -100  # cross-entropy skips it
NAME_PAIRS = "name the column of the second text, or use kind 'classification'"
FILL_PAIRS = "other records have one: fill the column of second texts, or remove it"


@dataclass(frozen=True, slots=True)
class TokenTable(Encoded):
    """Rows of tokens (`tokens`: columns of N x longest) and values per row (`values`)."""

    tokens: Mapping[str, Tensor]
    lengths: Tensor
    values: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def labelled(self) -> bool:
        """True if the rows have labels."""
        return "labels" in self.values or "labels" in self.tokens

    def sizes(self) -> Tensor:
        """Each row's tokens."""
        return self.lengths

    def subset(self, indices: Indices) -> TokenTable:
        """The rows at `indices`, in that order."""
        at = torch.as_tensor(indices, dtype=torch.long)
        return TokenTable(
            {name: column[at] for name, column in self.tokens.items()},
            self.lengths[at],
            {name: column[at] for name, column in self.values.items()},
        )

    def with_values(self, **values: Tensor) -> TokenTable:
        """The rows with more values, one for each."""
        return replace(self, values={**self.values, **values})

    @classmethod
    def joined(cls, tables: Sequence[TokenTable]) -> TokenTable:
        """The rows of tables with the same columns, one table after the other."""
        width = max(column.shape[1] for table in tables for column in table.tokens.values())
        tokens = {
            name: torch.cat([_widened(name, table.tokens[name], width) for table in tables])
            for name in tables[0].tokens
        }
        values = {name: torch.cat([t.values[name] for t in tables]) for name in tables[0].values}
        return cls(tokens, torch.cat([t.lengths for t in tables]), values)

    def batch(self, indices: Indices, generator: Rng = None, device: Device = "cpu") -> Batch:
        """The rows padded to their longest; nothing is sampled, so the generator is unused."""
        at = torch.as_tensor(indices, dtype=torch.long)
        lengths = self.lengths[at]
        longest = int(lengths.max()) if len(at) else 1
        batch = {name: column[at, :longest].long() for name, column in self.tokens.items()}
        batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        batch |= {name: column[at] for name, column in self.values.items()}
        return move(batch, device)


def _widened(name: str, column: Tensor, width: int) -> Tensor:
    """Pad a column with values that models and losses ignore."""
    filler = 0 if name in MODEL_INPUTS else IGNORED
    return F.pad(column, (0, width - column.shape[1]), value=filler)


def tokenise(
    tokenizer: Any,
    texts: Sequence[Any],
    pairs: Sequence[str] | None,
    max_length: int,
    *,
    words: bool = False,
    beyond: bool = False,
) -> Any:
    """Run the tokenizer once, without padding, up to the maximum lengths of task and model.

    `beyond`: the model reads the tokens in windows, so only the task's length counts.
    """
    return tokenizer(
        texts,
        pairs,
        truncation=True,
        max_length=max_length if beyond else min(max_length, tokenizer.model_max_length),
        padding=False,
        is_split_into_words=words,
        return_attention_mask=False,
    )


def token_columns(pieces: Any, tokenizer: Any) -> tuple[dict[str, Tensor], Tensor]:
    """The tokenizer's columns as padded tensors, and the rows' lengths."""
    lengths = torch.tensor([len(row) for row in pieces["input_ids"]], dtype=torch.long)
    columns = {"input_ids": padded(pieces["input_ids"], tokenizer.pad_token_id)}
    if "token_type_ids" in pieces:
        columns["token_type_ids"] = padded(pieces["token_type_ids"], 0)
    return columns, lengths


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Rows of unequal length as one int32 tensor."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    longest = int(lengths.max(initial=1))
    table = np.full((len(rows), longest), filler, np.int32)
    flat = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
    table[np.arange(longest) < lengths[:, None]] = flat
    return torch.from_numpy(table)


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each labelled token; 0 elsewhere."""
    return F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(labels)


def per_record(losses: Tensor, labels: Tensor) -> Tensor:
    """The mean over each record's labelled tokens, so that records count equally."""
    return losses.sum(-1) / (labels != IGNORED).sum(-1).clamp(min=1)


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """The places of windows in a text's tokens, without the special tokens around each window."""

    before: tuple[int, ...]  # special tokens
    after: tuple[int, ...]  # a prompt and special tokens
    special: tuple[int, int]  # numbers of special tokens before and after a text
    size: int
    overlap: int
    windows: int

    @classmethod
    def of(
        cls, tokenizer: Any, task: Task | TaskSettings, prompt: Sequence[int] = ()
    ) -> WindowLayout:
        """Fit windows with a prompt and the tokenizer's special tokens to the model's input."""
        length = min(task.max_length, tokenizer.model_max_length)
        one = tokenizer("a", return_special_tokens_mask=True)
        ids, special = one["input_ids"], one["special_tokens_mask"]
        first, last = special.index(0), len(ids) - special[::-1].index(0)
        after = (*prompt, *ids[last:])
        size = length - first - len(after)
        overlap = 0
        if task.windows > 1:
            overlap = length // 4 if task.overlap is None else task.overlap
        if overlap >= size:
            raise SettingsError(
                f"the model reads {length} tokens at a time, of which {max(size, 0)} are left for "
                f"the text, and {overlap} of them are in the next window too",
                fix="raise task.max_length, or shorten task.overlap and task.prompt",
                field="task.overlap" if task.windows > 1 else "task.prompt",
            )
        special = first, len(ids) - last
        return cls(tuple(ids[:first]), after, special, size, overlap, task.windows)

    @property
    def longest(self) -> int:
        """The number of tokens in all windows, with special tokens around the text."""
        text = self.windows * (self.size - self.overlap) + self.overlap
        return text + sum(self.special)

    def spans(self, tokens: int) -> list[tuple[int, int]]:
        """List the first token and the token after the last of each window of a text."""
        step = self.size - self.overlap
        count = max(1, min(self.windows, -(-(tokens - self.overlap) // step)))
        return [(at * step, min(at * step + self.size, tokens)) for at in range(count)]

    def owners(self, tokens: int) -> list[int]:
        """Name each token's window: the edges between windows are in the middle of overlaps."""
        spans = self.spans(tokens)
        edges = [start + self.overlap // 2 for start, _ in spans[1:]]
        ends = [*edges, spans[-1][1]]
        starts = [0, *edges]
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        return list(chain.from_iterable([at] * size for at, size in enumerate(sizes)))


@dataclass(frozen=True, slots=True)
class WindowTable(Encoded):
    """Records as rows of windows (`rows`), with the number of each record's windows."""

    rows: TokenTable
    counts: Tensor
    values: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def labelled(self) -> bool:
        """True if the records have labels."""
        return "labels" in self.values or self.rows.labelled

    def sizes(self) -> Tensor:
        """Each record's tokens, in all its windows."""
        ends = torch.cat([torch.zeros(1, dtype=torch.long), self.rows.lengths.cumsum(0)])
        return ends[self.counts.cumsum(0)] - ends[self.counts.cumsum(0) - self.counts]

    def subset(self, indices: Indices) -> WindowTable:
        """The records at `indices`, in that order."""
        at = torch.as_tensor(indices, dtype=torch.long)
        values = {name: column[at] for name, column in self.values.items()}
        return WindowTable(self.rows.subset(self._places(at)[0]), self.counts[at], values)

    def with_values(self, **values: Tensor) -> WindowTable:
        """The records with more values, one for each."""
        return replace(self, values={**self.values, **values})

    def batch(self, indices: Indices, generator: Rng = None, device: Device = "cpu") -> Batch:
        """The records' windows, padded to the most windows and the longest window among them."""
        at = torch.as_tensor(indices, dtype=torch.long)
        places, present = self._places(at)
        batch: Batch = {WINDOWS: self.counts[at]}
        for name, column in self.rows.batch(places).items():
            filler = 0 if name in MODEL_INPUTS else IGNORED
            shown = torch.full((*present.shape, column.shape[1]), filler, dtype=column.dtype)
            shown[present] = column
            batch[name] = shown if name in MODEL_INPUTS else shown.flatten(1)
        batch |= {name: column[at] for name, column in self.values.items()}
        return move(batch, device)

    def _places(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of these records, and the windows that each of them has."""
        counts = self.counts[at]
        present = torch.arange(int(counts.max()) if len(at) else 1) < counts[:, None]
        first = (self.counts.cumsum(0) - self.counts)[at]
        return (first[:, None] + torch.arange(present.shape[1]))[present], present


Table: TypeAlias = TokenTable | WindowTable


def window_table(
    layout: WindowLayout,
    tokenizer: Any,
    pieces: Any,
    columns: Mapping[str, Sequence[Sequence[int]]],
) -> WindowTable:
    """Cut tokenised texts into windows; `columns`: further values of their tokens.

    A further value is only in the window that owns its token, and `IGNORED` elsewhere.
    """
    rows: dict[str, list[list[int]]] = {name: [] for name in ("input_ids", *columns)}
    before, after = len(layout.before), len(layout.after)
    counts = []
    for at, every in enumerate(pieces["input_ids"]):
        inside = slice(layout.special[0], len(every) - layout.special[1])
        text = every[inside]
        spans, owners = layout.spans(len(text)), layout.owners(len(text))
        counts.append(len(spans))
        for window, (start, end) in enumerate(spans):
            rows["input_ids"].append([*layout.before, *text[start:end], *layout.after])
            mine = [owner == window for owner in owners[start:end]]
            for name, column in columns.items():
                values = zip(column[at][inside][start:end], mine, strict=True)
                own = [value if is_mine else IGNORED for value, is_mine in values]
                rows[name].append([*[IGNORED] * before, *own, *[IGNORED] * after])
    lengths = torch.tensor([len(row) for row in rows["input_ids"]], dtype=torch.long)
    tokens = {name: padded(some, IGNORED) for name, some in rows.items()}
    tokens["input_ids"] = padded(rows["input_ids"], tokenizer.pad_token_id)
    if "token_type_ids" in pieces:
        tokens["token_type_ids"] = torch.zeros_like(tokens["input_ids"])
    return WindowTable(TokenTable(tokens, lengths, {}), torch.tensor(counts, dtype=torch.long), {})


def encode_texts(
    examples: Examples, tokenizer: Any, task: Task, layout: WindowLayout | None = None
) -> Table:
    """Tokenise texts, with their second texts if any has one; kind "pair" requires them.

    `layout`: the places of windows and of a prompt. Default: the windows of the task.
    """
    texts, pairs = _texts_and_pairs(examples, task.kind)
    paired = bool(pairs) or task.kind == "pair"
    if paired and (task.windows > 1 or layout is not None):
        raise DataError(
            "records have a second text, and pairs have no windows and no prompt",
            field="pair",
            fix="remove task.windows and task.prompt, or the column of second texts",
        )
    if not texts:
        empty = torch.zeros((0, 1), dtype=torch.int32)
        return TokenTable({"input_ids": empty}, torch.zeros(0, dtype=torch.long), {})
    if task.windows > 1 and layout is None:
        layout = WindowLayout.of(tokenizer, task)
    if layout is not None:
        pieces = tokenise(tokenizer, texts, None, layout.longest, beyond=True)
        table = window_table(layout, tokenizer, pieces, {})
        return table if task.windows > 1 else table.rows
    pieces = tokenise(tokenizer, texts, pairs if paired else None, task.max_length)
    return TokenTable(*token_columns(pieces, tokenizer), {})


def _texts_and_pairs(examples: Examples, kind: str) -> tuple[list[str], list[str]]:
    """List the texts, and the second texts; these are none if no record has one."""
    records = [expect(example, Text, row, kind) for row, example in enumerate(examples)]
    texts = [record.text for record in records]
    if kind != "pair" and all(record.pair is None for record in records):
        return texts, []
    for row, record in enumerate(records):
        if record.pair is None:
            raise DataError(
                "the second text is missing",
                record=row + 1,
                field="pair",
                fix=NAME_PAIRS if kind == "pair" else FILL_PAIRS,
            )
    return texts, [record.pair or "" for record in records]
