"""Named entities: one IOB2 tag per token, learned at each token's first word piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl.data.examples import Example, Tagged
from secure_fl.errors import DataError
from secure_fl.learning import metrics
from secure_fl.learning.counts import ALL, ROW, Counts, Rows, by_name
from secure_fl.learning.intervals import Interval, delta, wilson
from secure_fl.learning.rates import span_rates
from secure_fl.learning.tasks.base import Batch, Head, Reduction, Task, expect, wrong_label
from secure_fl.learning.tasks.table import IGNORED, Table, padded, token_columns, tokenise


@dataclass(frozen=True)
class NER(Task):
    """Tags of tokens.

    Batches carry `words`: the token's index at its first piece, -100 elsewhere, so unlabelled
    sentences too say where predictions count. Tokens beyond `max_length` are neither learned nor
    scored.
    """

    head: ClassVar[Head] = "token"

    @property
    def metric(self) -> str:
        """Entity F1."""
        return "f1"

    def encode(
        self, examples: Sequence[Example], tokenizer: Any, *, labelled: bool = True
    ) -> Table:
        """Word pieces, and the tag's id at the first piece of each token."""
        sentences = [sentence(example, row, labelled) for row, example in enumerate(examples)]
        # Byte-level tokenizers mark a word's start by its space, which split words have lost.
        spaced = " " if "ByteLevel" in repr(tokenizer.backend_tokenizer.pre_tokenizer) else ""
        tokens = [[spaced + token for token in tagged.tokens] for tagged in sentences]
        if not tokens:
            return Table({}, torch.zeros(0, dtype=torch.long), {})
        pieces = tokenise(tokenizer, tokens, None, self.max_length, words=True)
        columns, lengths = token_columns(pieces, tokenizer)
        firsts = [first_pieces(encoding.word_ids) for encoding in pieces.encodings]
        columns["words"] = padded(firsts, IGNORED)
        if labelled:
            ids = {label: index for index, label in enumerate(self.labels)}
            labels = []
            for row, (tagged, words) in enumerate(zip(sentences, firsts, strict=True)):
                tags = [ids.get(tag, -1) for tag in tagged.tags or ()]
                if -1 in tags:
                    raise wrong_label(row, f"tags[{tags.index(-1)}]", self.labels)
                labels.append([IGNORED if word == IGNORED else tags[word] for word in words])
            columns["labels"] = padded(labels, IGNORED)
        return Table(columns, lengths, {})

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Cross-entropy, averaged over each sentence's tokens, so that sentences weigh alike."""
        labels = batch["labels"]
        each = F.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(labels)
        rows = each.sum(-1) / (labels != IGNORED).sum(-1).clamp(min=1)
        return rows if reduction == "none" else rows.mean()

    def decode(self, logits: Tensor, batch: Batch) -> list[list[str]]:
        """Return the likeliest tag of each token that the model saw, in the order of the tokens."""
        return self.tags(logits.argmax(-1), batch["words"] != IGNORED)

    def tags(self, ids: Tensor, at: Tensor) -> list[list[str]]:
        """Names of the tags at the marked positions, one list per sentence."""
        names = np.array(self.labels, dtype=object)[ids[at].cpu().numpy()]
        ends = np.cumsum(at.sum(-1).cpu().numpy())[:-1]
        return [list(row) for row in np.split(names, ends)]

    def score(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, float]:
        """Strict entity precision, recall and F1, and F1 of each entity type."""
        return metrics.entity_scores(*self.read(logits, batches))

    def read(
        self, logits: Sequence[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Tags of each sentence, true and guessed."""
        gold: list[list[str]] = []
        guessed: list[list[str]] = []
        for z, batch in zip(logits, batches, strict=True):
            gold += self.tags(batch["labels"], batch["labels"] != IGNORED)
            guessed += self.decode(z, batch)
        return gold, guessed

    def added(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> dict[str, Rows]:
        """Hits, false alarms and missed ones of each entity type."""
        gold, guessed = self.read(logits, batches)
        kinds = [label[2:] for label in self.labels if label.startswith("B-")]
        return by_name(outcomes(gold, guessed, kinds), by_label=by_label)

    def rates(self, counts: Counts) -> dict[str, float]:
        """As `score`, of the types that occur; where label sets differ only of all together."""
        rows = entity_rows(counts)
        if not rows:
            return {}
        f1 = {f"f1/{name}": span_rates(row)["f1"] for name, row in rows.items() if row[0] + row[2]}
        every = [span_rates(row)["f1"] for row in rows.values() if sum(row)]
        macro = {"macro_f1": float(np.mean(every)) if every else 0.0}
        by_type = {} if ALL in counts else macro | f1
        return span_rates(np.sum(list(rows.values()), axis=0)) | by_type

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Wilson's of precision and recall; of F1 as if entities were independent of each other."""
        rows = entity_rows(counts)
        if not rows:
            return {}
        hits, false, missed = np.sum(list(rows.values()), axis=0)
        shares = {"precision": wilson(hits, hits + false), "recall": wilson(hits, hits + missed)}
        found = {name: interval for name, interval in shares.items() if interval is not None}
        every = {name: counts[name] for name in counts if name == ALL or name.startswith(ROW)}
        names = [name for name in self.rates(every) if name not in shares]
        return found | delta(self.rates, every, names)

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Entities with type, text, and first and past-last token; unseen tokens are "O"."""
        assert isinstance(example, Tagged)  # noqa: S101 - for the type checker
        tags = ["O"] * len(example.tokens)
        words = batch["words"][0]
        for word, tag in zip(
            words[words != IGNORED].tolist(), self.decode(logits, batch)[0], strict=True
        ):
            tags[word] = tag
        entities = [
            {"type": kind, "start": start, "end": end, "text": " ".join(example.tokens[start:end])}
            for kind, start, end in spans(tags)
        ]
        return {"entities": entities, "tags": tags}


def sentence(example: Example, row: int, labelled: bool) -> Tagged:
    """Return a sentence whose tags, where they are needed, are one per token."""
    expect(example, Tagged, row, "ner")
    assert isinstance(example, Tagged)  # noqa: S101 - for the type checker
    if labelled and (example.tags is None or len(example.tags) != len(example.tokens)):
        raise DataError(
            f"{len(example.tokens)} tokens have {len(example.tags or ())} tags",
            row=row,
            field="tags",
            fix="give one IOB2 tag per token",
        )
    return example


def first_pieces(word_ids: Sequence[int | None]) -> list[int]:
    """Each piece's token if it is that token's first piece, else -100."""
    before = (None, *word_ids)
    return [
        IGNORED if word is None or word == previous else word
        for previous, word in zip(before, word_ids, strict=False)
    ]


def entity_rows(counts: Counts) -> dict[str, Any]:
    """[hits, false alarms, missed] by type, or of all."""
    return {
        name.removeprefix(ROW): row
        for name, row in counts.items()
        if name == ALL or name.startswith(ROW)
    }


def outcomes(
    gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]], kinds: Sequence[str]
) -> dict[str, Rows]:
    """What each sentence adds to [hits, false alarms, missed] of each type."""
    found: dict[str, list[tuple[int, int]]] = {kind: [] for kind in kinds}
    for record, sides in enumerate(zip(gold, guessed, strict=True)):
        true, said = (set(spans(tags)) for tags in sides)
        for place, some in enumerate((true & said, said - true, true - said)):
            for kind, *_ in some:
                found[kind].append((record, place))
    rows = {}
    for kind, every in found.items():
        at = np.array(every, dtype=np.int64).reshape(-1, 2)
        rows[kind] = Rows(len(gold), 3, at[:, 0], at[:, 1], np.ones(len(every), np.int64))
    return rows


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first token, past-last token) of each entity; an I- that continues nothing is none."""
    found: list[tuple[str, int, int]] = []
    for at, tag in enumerate(tags):
        if tag.startswith("B-"):
            found.append((tag[2:], at, at + 1))
        elif tag.startswith("I-") and found and found[-1][::2] == (tag[2:], at):
            found[-1] = (tag[2:], found[-1][1], at + 1)
    return found


def tag_labels(types: Sequence[str]) -> tuple[str, ...]:
    """List "O", then B- and I- of each entity type; full tags are accepted in place of types."""
    bare = [name[2:] if name[:2] in ("B-", "I-") else name for name in types if name != "O"]
    return ("O", *(f"{place}-{kind}" for kind in dict.fromkeys(bare) for place in "BI"))


def entity_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the tags of the entity types that occur, sorted by type."""
    types = set()
    for row, example in enumerate(examples):
        for at, tag in enumerate(sentence(example, row, labelled=True).tags or ()):
            if tag != "O" and not (tag[:2] in ("B-", "I-") and tag[2:]):
                raise DataError(
                    "a tag is not IOB2", row=row, field=f"tags[{at}]", fix="use O, B-… and I-…"
                )
            types.add(tag)
    return tag_labels(sorted({tag[2:] for tag in types - {"O"}}))
