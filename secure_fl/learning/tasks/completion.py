"""Completion: a decoder learns to write what follows a prompt: an answer, a line below a note.

Only the completion's tokens are learned and measured. Position t is labelled by the token after it,
so that labels and logits stand side by side, as in the other tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError, ModelError
from secure_fl.learning.counts import Counts, Rows, products
from secure_fl.learning.intervals import Interval, delta, wilson
from secure_fl.learning.tasks.base import (
    Batch,
    Head,
    Reduction,
    Task,
    device_of,
    expect,
    inference,
)
from secure_fl.learning.tasks.table import IGNORED, Table, padded

ROOM = 4  # of a text that is to be written, one part in so many is kept free for its completion
TALLY = "completions"  # [all right, records, tokens right, tokens, the sum of their losses]
SQUARES = "squares"  # of their products
MOST = 700.0  # nats of a token: e to more is no number


@dataclass(frozen=True)
class Completion(Task):
    """A prompt, and the text that completes it."""

    head: ClassVar[Head] = "causal"

    @property
    def metric(self) -> str:
        """The share of tokens that are guessed behind the true ones before them."""
        return "token_accuracy"

    def encode(
        self, examples: Sequence[Example], tokenizer: Any, *, labelled: bool = True
    ) -> Table:
        """Prompt, completion and an end; of prompts that are too long, the end is kept."""
        end, most = end_of(tokenizer), min(self.max_length, tokenizer.model_max_length)
        kept = most - max(1, most // ROOM)  # of a prompt without a completion
        rows, labels = [], []
        for asked, said in parts_of(examples, tokenizer, labelled=labelled):
            written = [*said, end][: most - 1] if labelled else []
            asked = shortened(asked or [end], most - len(written) if labelled else kept, tokenizer)
            rows.append(asked + written)
            labels.append([IGNORED] * (len(asked) - 1) + written + [IGNORED])
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        columns = {"input_ids": padded(rows, tokenizer.pad_token_id)}
        if labelled:
            columns["labels"] = padded(labels, IGNORED)
        return Table(columns, lengths, {})

    def outputs(self, model: nn.Module, batch: Batch, **options: Any) -> Any:
        """As other tasks, without a cache: nothing is written here."""
        return super().outputs(model, batch, use_cache=False, **options)

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Cross-entropy, averaged over each completion's tokens, so that records weigh alike."""
        rows = per_record(token_losses(logits, batch["labels"]), batch["labels"])
        return rows if reduction == "none" else rows.mean()

    def kept(self, logits: Tensor, batch: Batch) -> Tensor:
        """Each token's loss, and the likeliest one's id: scores of all words would fill memory."""
        return torch.stack([token_losses(logits, batch["labels"]), logits.argmax(-1).float()], -1)

    def losses(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
        """Each record's loss, of what is kept of its logits."""
        pairs = zip(logits, batches, strict=True)
        found = [per_record(kept[..., 0], batch["labels"]) for kept, batch in pairs]
        return torch.cat([torch.zeros(0), *found])

    def added(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> dict[str, Rows]:
        """What perplexity and exact matches over all hospitals follow from."""
        every = [torch.zeros(0, 5).double()]
        for found, batch in zip(logits, batches, strict=True):
            said = batch["labels"] != IGNORED
            losses, right = found[..., 0].double(), (found[..., 1] == batch["labels"]) & said
            whole = (right | ~said).all(-1)
            one, lost = torch.ones(len(said)), (losses * said).sum(-1)
            parts = (whole, one, right.sum(-1), said.sum(-1), lost)
            every.append(torch.stack([part.double() for part in parts], dim=1))
        matrix = torch.cat(every).numpy()
        return {TALLY: Rows.of_values(matrix), SQUARES: products(matrix)}

    def score(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, float]:
        """Exact matches, tokens that are guessed, and perplexity."""
        return self.rates(self.counts(logits, batches))

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Wilson's of exact matches; others as ratios of sums over records."""
        matches, records, *_ = counts[TALLY]
        some = {name: counts[name] for name in (TALLY, SQUARES)}
        shares = delta(self.rates, some, ["token_accuracy"], SQUARES, TALLY)
        many = delta(self.rates, some, ["perplexity"], SQUARES, TALLY, within=(1.0, np.inf))
        whole = wilson(matches, records)
        return shares | many | ({} if whole is None else {"exact_match": whole})

    def rates(self, counts: Counts) -> dict[str, float]:
        """As `score`: greedy writing gives the completion if and only if each token is guessed."""
        if TALLY not in counts:
            return {}
        matches, records, right, tokens, losses = counts[TALLY]
        return {
            "exact_match": float(matches / max(records, 1)),
            "token_accuracy": float(right / max(tokens, 1)),
            "perplexity": float(np.exp(min(losses / max(tokens, 1), MOST))),
        }

    def decode(self, logits: Tensor, batch: Batch) -> list[list[int]]:
        """The likeliest token at each place of each completion, of what is kept of logits."""
        said = batch["labels"] != IGNORED
        return [row[at].int().tolist() for row, at in zip(logits[..., 1], said, strict=True)]

    def predict(
        self, model: nn.Module, examples: Sequence[Example], tokenizer: Any, batch_size: int = 64
    ) -> list[dict[str, Any]]:
        """What the model writes behind each prompt; prompt and answer fit `max_length`.

        Prompts of one length are answered together: nothing is padded, so company changes nothing.
        """
        encoded = self.encode(examples, tokenizer, labelled=False)
        said = [""] * len(examples)
        with inference(model):
            for rows in alike(encoded.lengths.tolist(), batch_size):
                asked = encoded.batch(rows, device=device_of(model))
                for row, written in zip(rows, self._written(model, asked, tokenizer), strict=True):
                    said[row] = tokenizer.decode(written, skip_special_tokens=True).strip()
        return [
            {"id": example.id, "completion": text}
            for example, text in zip(examples, said, strict=True)
        ]

    def _written(self, model: Any, asked: Batch, tokenizer: Any) -> list[list[int]]:
        """The likeliest tokens behind each prompt, one after the other, up to the text's end."""
        end = end_of(tokenizer)
        start, most = asked["input_ids"].shape[1], min(self.max_length, tokenizer.model_max_length)
        written = model.generate(
            **asked,
            max_new_tokens=most - start,
            do_sample=False,  # nor what else a checkpoint may ask for
            num_beams=1,
            repetition_penalty=1.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=end,
        )
        return [[*takewhile(lambda word: word != end, row)] for row in written[:, start:].tolist()]


def alike(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows of one length, `most` at a time."""
    rows: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows.setdefault(length, []).append(row)
    for together in rows.values():
        yield from (together[at : at + most] for at in range(0, len(together), most))


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each token of the completions; 0 elsewhere."""
    return F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(labels)


def per_record(losses: Tensor, labels: Tensor) -> Tensor:
    """The mean over each completion's tokens."""
    return losses.sum(-1) / (labels != IGNORED).sum(-1).clamp(min=1)


def parts_of(
    examples: Sequence[Example], tokenizer: Any, *, labelled: bool
) -> list[tuple[list[int], list[int]]]:
    """The tokens of each prompt, and those of what completes it, cut where the prompt ends.

    Both are read as one text, because tokenizers read a word by what stands before it.
    """
    pairs = [prompted(example, row, labelled) for row, example in enumerate(examples)]
    if not pairs:
        return []
    texts = [" ".join((prompt, *said)) for prompt, *said in pairs]
    read = tokenizer(texts, return_attention_mask=False, return_token_type_ids=False, verbose=False)
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id}
    found = []
    for (prompt, *_), encoding in zip(pairs, read.encodings, strict=True):
        ids = list(encoding.ids)
        while ids and ids[-1] in ends:  # some tokenizers end every text
            ids.pop()
        until = np.array(encoding.offsets).reshape(-1, 2)[: len(ids), 1]
        at = int((until <= len(prompt)).sum())
        found.append((ids[:at], ids[at:]))
    return found


def prompted(example: Example, row: int, labelled: bool) -> tuple[str, ...]:
    """The prompt, and where it is needed its completion."""
    expect(example, Text, row, "completion")
    assert isinstance(example, Text)  # noqa: S101 - for the type checker
    if not labelled:
        return (example.text.rstrip(),)
    if example.pair is None or not example.pair.strip():
        raise DataError(
            "the completion is missing",
            row=row,
            field="pair",
            fix="give each prompt its completion, in a column called completion",
        )
    return example.text.rstrip(), example.pair.strip()


def shortened(prompt: list[int], room: int, tokenizer: Any) -> list[int]:
    """The end of a prompt that does not fit, behind the token that begins every text."""
    if len(prompt) <= room:
        return prompt
    lead = prompt[:1] if room > 1 and prompt[0] in tokenizer.all_special_ids else []
    return lead + prompt[len(prompt) - room + len(lead) :]


def end_of(tokenizer: Any) -> int:
    """The token that ends a text."""
    for end in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if end is not None:
            return int(end)
    raise ModelError(
        "the tokenizer has no token that ends a text, so no completion would end",
        fix="give it an eos_token, or use another model",
    )


def open_ended(tokenizer: Any) -> Any:
    """A tokenizer that puts no end behind a prompt, so that `pipeline` asks as `encode` does."""
    from tokenizers.processors import TemplateProcessing

    around = tokenizer("")["input_ids"]
    starts = tokenizer.convert_ids_to_tokens([at for at in around if at != end_of(tokenizer)])
    if len(starts) == len(around):
        return tokenizer
    changed = deepcopy(tokenizer)
    changed.backend_tokenizer.post_processor = TemplateProcessing(
        single=[*starts, "$A"],
        pair=[*starts, "$A", "$B"],
        special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in starts],
    )
    return changed
