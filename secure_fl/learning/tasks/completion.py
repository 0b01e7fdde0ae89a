"""Completion: a decoder writes the text that follows a prompt, such as an answer or a summary.

Only the completion's tokens are trained on and measured. Position t is labelled by the token after
it, so that labels and logits have the same positions, as in the other tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError, ModelError
from secure_fl.learning.metric_counts import Contributions, Counts, products
from secure_fl.learning.metrics import Interval, delta, wilson
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.task import (
    Batches,
    Examples,
    Head,
    Logits,
    Reduction,
    Rows,
    Task,
    device_of,
    expect,
    inference,
)
from secure_fl.learning.tasks.token_table import (
    IGNORED,
    TokenTable,
    padded,
    per_record,
    token_losses,
)

RESERVED = 4  # 1/RESERVED of a text without a completion is reserved for it
TALLY = "completions"  # [correct records, records, correct tokens, tokens, sum of their losses]
SQUARES = "squares"  # of their products
MAX_NATS = 700.0  # of a token, to avoid an overflow


@dataclass(frozen=True)
class Completion(Task):
    """A prompt and its completion."""

    head: ClassVar[Head] = "causal"
    metric: ClassVar[str] = "token_accuracy"  # of tokens after the true ones before them

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> TokenTable:
        """Tokenise prompts with their completions and an end; long prompts lose their start."""
        end, most = end_of(tokenizer), min(self.max_length, tokenizer.model_max_length)
        unlabelled = most - max(1, most // RESERVED)  # tokens of a prompt without a completion
        rows, labels = [], []
        for prompt, completion in parts_of(examples, tokenizer, labelled=labelled):
            written = [*completion, end][: most - 1] if labelled else []
            room = most - len(written) if labelled else unlabelled
            prompt = shortened(prompt or [end], room, tokenizer)
            rows.append(prompt + written)
            labels.append([IGNORED] * (len(prompt) - 1) + written + [IGNORED])
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        columns = {"input_ids": padded(rows, tokenizer.pad_token_id)}
        if labelled:
            columns["labels"] = padded(labels, IGNORED)
        return TokenTable(columns, lengths, {})

    def outputs(self, model: nn.Module, batch: Batch, **options: Any) -> Any:
        """The model's full output, without a cache, because no text is generated."""
        return super().outputs(model, batch, use_cache=False, **options)

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Cross-entropy, averaged over each completion's tokens, so that records count equally."""
        rows = per_record(token_losses(logits, batch["labels"]), batch["labels"])
        return rows if reduction == "none" else rows.mean()

    def kept(self, logits: Tensor, batch: Batch) -> Tensor:
        """Each token's loss and likeliest id, because the scores of all words would fill memory."""
        return torch.stack([token_losses(logits, batch["labels"]), logits.argmax(-1).float()], -1)

    def losses(self, logits: Logits, batches: Batches) -> Tensor:
        """Each record's loss, from the kept part of its logits."""
        pairs = zip(logits, batches, strict=True)
        losses = [per_record(kept[..., 0], batch["labels"]) for kept, batch in pairs]
        return torch.cat([torch.zeros(0), *losses])

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """The counts for perplexity, correct tokens and exact matches."""
        rows = [torch.zeros(0, 5).double()]
        for kept, batch in zip(logits, batches, strict=True):
            counted = batch["labels"] != IGNORED
            losses, right = kept[..., 0].double(), (kept[..., 1] == batch["labels"]) & counted
            exact = (right | ~counted).all(-1)
            ones, lost = torch.ones(len(counted)), (losses * counted).sum(-1)
            columns = (exact, ones, right.sum(-1), counted.sum(-1), lost)
            rows.append(torch.stack([column.double() for column in columns], dim=1))
        matrix = torch.cat(rows).numpy()
        return {TALLY: Contributions.of_values(matrix), SQUARES: products(matrix)}

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Wilson's for exact matches; the delta method's for ratios of sums over records."""
        matches, records, *_ = counts[TALLY]
        sums = {name: counts[name] for name in (TALLY, SQUARES)}
        shares = delta(self.rates, sums, ["token_accuracy"], SQUARES, TALLY)
        perplexity = delta(self.rates, sums, ["perplexity"], SQUARES, TALLY, within=(1.0, np.inf))
        exact = wilson(matches, records)
        return shares | perplexity | ({} if exact is None else {"exact_match": exact})

    def rates(self, counts: Counts) -> dict[str, float]:
        """Exact matches (as of greedy decoding), correct tokens, and perplexity."""
        if TALLY not in counts:
            return {}
        matches, records, right, tokens, losses = counts[TALLY]
        return {
            "exact_match": float(matches / max(records, 1)),
            "token_accuracy": float(right / max(tokens, 1)),
            "perplexity": float(np.exp(min(losses / max(tokens, 1), MAX_NATS))),
        }

    def decode(self, logits: Tensor, batch: Batch) -> list[list[int]]:
        """The likeliest token at each position of each completion, from the kept logits."""
        counted = batch["labels"] != IGNORED
        return [row[at].int().tolist() for row, at in zip(logits[..., 1], counted, strict=True)]

    def predict(
        self, model: nn.Module, examples: Examples, tokenizer: Any, batch_size: int = 64
    ) -> list[dict[str, Any]]:
        """Generate a completion of each prompt; together they have at most `max_length` tokens.

        Prompts of equal lengths are completed together: nothing is padded, so results are equal.
        """
        encoded = self.encode(examples, tokenizer, labelled=False)
        texts = [""] * len(examples)
        with inference(model):
            for rows in alike(encoded.lengths.tolist(), batch_size):
                prompts = encoded.batch(rows, device=device_of(model))
                written = self._written(model, prompts, tokenizer)
                for row, tokens in zip(rows, written, strict=True):
                    texts[row] = tokenizer.decode(tokens, skip_special_tokens=True).strip()
        return [
            {"id": example.id, "completion": text}
            for example, text in zip(examples, texts, strict=True)
        ]

    def _written(self, model: Any, prompts: Batch, tokenizer: Any) -> list[list[int]]:
        """Decode greedily after each prompt, up to the text's end."""
        end, start = end_of(tokenizer), prompts["input_ids"].shape[1]
        most = min(self.max_length, tokenizer.model_max_length)
        written = model.generate(
            **prompts,
            max_new_tokens=most - start,
            do_sample=False,  # these override a checkpoint's generation settings
            num_beams=1,
            repetition_penalty=1.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=end,
        )
        return [[*takewhile(lambda word: word != end, row)] for row in written[:, start:].tolist()]


def alike(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Group rows of equal lengths, at most `most` in a group."""
    rows: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows.setdefault(length, []).append(row)
    for group in rows.values():
        yield from (group[at : at + most] for at in range(0, len(group), most))


def parts_of(
    examples: Examples, tokenizer: Any, *, labelled: bool
) -> list[tuple[list[int], list[int]]]:
    """The tokens of each prompt and of its completion, split where the prompt ends.

    Both are tokenised as one text, because tokens depend on the characters before them.
    """
    pairs = [prompted(example, row, labelled) for row, example in enumerate(examples)]
    if not pairs:
        return []
    texts = [" ".join(pair) for pair in pairs]
    read = tokenizer(texts, return_attention_mask=False, return_token_type_ids=False, verbose=False)
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id}
    parts = []
    for (prompt, *_), encoding in zip(pairs, read.encodings, strict=True):
        ids = list(encoding.ids)
        while ids and ids[-1] in ends:  # some tokenizers add an end to every text
            ids.pop()
        until = np.array(encoding.offsets).reshape(-1, 2)[: len(ids), 1]
        at = int((until <= len(prompt)).sum())
        parts.append((ids[:at], ids[at:]))
    return parts


def prompted(example: Example, row: int, labelled: bool) -> tuple[str, ...]:
    """The prompt of an example, and the completion of a `labelled` one."""
    note = expect(example, Text, row, "completion")
    if not labelled:
        return (note.text.rstrip(),)
    if note.pair is None or not note.pair.strip():
        raise DataError(
            "the completion is missing",
            record=row + 1,
            field="pair",
            fix="give each prompt its completion, in a column called completion",
        )
    return note.text.rstrip(), note.pair.strip()


def shortened(prompt: list[int], room: int, tokenizer: Any) -> list[int]:
    """Cut the start of a prompt that is too long, except for the token that starts every text."""
    if len(prompt) <= room:
        return prompt
    lead = prompt[:1] if room > 1 and prompt[0] in tokenizer.all_special_ids else []
    return lead + prompt[len(prompt) - room + len(lead) :]


def end_of(tokenizer: Any) -> int:
    """The token at the end of a text."""
    for end in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if end is not None:
            return int(end)
    raise ModelError(
        "the tokenizer has no token for the end of a text, so completions would not end",
        fix="give it an eos_token, or use another model",
    )


def open_ended(tokenizer: Any) -> Any:
    """A tokenizer that adds no end to a prompt, as `pipeline` needs."""
    from tokenizers.processors import TemplateProcessing

    added = tokenizer("")["input_ids"]
    starts = tokenizer.convert_ids_to_tokens([at for at in added if at != end_of(tokenizer)])
    if len(starts) == len(added):
        return tokenizer
    changed = deepcopy(tokenizer)
    changed.backend_tokenizer.post_processor = TemplateProcessing(
        single=[*starts, "$A"],
        pair=[*starts, "$A", "$B"],
        special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in starts],
    )
    return changed
