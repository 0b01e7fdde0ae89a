"""Made-up records: the student also learns its teacher's answers to changed records.

A batch's records are changed with nothing but their own words, so a record's loss depends on that
record alone. The teacher answers without dropout; no label is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from secure_fl.learning.tasks import Batch

CUT = 0.6  # share of the records of which only a span is attended to
SHORTEST = 1 / 3  # of a span, as a share of the record's words
MASKED, REPLACED = 0.1, 0.2  # a word is masked below the first, replaced below the second
IGNORED_LABEL = -100


@dataclass(frozen=True, slots=True)
class Words:
    """The tokens of a tokenizer that are not words."""

    special: tuple[int, ...]
    mask: int | None  # None: words are replaced instead

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """Read the tokens of a tokenizer."""
        return cls(tuple(tokenizer.all_special_ids), tokenizer.mask_token_id)

    def made_up(self, batch: Batch) -> Batch:
        """Attend to a span of most records; mask a tenth of the words, and replace a tenth."""
        shape = batch["input_ids"].shape  # (records, tokens), or with windows in the middle
        ids, seen = batch["input_ids"].flatten(1), batch["attention_mask"].flatten(1).bool()
        words = seen & ~torch.isin(ids, torch.tensor(self.special, device=ids.device))
        seen = seen & (span(words) | ~words)
        draw = torch.rand(ids.shape, device=ids.device)
        at = torch.multinomial(words.float() + 1e-9, ids.shape[1], replacement=True)
        changed = torch.where(words & (draw < REPLACED), ids.gather(1, at), ids)
        if self.mask is not None:
            changed = changed.masked_fill(words & (draw < MASKED), self.mask)
        made = {**batch, "input_ids": changed.view(shape)}
        made["attention_mask"] = seen.to(batch["attention_mask"]).view(shape)
        labels = batch["labels"]
        if labels.shape == ids.shape:  # a label for each token
            made["labels"] = labels.masked_fill(~seen, IGNORED_LABEL)
        return made


def span(words: Tensor) -> Tensor:
    """Draw a span of each record's words, or all of them; True inside."""
    count, draw = words.sum(1), torch.rand(3, len(words), device=words.device)
    share = torch.where(draw[0] < CUT, SHORTEST + (1 - SHORTEST) * draw[1], 1.0)
    size = (share * count).ceil().clamp(min=1)
    first = (draw[2] * (count - size + 1)).floor().clamp(min=0)
    place = words.cumsum(1) - 1
    return (place >= first[:, None]) & (place < (first + size)[:, None])
