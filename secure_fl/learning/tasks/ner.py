"""Named entities: one IOB2 tag per token, predicted at each token's first word piece.

Metrics are those of seqeval's strict mode: a span counts only with its exact borders and type, and
an I- tag that continues nothing starts no entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from secure_fl.data.examples import Example, Tagged
from secure_fl.data.records import first_fault
from secure_fl.errors import DataError
from secure_fl.learning.metric_counts import ALL, ROW, Contributions, Counts, by_name
from secure_fl.learning.metrics import Interval, delta, span_rates, wilson, wilson_f1
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.task import (
    Batches,
    Examples,
    Head,
    Logits,
    Reduction,
    Rows,
    Task,
    expect,
    wrong_label,
)
from secure_fl.learning.tasks.token_table import (
    IGNORED,
    Table,
    TokenTable,
    WindowLayout,
    padded,
    per_record,
    token_columns,
    token_losses,
    tokenise,
    window_table,
)


@dataclass(frozen=True)
class NER(Task):
    """Tags of tokens.

    Batches contain `words`: the token's index at its first piece, -100 elsewhere, which marks the
    predictions of unlabelled sentences too. Tokens beyond `max_length`, or beyond all windows, are
    neither trained on nor scored. With windows, each token is marked in one window.
    """

    head: ClassVar[Head] = "token"
    metric: ClassVar[str] = "f1"  # of entities

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Table:
        """Tokenise into word pieces, with the tag's id at the first piece of each token."""
        sentences = [sentence(example, row, labelled) for row, example in enumerate(examples)]
        # Byte-level tokenizers mark a word's start by a space, which split words lack.
        space = " " if "ByteLevel" in repr(tokenizer.backend_tokenizer.pre_tokenizer) else ""
        tokens = [[space + token for token in tagged.tokens] for tagged in sentences]
        if not tokens:
            return TokenTable({}, torch.zeros(0, dtype=torch.long), {})
        layout = WindowLayout.of(tokenizer, self) if self.windows > 1 else None
        longest = self.max_length if layout is None else layout.longest
        pieces = tokenise(tokenizer, tokens, None, longest, words=True, beyond=layout is not None)
        firsts = [first_pieces(encoding.word_ids) for encoding in pieces.encodings]
        rows = {"words": firsts}
        if labelled:
            rows["labels"] = self._tags(sentences, firsts)
        if layout is not None:
            return window_table(layout, tokenizer, pieces, rows)
        columns, lengths = token_columns(pieces, tokenizer)
        columns |= {name: padded(values, IGNORED) for name, values in rows.items()}
        return TokenTable(columns, lengths, {})

    def _tags(
        self, sentences: Sequence[Tagged], firsts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """The tag's id at each token's first piece.

        Tokenizers drop tokens such as U+200B. If one starts an entity, the next token starts it.
        """
        rows = []
        for tags, words in zip(self._numbers(sentences), firsts, strict=True):
            for at in sorted({*range(len(tags) - 1)}.difference(words)):
                before, after = (self.labels[tag] for tag in tags[at : at + 2])
                if before.startswith("B-") and after.startswith("I-"):
                    tags[at + 1] = tags[at]
            rows.append([IGNORED if word == IGNORED else tags[word] for word in words])
        return rows

    def check_labels(self, examples: Examples) -> None:
        """Refuse a sentence without tags, or with one that is not IOB2 or not the task's."""
        self._numbers([sentence(example, row, True) for row, example in enumerate(examples)])

    def _numbers(self, sentences: Sequence[Tagged]) -> list[list[int]]:
        ids = {label: index for index, label in enumerate(self.labels)}
        numbers = []
        for row, tagged in enumerate(sentences):
            tags = [ids.get(tag, -1) for tag in tagged.tags or ()]
            if -1 in tags:
                raise wrong_label(row, f"tags[{tags.index(-1)}]", self.labels)
            check_starts(tagged.tags or (), row)
            numbers.append(tags)
        return numbers

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Cross-entropy, averaged over each sentence's tokens, so that sentences count equally."""
        rows = per_record(token_losses(logits, batch["labels"]), batch["labels"])
        return rows if reduction == "none" else rows.mean()

    def decode(self, logits: Tensor, batch: Batch) -> list[list[str]]:
        """The likeliest tag of each token that the model saw, in the order of the tokens."""
        return self.tags(logits.argmax(-1), batch["words"] != IGNORED)

    def tags(self, ids: Tensor, at: Tensor) -> list[list[str]]:
        """Names of the tags at the marked positions, one list per sentence."""
        names = np.array(self.labels, dtype=object)[ids[at].cpu().numpy()]
        ends = np.cumsum(at.sum(-1).cpu().numpy())[:-1]
        return [list(row) for row in np.split(names, ends)]

    def read(self, logits: Logits, batches: Batches) -> tuple[list[list[str]], list[list[str]]]:
        """The true and the predicted tags of each sentence."""
        gold: list[list[str]] = []
        predicted: list[list[str]] = []
        for z, batch in zip(logits, batches, strict=True):
            gold += self.tags(batch["labels"], batch["labels"] != IGNORED)
            predicted += self.decode(z, batch)
        return gold, predicted

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Hits, false alarms and misses of each entity type."""
        gold, predicted = self.read(logits, batches)
        types = [label[2:] for label in self.labels if label.startswith("B-")]
        return by_name(outcomes(gold, predicted, types), by_label=by_label)

    def rates(self, counts: Counts) -> dict[str, float]:
        """Micro precision, recall and F1 of entities, and F1 of each type in the data.

        Counts over different label sets give no metrics by type.
        """
        rows = entity_rows(counts)
        if not rows:
            return {}
        f1 = {f"f1/{name}": span_rates(row)["f1"] for name, row in rows.items() if row[0] + row[2]}
        occurring = [span_rates(row)["f1"] for row in rows.values() if sum(row)]
        macro = {"macro_f1": float(np.mean(occurring)) if occurring else 0.0}
        by_type = {} if ALL in counts else macro | f1
        return span_rates(np.sum(list(rows.values()), axis=0)) | by_type

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Wilson's for precision and recall; for F1 as if entities were independent."""
        rows = entity_rows(counts)
        if not rows:
            return {}
        hits, false, missed = np.sum(list(rows.values()), axis=0)
        shares = {"precision": wilson(hits, hits + false), "recall": wilson(hits, hits + missed)}
        by_type = {"f1": (hits, false, missed)} | {f"f1/{name}": row for name, row in rows.items()}
        cells = {name: counts[name] for name in counts if name == ALL or name.startswith(ROW)}
        names = [name for name in self.rates(cells) if name not in shares]
        shares |= {name: wilson_f1(*row) for name, row in by_type.items() if name in names}
        intervals = {name: interval for name, interval in shares.items() if interval is not None}
        return intervals | delta(self.rates, cells, names)

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Entities with type, text, first token and token after the last; unseen tokens are "O".

        An entity contains the tokens between its own that the tokenizer drops.
        """
        assert isinstance(example, Tagged)  # noqa: S101 - for the type checker
        tags = ["O"] * len(example.tokens)
        words = batch["words"][0]
        before = 0
        for word, tag in zip(
            words[words != IGNORED].tolist(), self.decode(logits, batch)[0], strict=True
        ):
            tags[word] = tag
            if tag.startswith("I-") and tags[before][2:] == tag[2:]:
                tags[before + 1 : word] = [tag] * (word - before - 1)
            before = word
        entities = [
            {"type": kind, "start": start, "end": end, "text": " ".join(example.tokens[start:end])}
            for kind, start, end in spans(tags)
        ]
        return {"entities": entities, "tags": tags}


def sentence(example: Example, row: int, labelled: bool) -> Tagged:
    """Check that an example is a sentence, and `labelled` ones have one tag per token."""
    tagged = expect(example, Tagged, row, "ner")
    if labelled and (tagged.tags is None or len(tagged.tags) != len(tagged.tokens)):
        raise DataError(
            f"{len(tagged.tokens)} tokens have {len(tagged.tags or ())} tags",
            record=row + 1,
            field="tags",
            fix="give one IOB2 tag per token",
        )
    return tagged


def check_starts(tags: Sequence[str], row: int) -> None:
    """Refuse an I- tag that continues nothing: its entity would not be scored."""
    if (fault := first_fault(tags, "IOB2")) is not None:
        raise DataError(
            "an I- tag continues no entity of its type",
            record=row + 1,
            field=f"tags[{fault}]",
            fix="start each entity with B-; Silo.from_files and from_dataset convert IOB1",
        )


def first_pieces(word_ids: Sequence[int | None]) -> list[int]:
    """For each piece: its token if it is that token's first piece, else -100."""
    before = (None, *word_ids)
    return [
        IGNORED if word is None or word == previous else word
        for previous, word in zip(before, word_ids, strict=False)
    ]


def entity_rows(counts: Counts) -> dict[str, Any]:
    """[hits, false alarms, misses] by type, or of all types together."""
    return {
        name.removeprefix(ROW): row
        for name, row in counts.items()
        if name == ALL or name.startswith(ROW)
    }


def outcomes(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], types: Sequence[str]
) -> Rows:
    """Each sentence's contribution to [hits, false alarms, misses] of each type."""
    cells: dict[str, list[tuple[int, int]]] = {name: [] for name in types}
    for record, sides in enumerate(zip(gold, predicted, strict=True)):
        actual, guessed = (set(spans(tags)) for tags in sides)
        for place, entities in enumerate((actual & guessed, guessed - actual, actual - guessed)):
            for name, *_ in entities:
                cells[name].append((record, place))
    rows = {}
    for name, pairs in cells.items():
        at = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        ones = np.ones(len(pairs), np.int64)
        rows[name] = Contributions(len(gold), 3, at[:, 0], at[:, 1], ones)
    return rows


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first token, token after the last) of each entity."""
    entities: list[tuple[str, int, int]] = []
    for at, tag in enumerate(tags):
        if tag.startswith("B-"):
            entities.append((tag[2:], at, at + 1))
        elif tag.startswith("I-") and entities and entities[-1][::2] == (tag[2:], at):
            entities[-1] = (tag[2:], entities[-1][1], at + 1)
    return entities


def tag_labels(types: Sequence[str]) -> tuple[str, ...]:
    """List "O", then B- and I- of each entity type; full tags are accepted too."""
    bare = [name[2:] if name[:2] in ("B-", "I-") else name for name in types if name != "O"]
    return ("O", *(f"{place}-{kind}" for kind in dict.fromkeys(bare) for place in "BI"))


def entity_labels(examples: Examples) -> tuple[str, ...]:
    """The tags of the entity types that occur, sorted by type."""
    types = set()
    for row, example in enumerate(examples):
        tags = sentence(example, row, labelled=True).tags or ()
        for at, tag in enumerate(tags):
            if tag != "O" and not (tag[:2] in ("B-", "I-") and tag[2:]):
                raise DataError(
                    "a tag is not IOB2",
                    record=row + 1,
                    field=f"tags[{at}]",
                    fix="use O, B-… and I-…",
                )
            types.add(tag)
        check_starts(tags, row)
    return tag_labels(sorted({tag[2:] for tag in types - {"O"}}))
