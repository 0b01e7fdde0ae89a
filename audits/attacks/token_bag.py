"""The token bag: finds the words of a party by the rows of the word embedding that moved.

A word that does not occur has no gradient, so its row does not move (Melis, Song, De Cristofaro,
Shmatikov: Exploiting Unintended Feature Leakage in Collaborative Learning. S&P 2019, arXiv
1805.04049).
Decoupled weight decay moves all rows by the same factor, W₀((1−lr·wd)^T − 1). T need not be known:
most rows contain nothing else, so a robust fit on W₀ finds the factor. The same is true of Y = G·Ω
and of an update's left factor U, whose rows still belong to words: there the factor is a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.attacks.guess_scores import (
    GuessScore,
    choose,
    f1,
    finding,
    nothing,
    records_of,
    set_scores,
    specials,
    tokens,
)
from secure_fl.audits.attacks.layer_inputs import Array, word_table
from secure_fl.audits.document import BAG, ENTITIES
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.data.examples import Example, Tagged
from secure_fl.learning.tasks.token_table import IGNORED
from secure_fl.protocol.sum_names import PART, SKETCH

NAME = BAG
ABOUT = (
    "Lists the words of a hospital's records from the rows of the word embedding that its training "
    "moved; success means that this role learns most of a hospital's vocabulary."
)
MEASURE = "token F1"  # the full vocabulary has recall 1, one word precision 1: no successes

DEVIATIONS = 10.0  # a row moved if it is so many robust deviations above the median row
UNITS = 3.0  # and, for values on a grid, longer than so many steps of the grid
ROUNDING = 1e-6  # of the longest row: below it is float32's rounding
FITTED = 4096  # rows for the fit on W₀
PASSES = 12  # of reweighting


def token_bag(view: View, prior: Prior) -> AuditFinding:
    """Guess each party's words, or the union over a sum."""
    name, W0 = word_table(prior.model())
    size = len(W0)
    chosen = choose(view.readings, prior, lambda r: word_rows(r.values, name, size) is not None)
    if not chosen:
        why = "no values with a row for each word were readable: embeddings are frozen, or nothing "
        return nothing(NAME, view.role, MEASURE, why + "could be read")
    guesses = [guess_tokens(reading.values, prior) for reading in chosen]
    scores = [_score(g, r, prior, size) for g, r in zip(guesses, chosen, strict=True)]
    union = len(chosen[0].of) > 1
    note = "the words of all together, attributed to no single hospital" if union else ""
    return finding(NAME, view.role, MEASURE, chosen, scores, note)


def guess_tokens(values: Arrays, prior: Prior) -> frozenset[int]:
    """Find the tokens whose rows moved by more than weight decay and noise."""
    name, W0 = word_table(prior.model())
    rows = word_rows(values, name, len(W0))
    if rows is None:
        return frozenset()
    moved = moved_rows(np.asarray(rows, np.float64), W0, prior.rng(NAME))
    return frozenset(moved.tolist()) - specials(prior)


def word_rows(values: Arrays, name: str, words: int) -> NDArray[Any] | None:
    """Choose the widest value with a row for each word, by the embedding's own name if possible.

    Of factors, the sketch Y is preferred: rows of the product belong to all parties.
    """
    fitting = {n: v for n, v in values.items() if v.ndim == 2 and v.shape[0] == words}
    named = {n: v for n, v in fitting.items() if n == name or n.startswith(f"{name}{PART}")}
    named = {name: fitting[name + SKETCH]} if name + SKETCH in fitting else named
    # Another layer may be as wide as the vocabulary by accident; it is named as a weight.
    other = {n: v for n, v in fitting.items() if not n.endswith((".weight", ".bias"))}
    return max((named or other).values(), key=lambda value: value.shape[1], default=None)


def moved_rows(Δ: Array, W0: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Find rows of Δ that W₀ and noise do not explain."""
    rest = np.linalg.norm(Δ - _decay(Δ, W0, rng), axis=1)
    middle = np.median(rest)
    spread = 1.4826 * np.median(np.abs(rest - middle))  # a normal's deviation from its MAD
    floor = max(middle + DEVIATIONS * spread, ROUNDING * rest.max(), UNITS * _step(Δ))
    return np.flatnonzero(rest > floor)


def _decay(Δ: Array, W0: Array, rng: np.random.Generator) -> Array:
    """Fit the part of Δ that is proportional to each row's initial weights."""
    if Δ.shape == W0.shape:
        length = (W0 * W0).sum(1)
        along = (Δ * W0).sum(1)[length > 0] / length[length > 0]
        return float(np.median(along)) * W0
    if len(W0) < 2 * W0.shape[1]:
        return np.zeros_like(Δ)  # too few rows to tell decay from learning
    rows = rng.permutation(len(W0))[: max(FITTED, 4 * W0.shape[1])]
    X, Y = W0[rows], Δ[rows]
    weight = np.ones(len(rows))
    for _ in range(PASSES):  # least absolute deviations: words that occur are outliers
        M = np.linalg.lstsq(X * weight[:, None], Y * weight[:, None], rcond=None)[0]
        size = np.linalg.norm(Y - X @ M, axis=1)
        weight = 1 / np.sqrt(np.maximum(size, 1e-9 * max(float(size.max()), 1e-300)))
    return np.asarray(W0 @ M)


def _step(Δ: Array) -> float:
    """Find the step of the grid on which all values lie; 0: there is none."""
    sizes = np.abs(Δ[Δ != 0])
    if not sizes.size:
        return 0.0
    units = sizes / sizes.min()
    on_grid = units.max() < 2**16 and np.abs(units - np.rint(units)).max() < 1e-2
    return float(sizes.min()) if on_grid else 0.0


def _score(guess: frozenset[int], reading: Reading, prior: Prior, words: int) -> GuessScore:
    truth = tokens(records_of(reading, prior), prior)
    precision, recall = set_scores(guess, truth)
    everything = f1(len(truth) / words, 1.0)
    public = f1(*set_scores(tokens(prior.outsiders, prior), truth))
    chance = max(everything, public)  # the better of two guesses without a reading
    details: dict[str, Any] = {
        "precision": precision,
        "recall": recall,
        "guessed": len(guess),
        "hits": len(guess & truth),
    }
    details |= entity_shares(guess, records_of(reading, prior), prior)
    return GuessScore(f1(precision, recall), chance, len(truth), details)


def entity_shares(
    guess: AbstractSet[int], records: Sequence[Example], prior: Prior
) -> dict[str, dict[str, float]]:
    """Compute the guessed share of each entity type's words, as details; none without entities."""
    shares = {
        name: len(guess & words) / len(words)
        for name, words in sorted(entity_words(records, prior).items())
    }
    return {ENTITIES: shares} if shares else {}


def entity_words(records: Sequence[Example], prior: Prior) -> Mapping[str, AbstractSet[int]]:
    """Collect the tokens of each entity type, as far as the model reads them."""
    tagged = [one for one in records if isinstance(one, Tagged) and one.tags]
    words: dict[str, set[int]] = {}
    if not tagged:
        return words
    task = replace(prior.task, windows=1)  # a token in two windows counts once
    encoded = task.encode(tagged, prior.tokenizer, labelled=False)
    batch, banned = encoded.batch(range(len(encoded))), specials(prior)
    rows = zip(tagged, batch["input_ids"].tolist(), batch["words"].tolist(), strict=True)
    for record, ids, firsts in rows:
        at = 0
        for token, first in zip(ids, firsts, strict=True):
            at = at if first == IGNORED else first  # further pieces belong to the word before
            tag = (record.tags or ())[at]
            if token not in banned and tag != "O":
                words.setdefault(tag[2:], set()).add(token)
    return words
