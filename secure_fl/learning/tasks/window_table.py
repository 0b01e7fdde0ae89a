"""Tokenised records in overlapping windows, each as long as the model's input.

Of two windows that contain a token, the one with more context around it owns the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from secure_fl.errors import SettingsError
from secure_fl.learning.tasks.batches import MODEL_INPUTS, WINDOWS, Batch
from secure_fl.learning.tasks.task import Encoded, Indices, Task, move
from secure_fl.learning.tasks.token_table import IGNORED, TokenTable, padded
from secure_fl.settings import TaskSettings


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

    def batch(
        self,
        indices: Indices,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
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
