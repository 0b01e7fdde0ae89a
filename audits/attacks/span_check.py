"""Which tokens stand at which places: embeddings that lie in the span of an attention gradient.

Petrov, Dimitrov, Baader, Müller, Vechev: DAGER: Exact Gradient Inversion for Large Language
Models. NeurIPS 2024, arXiv 2405.15586. ∂L/∂W_Q = (∂L/∂Q)ᵀX, so its rows lie in the span of the
inputs X: with fewer tokens than columns, a (token, place) whose input lies in
that span was in the batch. The rows of Uᵀ·G, and an update's right singular vectors, span the same.
A text's second-layer inputs lie in the span of that layer's gradient only if all its tokens are
right, so this span says which candidates belong together.

It works on one gradient: a step of plain SGD, on few tokens. AdamW's moves, and many steps, fill
all columns; then nothing is distinguished, and no protection is to be thanked for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from secure_fl.audits.attacks.geometry import in_span, span_of, time_span_check
from secure_fl.audits.attacks.inputs import Array, array, attention_names, inputs_of
from secure_fl.audits.attacks.words import (
    RECALL,
    Score,
    best_rouge,
    choose,
    finding,
    frequent,
    nothing,
    records_of,
    sequences,
    set_scores,
    specials,
)
from secure_fl.audits.base import Arrays, Finding, Prior, Reading, View
from secure_fl.learning.anatomy import body_of, depth
from secure_fl.learning.schedule import factor
from secure_fl.learning.tasks.base import inference
from secure_fl.party.rounds import Round

NAME = "span check"
__all__ = ["ABOUT", "NAME", "Guess", "guess_texts", "span_check", "time_span_check"]

ABOUT = (
    "Tests every word at every place against the span of an attention layer's update; success "
    "means that this role can write down most of the words of the texts a party trained on."
)

FULL = (
    "no word stands out: as many tokens, or steps of an optimiser such as AdamW, as columns leave "
    "nothing to distinguish"
)


class Guess(NamedTuple):
    """The words that stand somewhere, and the texts they may form."""

    words: tuple[int, ...]  # likeliest first
    texts: tuple[tuple[int, ...], ...]
    rank: int


def span_check(view: View, prior: Prior) -> Finding:
    """Guess the tokens of each party's texts, or of a sum's."""
    model = prior.model()
    names = attention_names(model)
    width = 0 if not names else dict(model.named_parameters())[names[0]].shape[1]

    def usable(reading: Reading) -> bool:
        return bool(row_values(reading.values, names, width))

    chosen = choose(view.readings, prior, usable) if inputs_of(model) else ()
    if not chosen:
        why = "no move of the first attention layer was readable, or its inputs are not BERT's"
        return nothing(NAME, view.role, RECALL, why)
    guesses = [guess_texts(reading.values, prior) for reading in chosen]
    scores = [_score(g, r, prior) for g, r in zip(guesses, chosen, strict=True)]
    note = "" if any(guess.words for guess in guesses) else FULL
    return finding(NAME, view.role, RECALL, chosen, scores, note)


def guess_texts(values: Arrays, prior: Prior) -> Guess:
    """The words in the span, at most as many as its rank, and texts made of them."""
    model = prior.model()
    names = attention_names(model)
    kinds = range(2 if prior.task.kind == "pair" else 1)
    tables = [found for kind in kinds if (found := inputs_of(model, kind)) is not None]
    if not names or not tables:
        return Guess((), (), 0)
    basis = _basis(values, model, prior, 0)
    if basis is None or basis.shape[1] in (0, len(basis)):
        return Guess((), (), 0 if basis is None else basis.shape[1])
    longest = min(prior.task.max_length, len(tables[0].places))
    hits = sorted({hit for table in tables for hit in in_span(table, basis, longest)})
    rank, banned = basis.shape[1], specials(prior)
    words = tuple(dict.fromkeys(token for _, _, token in hits if token not in banned))
    # A sentence's vector is its first token's, so only that one's query matters at the top.
    first = prior.task.head == "sequence" and depth(model) == 2
    second = _basis(values, model, prior, 1, only_queries=first)
    texts = assemble(hits, model, second, prior.tokenizer, only_first=first)
    return Guess(words[:rank], texts, rank)  # no more than a span of this rank can hold


def _basis(
    values: Arrays, model: nn.Module, prior: Prior, layer: int, *, only_queries: bool = False
) -> Array | None:
    """The span of one layer's inputs; None: nothing of its attention could be read."""
    if layer >= depth(model):
        return None
    names = attention_names(model, layer)
    names = tuple(n for n in names if not only_queries or n.split(".")[-2].startswith("q"))
    weights = {n: array(w) for n, w in model.named_parameters() if n in names}
    if not names or not (rows := row_values(values, names, weights[names[0]].shape[1])):
        return None
    return span_of(rows, weights, first_rate(prior) * prior.training.weight_decay)


def first_rate(prior: Prior) -> float:
    """The learning rate of a run's first step, where there is one step to a round."""
    begun = Round(1, prior.algorithm.rounds).at(0, 1)
    return prior.training.learning_rate * factor(prior.training, begun)


def row_values(values: Arrays, names: Sequence[str], width: int) -> dict[str, Array]:
    """The moves of these weights, or right factors of them: what has a column for each input."""
    found = {}
    for key in sorted(values):
        if key.split("|")[0] in names and values[key].ndim == 2 and values[key].shape[1] == width:
            found[key] = np.asarray(values[key], np.float64)
    return found


def _score(guess: Guess, reading: Reading, prior: Prior) -> Score:
    """Recall of distinct tokens; a word at a place is not scored, because spans confuse places.

    With (u, i), (u, j) and (v, i) in the span, (v, j) is in it too: words and places are added.
    """
    banned = specials(prior)
    rows = sequences(records_of(reading, prior), prior)
    texts = [[token for token in row if token not in banned] for row in rows]
    truth = {token for text in texts for token in text}
    precision, recall = set_scores(set(guess.words), truth)
    public = frequent(prior, max(guess.rank, len(guess.words)))  # as many as a guess could hold
    details = {
        "precision": precision,
        "rouge_1": best_rouge(guess.texts, texts, 1),
        "rouge_2": best_rouge(guess.texts, texts, 2),
        "guessed": len(guess.words),
        "texts": len(guess.texts),
        "hits": len(set(guess.words) & truth),
        "rank": float(guess.rank),
    }
    return Score(recall, set_scores(public, truth)[1], len(truth), details)


Text = tuple[int, ...]
Places = Mapping[int, Sequence[int]]
Judge = Callable[[list[Text]], Array]

STARTS = 12  # texts that are begun with
COMBINATIONS = 512  # texts that are tried for each of these, all at once
SWEEPS = 2  # passes over the places of each
ALTERNATIVES = 8  # tokens tried at a place


def assemble(
    hits: Sequence[tuple[float, int, int]],
    model: nn.Module,
    second: Array | None,
    tokenizer: Any,
    *,
    only_first: bool = False,
) -> tuple[Text, ...]:
    """The texts that these (log p, place, token) hits form.

    `second` is the span of the second layer's inputs, or of texts' first inputs only.
    """
    places: dict[int, list[int]] = {}
    for _, place, token in sorted(hits):
        places.setdefault(place, []).append(token)
    words = {
        place: [t for t in found if t not in tokenizer.all_special_ids][:ALTERNATIVES]
        for place, found in places.items()
    }
    separators = [p for _, p, token in sorted(hits) if token == tokenizer.sep_token_id]
    starts = _starts(separators, words)
    if second is None or second.shape[1] in (0, second.shape[0]):
        likeliest = [(first, *(words[p][0] for p in range(2, end))) for end, first in starts]
        return tuple(dict.fromkeys(likeliest))
    judge = _judge(model, second, (tokenizer.cls_token_id, tokenizer.sep_token_id), only_first)
    found = [_improved(_best(end, first, words, judge), words, judge) for end, first in starts]
    return tuple(dict.fromkeys(found))


def _starts(separators: Sequence[int], words: Places) -> list[tuple[int, int]]:
    """Where a text may end and with which word it may begin, the likeliest of both first."""
    run = next(p for p in range(1, len(words) + 2) if not words.get(p))  # no word here
    ends = [end for end in separators if 1 < end <= run] or ([run] if run > 1 else [])
    both = [(i + j, end, first) for i, end in enumerate(ends) for j, first in enumerate(words[1])]
    return [(end, first) for _, end, first in sorted(both)][:STARTS]


def _best(end: int, first: int, words: Places, judge: Judge) -> Text:
    """The best text of this length and first word, out of the likeliest words at each place."""
    options = [list(words[place]) for place in range(2, end)]
    while prod(map(len, options)) > COMBINATIONS:
        max(options, key=len).pop()
    texts = [(first, *rest) for rest in product(*options)]
    return texts[int(judge(texts).argmin())]


def _improved(text: Text, words: Places, judge: Judge) -> Text:
    """Exchange one token at a time, as long as the second layer's inputs come nearer."""
    best = float(judge([text])[0])
    for _ in range(SWEEPS):
        before = text
        for at in range(1, len(text)):  # the first word is what this text began with
            others = [t for t in words[at + 1] if t != text[at]]
            if not others:
                continue
            tried = [(*text[:at], other, *text[at + 1 :]) for other in others]
            far = judge(tried)
            if far.min() < best:
                best, text = float(far.min()), tried[int(far.argmin())]
        if text == before:
            break
    return text


def _judge(model: nn.Module, second: Array, frame: tuple[int, int], only_first: bool) -> Judge:
    """How far texts' second-layer inputs lie from the span, as a mean over tokens."""
    body = body_of(model)

    def judge(texts: list[Text]) -> Array:
        ids = torch.tensor([[frame[0], *text, frame[1]] for text in texts])
        with inference(model):
            out = body(input_ids=ids, output_hidden_states=True)
        H = out.hidden_states[1].double().numpy()
        H = H / np.linalg.norm(H, axis=-1, keepdims=True)
        inside = H @ second
        far = np.sqrt(np.clip(1 - (inside * inside).sum(-1), 0, None))
        return np.asarray(far[:, 0] if only_first else far.mean(-1))

    return judge
