"""Canaries: made-up records with random labels, which only memory can predict.

There are two kinds. On a linear model each canary has a weight of its own, so only the noise hides
it. This audit is as strong as possible, but it tests the training code, not the run's model. Texts
of unused words go through the run's model, where canaries share nearly all weights: much weaker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.audits.attacks.shadow_models import Floats, imitate, losses, site_of
from secure_fl.audits.findings import Prior
from secure_fl.data.examples import Example, Tagged, Text
from secure_fl.errors import DataError
from secure_fl.learning.tasks import Encoded, Task, make_task
from secure_fl.learning.tasks.table import Table
from secure_fl.settings import TaskSettings

WORDS = 12  # of a canary; their order is drawn too
FEWEST = 2 * WORDS  # unused words, below which canaries would be alike
LOUD = 10.0  # a linear canary's gradient, in clipping norms
RIDGE = 1.0  # λ: the part of a canary's gradient that is treated as noise
HELD = 1 << 27  # numbers of canaries' gradients in memory at once


@dataclass(frozen=True, slots=True)
class CanarySubject:
    """The subject of a one-run audit: an initial model, canaries for it, and a way to guess."""

    name: str
    prior: Prior  # with the model and the task of the build
    records: Encoded
    score: Callable[[nn.Module], Floats]  # of the trained model: higher means more likely in


class Linear(nn.Module):
    """A linear classifier of canaries by number, with gradients that are always clipped."""

    def __init__(self, count: int, loudness: float) -> None:
        super().__init__()
        self.count, self.loudness = count, loudness
        self.weights = nn.Linear(count, 2, bias=False)
        nn.init.zeros_(self.weights.weight)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Compute logits, as models of transformers return them."""
        onehot = F.one_hot(input_ids[:, 0], self.count).float()
        return SimpleNamespace(logits=self.weights(self.loudness * onehot))


def linear(prior: Prior, count: int, bound: float) -> CanarySubject:
    """Make canaries that share no weight, on a linear model; `bound` is the clipping norm."""
    labels = torch.from_numpy(prior.rng("canaries", "labels").integers(2, size=count))
    numbers = torch.arange(count, dtype=torch.int32).unsqueeze(1)
    records = Table({"input_ids": numbers}, torch.ones(count).long(), {"labels": labels})
    changed = replace(
        prior,
        model=lambda: Linear(count, LOUD * bound),
        task=make_task(TaskSettings(labels=("no", "yes"))),
    )
    before = losses(changed.task, changed.model(), records)
    return CanarySubject(
        "a linear model", changed, records, lambda m: before - losses(changed.task, m, records)
    )


def texts(prior: Prior, count: int) -> CanarySubject:
    """Make texts of unused words for the run's model, trained on outsiders first.

    An untrained model does not distinguish texts. Word vectors learn too, although the run may
    freeze them: otherwise less of a canary's effect is its own.
    """
    written = canaries(count, prior.task, prior.tokenizer, prior.outsiders, prior.rng("canaries"))
    records = prior.task.encode(written, prior.tokenizer)
    unfrozen = replace(prior, model=lambda: prior.model().requires_grad_(True))
    if prior.outsiders:
        known = prior.task.encode(prior.outsiders, prior.tokenizer)
        warm = imitate(unfrozen, site_of(unfrozen, known, "canaries", "warm-up")).cpu()
    else:
        warm = unfrozen.model()
    G, at = _gradients(prior.task, warm, records, prior.rng("canaries", "coordinates"))
    start = _weights(warm)[at]

    def score(model: nn.Module) -> Floats:
        moved = start - _weights(model)[at]
        kernel = G @ G.T + RIDGE * torch.eye(len(G), dtype=G.dtype)
        fitted: Floats = torch.linalg.solve(kernel.double(), (G @ moved).double()).numpy()
        return fitted

    return CanarySubject(
        "the run's model", replace(unfrozen, model=lambda: deepcopy(warm)), records, score
    )


def _gradients(
    task: Task, model: nn.Module, records: Encoded, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Compute each canary's gradient, of norm 1, at all weights, or at a random choice of them."""
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    keep = min(size, max(1, HELD // len(records)))
    at = torch.from_numpy(np.sort(rng.choice(size, keep, replace=False)))
    G = torch.empty(len(records), keep)
    model.eval()
    for row in range(len(records)):
        batch = records.batch([row])
        model.zero_grad()
        task.loss(task.forward(model, batch), batch).backward()  # type: ignore[no-untyped-call]
        G[row] = torch.cat([_flat(p.grad, p) for p in model.parameters() if p.requires_grad])[at]
    model.zero_grad()
    return F.normalize(G, dim=1), at


def _flat(values: Tensor | None, like: Tensor) -> Tensor:
    return (torch.zeros_like(like) if values is None else values).flatten()


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters() if p.requires_grad])


def canaries(
    count: int, task: Task, tokenizer: Any, used: Sequence[Example], rng: np.random.Generator
) -> tuple[Example, ...]:
    """Write canaries that share no word with the records in use, with random labels."""
    if task.kind == "ranking":
        raise DataError("canaries are texts or sentences, not rankings", fix="audit another task")
    words = unused_words(tokenizer, used)
    if len(words) < FEWEST:
        raise DataError(
            f"only {len(words)} words of the vocabulary are unused; canaries need {FEWEST}",
            fix="audit with fewer records, or a model with a larger vocabulary",
        )
    return tuple(_canary(number, words, task, used, rng) for number in range(count))


def unused_words(tokenizer: Any, used: Sequence[Example]) -> list[str]:
    """List words of one token that occur in none of these records, in the vocabulary's order.

    Each word is read back as it is used here: after another word.
    """
    texts = [" ".join(_words(record)) for record in used]
    known = set(chain.from_iterable(tokenizer(texts)["input_ids"])) if texts else set()
    free = [at for at in range(len(tokenizer)) if at not in known | set(tokenizer.all_special_ids)]
    names = [tokenizer.decode([at]).strip() for at in free]
    behind = tokenizer([f"x {name}" for name in names], add_special_tokens=False)["input_ids"]
    alone = len(tokenizer("x", add_special_tokens=False)["input_ids"])
    return [
        name
        for name, at, ids in zip(names, free, behind, strict=True)
        if name.isalpha() and ids[alone:] == [at]
    ]


def _canary(
    number: int, words: list[str], task: Task, used: Sequence[Example], rng: np.random.Generator
) -> Example:
    drawn = [words[i] for i in rng.choice(len(words), WORDS, replace=False)]
    name = f"canary-{number:05d}/0"  # each is a patient, where patients are protected
    if task.kind == "ner":
        kinds = [label for label in task.labels if label.startswith(("B-", "O"))]
        return Tagged(
            name, tuple(drawn), tuple(kinds[i] for i in rng.integers(len(kinds), size=WORDS))
        )
    label = _label(task, used, rng)
    if task.kind in ("pair", "completion"):
        return Text(name, " ".join(drawn[: WORDS // 2]), " ".join(drawn[WORDS // 2 :]), label)
    return Text(name, " ".join(drawn), label=label)


def _label(task: Task, used: Sequence[Example], rng: np.random.Generator) -> str | float:
    if task.labels:
        return task.labels[rng.integers(len(task.labels))]
    scores = [e.label for e in used if isinstance(e, Text) and isinstance(e.label, float | int)]
    return float(rng.choice(scores)) if scores else float(rng.random())


def _words(record: Example) -> tuple[str, ...]:
    if isinstance(record, Text):
        return (record.text,) if record.pair is None else (record.text, record.pair)
    return record.tokens if isinstance(record, Tagged) else record.history + record.candidates
