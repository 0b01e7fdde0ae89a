"""News ranking as in MIND: predict which of the offered titles a reader clicks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from secure_fl.data.examples import Example, Impression
from secure_fl.errors import DataError
from secure_fl.learning.metric_counts import Contributions, Counts, products
from secure_fl.learning.metrics import Interval, auc, delta, mrr, ndcg
from secure_fl.learning.tasks.batches import MODEL_INPUTS, Batch
from secure_fl.learning.tasks.task import (
    Batches,
    Device,
    Encoded,
    Examples,
    Head,
    Indices,
    Logits,
    Reduction,
    Rng,
    Rows,
    Task,
    device_of,
    expect,
    inference,
    move,
    require_evaluable,
)
from secure_fl.learning.tasks.token_table import TokenTable, padded, token_columns, tokenise

ABSENT = -1
NAMES = ("auc", "mrr", "ndcg@5", "ndcg@10")
SUMS, SQUARES = "sums", "squares"  # [impressions, sum of each metric]; of their products


@dataclass(frozen=True, slots=True)
class Impressions(Encoded):
    """Impressions as indices into a table of distinct titles (-1: padding)."""

    titles: TokenTable
    history: Tensor
    candidates: Tensor
    clicks: Tensor | None
    npratio: int

    def __len__(self) -> int:
        return len(self.history)

    @property
    def labelled(self) -> bool:
        """True if clicks are known."""
        return self.clicks is not None

    def subset(self, indices: Indices) -> Impressions:
        """The impressions at `indices`; the table of titles is shared."""
        at = torch.as_tensor(indices, dtype=torch.long)
        clicks = None if self.clicks is None else self.clicks[at]
        return Impressions(self.titles, self.history[at], self.candidates[at], clicks, self.npratio)

    def batch(self, indices: Indices, generator: Rng = None, device: Device = "cpu") -> Batch:
        """All candidates; with a generator, one click and `npratio` others of each impression."""
        at = torch.as_tensor(indices, dtype=torch.long)
        batch = self.layout(at) if generator is None else self.sampled(at, generator)
        shown = torch.cat([batch["history"], batch["candidates"]], 1)
        present = shown >= 0
        distinct, positions = torch.unique(shown[present], return_inverse=True)
        local = torch.full_like(shown, ABSENT).masked_scatter(present, positions)
        width = batch["history"].shape[1]
        batch |= {"history": local[:, :width], "candidates": local[:, width:]}
        return move(self.titles.batch(distinct) | batch, device)

    def layout(self, at: Tensor) -> Batch:
        """Indices into the titles, and clicks as "labels", as wide as the widest row."""
        history, candidates = trimmed(self.history[at]), trimmed(self.candidates[at])
        batch = {"history": history, "candidates": candidates}
        if self.clicks is not None:
            batch["labels"] = self.clicks[at, : candidates.shape[1]]
        return batch

    def sampled(self, at: Tensor, generator: torch.Generator) -> Batch:
        """A click, then `npratio` other candidates; a candidate repeats if there are too few."""
        if self.clicks is None:
            raise DataError(
                "impressions without clicks cannot be trained on", fix="encode them with labels"
            )
        candidates, clicks = self.candidates[at], self.clicks[at]
        others = (candidates >= 0) & (clicks == 0)
        chosen = torch.cat(
            [draw(clicks > 0, 1, generator), draw(others, self.npratio, generator)], 1
        )
        picked = candidates.gather(1, chosen.clamp(min=0)).masked_fill(chosen < 0, ABSENT)
        labels = (torch.arange(1 + self.npratio) == 0) & (picked >= 0)
        return {
            "history": trimmed(self.history[at]),
            "candidates": picked,
            "labels": labels.float(),
        }


@dataclass(frozen=True)
class Ranking(Task):
    """Clicks on candidates. Training uses one click of an impression, so that it is one record."""

    npratio: int = 4
    max_history: int = 50

    head: ClassVar[Head] = "ranking"
    metric: ClassVar[str] = "auc"  # averaged over impressions

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Impressions:
        """Tokenise every distinct title once, and let impressions refer to them."""
        pages = [impression(example, row, labelled) for row, example in enumerate(examples)]
        recent = [page.history[-self.max_history :] for page in pages]
        names = chain.from_iterable(
            (*history, *page.candidates) for history, page in zip(recent, pages, strict=True)
        )
        index = {title: at for at, title in enumerate(dict.fromkeys(names))}
        if index:
            pieces = tokenise(tokenizer, list(index), None, self.max_length)
            titles = TokenTable(*token_columns(pieces, tokenizer), {})
        else:
            titles = TokenTable({}, torch.zeros(0, dtype=torch.long), {})
        clicks = padded([page.clicks for page in pages], 0).float() if labelled else None
        return Impressions(
            titles,
            padded([[index[title] for title in history] for history in recent], ABSENT).long(),
            padded([[index[title] for title in page.candidates] for page in pages], ABSENT).long(),
            clicks,
            self.npratio,
        )

    def outputs(self, model: nn.Module, batch: Batch, **options: Any) -> Any:
        """The ranker's full output."""
        names = (*MODEL_INPUTS, "history", "candidates")
        return model(**{name: batch[name] for name in names if name in batch}, **options)

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Cross-entropy of the clicks among the candidates; 0 without a click."""
        clicks = batch["labels"]
        likely = logits.float().log_softmax(-1)
        rows = -(likely * clicks).sum(-1) / clicks.sum(-1).clamp(min=1)
        return rows if reduction == "none" else rows.mean()

    def decode(self, logits: Tensor, batch: Batch) -> list[list[float]]:
        """The score of each candidate."""
        present = (batch["candidates"] >= 0).tolist()
        return [
            [score for score, there in zip(row, seen, strict=True) if there]
            for row, seen in zip(logits.float().tolist(), present, strict=True)
        ]

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """The number of impressions with clicks and others, and the sum of each metric."""
        rows: list[tuple[float, ...]] = []
        for z, batch in zip(logits, batches, strict=True):
            for scores, labels in zip(self.decode(z, batch), batch["labels"], strict=True):
                clicks, values = labels.numpy()[: len(scores)], np.asarray(scores)
                if not 0 < clicks.sum() < len(clicks):  # no order is better than another
                    rows.append((0.0,) * (1 + len(NAMES)))
                    continue
                gains = (ndcg(clicks, values, k) for k in (5, 10))
                rows.append((1.0, auc(clicks, values), mrr(clicks, values), *gains))
        matrix = np.reshape(rows, (-1, 1 + len(NAMES)))
        return {SUMS: Contributions.of_values(matrix), SQUARES: products(matrix)}

    def rates(self, counts: Counts) -> dict[str, float]:
        """AUC, MRR, nDCG@5 and nDCG@10: means over impressions with both clicks and others."""
        if SUMS not in counts:
            return {}
        ranked, *sums = counts[SUMS].tolist()
        means = [total / ranked if ranked else 0.0 for total in sums]
        return dict(zip(NAMES, means, strict=True))

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """The intervals of means over impressions."""
        sums = {name: counts[name] for name in (SUMS, SQUARES)}
        return delta(self.rates, sums, NAMES, SQUARES, SUMS) if counts[SUMS][0] else {}

    def outcomes(
        self, model: nn.Module, encoded: Encoded, batch_size: int
    ) -> tuple[list[Tensor], list[Batch]]:
        """Logits and batches; each distinct title passes the language model once."""
        require_evaluable(encoded)
        assert isinstance(encoded, Impressions)  # noqa: S101 - for the type checker
        ranker: Any = model
        device = device_of(model)
        logits: list[Tensor] = []
        batches: list[Batch] = []
        with inference(model):
            pages = encoded.titles.batches(batch_size, device=device)
            vectors = torch.cat([ranker.titles(**page)[0] for page in pages])
            for at in torch.split(torch.arange(len(encoded)), batch_size):
                batch = encoded.layout(at)
                history, candidates = (batch[name].to(device) for name in ("history", "candidates"))
                logits.append(ranker.rank(vectors, history, candidates).float().cpu())
                batches.append(batch)
        return logits, batches

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Candidates with scores, from the highest down."""
        assert isinstance(example, Impression)  # noqa: S101 - for the type checker
        scores = self.decode(logits, batch)[0]
        order = sorted(range(len(scores)), key=lambda at: -scores[at])
        return {
            "ranking": [
                {"candidate": at, "title": example.candidates[at], "score": scores[at]}
                for at in order
            ]
        }


def impression(example: Example, row: int, labelled: bool) -> Impression:
    """Check that an example is an impression, and `labelled` ones have one flag per candidate."""
    page = expect(example, Impression, row, "ranking")
    if not page.candidates or (labelled and len(page.clicks) != len(page.candidates)):
        raise DataError(
            f"{len(page.candidates)} candidates have {len(page.clicks)} click flags",
            record=row + 1,
            field="clicks",
            fix="give at least one candidate, and one flag per candidate",
        )
    return page


def trimmed(rows: Tensor) -> Tensor:
    """Remove columns that contain only padding."""
    widest = int((rows >= 0).sum(-1).max()) if len(rows) else 1
    return rows[:, : max(1, widest)]


def draw(allowed: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` allowed positions per row, all once before any repeats; -1 if there are none."""
    order = torch.rand(allowed.shape, generator=generator).masked_fill(~allowed, 2.0).argsort(-1)
    available = allowed.sum(-1, keepdim=True)
    turn = torch.arange(count) % available.clamp(min=1)
    return order.gather(1, turn).masked_fill(available == 0, ABSENT)
