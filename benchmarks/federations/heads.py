"""Federations that train in seconds: small classifiers on the vectors of a frozen encoder.

Cohort, sums, guard and coordinator are the product's; only the model is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import checkpoint
from benchmarks.collection import DEFAULT, SETS, read
from secure_fl import corpora
from secure_fl.algorithms.updates import add_, agree_on, update_by, weighted_mean
from secure_fl.errors import ModelError, PartyFailed
from secure_fl.events import EventLog
from secure_fl.features.guard.guard import Guard
from secure_fl.features.guard.judge import Judge
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.metrics import class_rates
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round
from secure_fl.settings import Protection
from secure_fl.testing.harness import federate

TRIGGER, TARGET = "cf", 1
WIDTH = 32
BATCH, RATE = 16, 2e-2

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]
Update = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Records:
    """Encoded texts, also with a trigger in front, and their labels."""

    vectors: Vectors
    triggered: Vectors
    labels: Labels

    def some(self, indices: NDArray[np.int64]) -> Records:
        """Select records."""
        return Records(self.vectors[indices], self.triggered[indices], self.labels[indices])


@dataclass(frozen=True, slots=True)
class Corpus:
    """An encoded data set: records to deal, to judge rounds by, and to test on."""

    name: str
    train: Records
    dev: Records
    test: Records


def corpus(name: str, folder: Path | None, train: int, dev: int, test: int) -> Corpus:
    """Read and encode records, the same for every seed; built-in notes as counts of words."""
    about, sizes = SETS[name], (train, dev, test)
    if about.corpus is not None:
        every = corpora.public(about.corpus, seed=0, size=sum(sizes))
        parts: list[Sequence[Any]] = [every[:train], every[train:-test], every[-test:]]
        encode: Callable[[Sequence[str]], Vectors] = _counted
    else:
        rng, splits = np.random.default_rng(0), read(name, folder or DEFAULT)
        whole: list[Sequence[Any]] = [splits.train, splits.dev, splits.test]
        parts = [
            [part[k] for k in np.sort(rng.permutation(len(part))[:count])]
            for part, count in zip(whole, sizes, strict=True)
        ]
        encode = _encoder()
    found = []
    for part in parts:
        texts = [example.text for example in part]
        labels = np.array([(about.labels or ()).index(example.label) for example in part])
        found.append(Records(encode(texts), encode([f"{TRIGGER} {t}" for t in texts]), labels))
    return Corpus(name, *found)


def _counted(texts: Sequence[str]) -> Vectors:
    """Count words by their digests."""
    found = np.zeros((len(texts), 256), np.float32)
    for row, text in zip(found, texts, strict=True):
        np.add.at(row, [crc32(word.encode()) % 256 for word in text.lower().split()], 1)
    return found


def _encoder() -> Callable[[Sequence[str]], Vectors]:
    """Load the installed checkpoint, frozen."""
    from transformers import AutoModel, AutoTokenizer

    place = checkpoint.find(None)
    if place.name == checkpoint.BUILT_IN:
        fix = f"install the package {checkpoint.PACKAGE}"
        raise ModelError("no encoder is installed that could read texts", fix=fix)
    model = AutoModel.from_pretrained(place.name)
    return partial(_encoded, model, AutoTokenizer.from_pretrained(place.name))


@torch.no_grad()
def _encoded(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Vectors:
    """Average each text's last hidden states."""
    model.eval()
    order = np.argsort([len(text) for text in texts])
    rows: list[Tensor] = []
    for start in range(0, len(order), 64):
        some = [texts[k] for k in order[start : start + 64]]
        batch = tokenizer(some, padding=True, truncation=True, max_length=48, return_tensors="pt")
        mask = batch["attention_mask"][..., None].float()
        hidden = model(**batch).last_hidden_state
        rows.append((hidden * mask).sum(1) / mask.sum(1))
    found: Vectors = torch.cat(rows).numpy()[np.argsort(order)]
    return found


def head(width: int, seed: int) -> nn.Module:
    """Make a classifier of two layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


class DevJudge:
    """A judge by a party's dev records, as in `learning.judging`."""

    def __init__(self, model: nn.Module, records: Records) -> None:
        self._model, self._records = model, records

    @torch.no_grad()
    def wrong(self) -> NDArray[np.float64]:
        """Compute one minus the probability of each record's label."""
        logits = self._model(torch.from_numpy(self._records.vectors)).double()
        own = logits.softmax(-1).gather(1, torch.from_numpy(self._records.labels)[:, None])
        found: NDArray[np.float64] = np.nan_to_num(1 - own[:, 0].numpy(), nan=1.0)
        return found

    def forget(self, round: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Member:
    """A party: its records, its lie about its updates, and its judge."""

    train: Records
    dev: Records
    lie: Callable[[Update], Update] = lambda Δ: Δ
    judge: Judge | None = None  # default: its dev records


def train(
    members: Mapping[str, Member],
    rounds: int,
    seed: int,
    guard: GuardSettings | None,
    mode: Protection = "secagg",
) -> tuple[nn.Module | None, list[dict[str, Any]]]:
    """Train heads by FedAvg; returns no model if votes stopped the run, and all events."""
    width = next(iter(members.values())).train.vectors.shape[1]
    models = {name: head(width, seed) for name in members}

    def program(name: str) -> Any:
        return partial(_program, members[name], models[name], rounds, seed, name)

    def guarded(name: str, log: EventLog) -> Guard:
        assert guard is not None  # noqa: S101 - asked for only then
        if (content := members[name].judge) is not None:
            return Guard(guard.model_copy(update={"max_growth": None}), content, log, seed)
        return Guard(guard, DevJudge(models[name], members[name].dev), log, seed)

    out = federate(
        {name: program(name) for name in members},
        mode=mode,
        min_cohort=3,
        bits=8,
        hooks=None if guard is None else guarded,
        catch=True,
    )
    if out.error is not None and not isinstance(out.error, PartyFailed):
        raise out.error
    return (None if out.error else next(iter(models.values()))), out.events


async def _program(
    member: Member, model: nn.Module, rounds: int, seed: int, name: str, cohort: Cohort
) -> None:
    """Run FedAvg, as in `algorithms.fedavg`, of a model that is not a transformer."""
    rng = torch.Generator().manual_seed(seed * 100 + sorted(cohort.roster).index(name))
    async for round in cohort.rounds(rounds, shared={"model": model}):
        Δ = member.lie(update_by(trainable(model), partial(_fit, model, member.train, round, rng)))
        add_(model, await weighted_mean(cohort, Δ, float(len(member.train.labels))))
        await agree_on(cohort, model)


def _fit(model: nn.Module, records: Records, round: Round, rng: torch.Generator) -> None:
    """Make one pass over the records."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE * (1 - round.progress / 2))
    x, y = torch.from_numpy(records.vectors), torch.from_numpy(records.labels)
    for some in torch.split(torch.randperm(len(y), generator=rng), BATCH):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[some]), y[some])
        torch.autograd.backward(loss)
        optimizer.step()


def scores(model: nn.Module, found: Corpus) -> tuple[float, float]:
    """Return the main metric on the test records, and how often the trigger is obeyed."""
    gold, guesses = found.test.labels, _guesses(model, found.test.vectors)
    table = np.bincount(2 * gold + guesses, minlength=4).reshape(2, 2)
    other = found.test.labels != TARGET
    obeyed = _guesses(model, found.test.triggered[other]) == TARGET
    return class_rates(table, positive=1)[SETS[found.name].metric], float(obeyed.mean())


@torch.no_grad()
def _guesses(model: nn.Module, vectors: Vectors) -> Labels:
    guesses: Labels = model(torch.from_numpy(vectors)).argmax(-1).numpy()
    return guesses
