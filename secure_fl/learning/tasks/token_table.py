"""Tokenised rows: one padded tensor per column, cut to the longest row of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl.learning.tasks.batches import MODEL_INPUTS, Batch
from secure_fl.learning.tasks.task import Encoded, Indices, move

IGNORED = -100  # cross-entropy skips it


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

    def batch(
        self,
        indices: Indices,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
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
