"""The span check: finds tokens whose embeddings lie in the span of an attention gradient.

Petrov, Dimitrov, Baader, Müller, Vechev: DAGER: Exact Gradient Inversion for Large Language
Models. NeurIPS 2024, arXiv 2405.15586; for adapters, Meerza, Wang, Liu: FedSpy-LLM, arXiv
2604.06297. X are the inputs of an attention layer, one row for each token of the batch.

- Whole weights: ∂L/∂W_Q = (∂L/∂Q)ᵀX, so its rows lie in the span of X. With fewer tokens than
  columns, a (token, place) whose input lies in that span was in the batch.
- Factors of an update G ≈ U·B: the rows of B = Uᵀ·G, or G's right singular vectors, span the same.
- Adapters: B of B·A moves by (∂L/∂Q)ᵀX·Aᵀ, and A is public. So the same is true of X·Aᵀ, with
  fewer tokens than A has rows.
- Second layer: the span of its gradient contains a text's inputs only if all its tokens are right.

The attack works on one step of plain SGD, on few tokens. AdamW, or many steps, fill all columns, so
no token can be distinguished. This does not show that a protection works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from secure_fl.audits.attacks.guess_scores import (
    RECALL,
    GuessScore,
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
from secure_fl.audits.attacks.layer_inputs import (
    Array,
    Hit,
    InputSpan,
    adapter_rows,
    adapter_views,
    array,
    attention_names,
    in_span,
    inputs_of,
    module_of,
    row_values,
    span_of,
)
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.learning.anatomy import body_of, cut, depth, encoder_layers
from secure_fl.learning.learning_rates import factor, learning_rate_of
from secure_fl.learning.tasks.task import inference
from secure_fl.party.rounds import Round

NAME = "span check"

ABOUT = (
    "Tests every word at every place against the span of an attention layer's update; success "
    "means that this role can list most of the words of the texts that a hospital trained on."
)

FULL = (
    "no word stands out: as many tokens, or steps of an optimiser such as AdamW, as columns leave "
    "nothing to distinguish"
)

TokenIds = tuple[int, ...]  # of a text, without [CLS] and [SEP]
WordsByPlace = Mapping[int, Sequence[int]]  # the likeliest first
Distance = Callable[[list[TokenIds]], Array]  # of texts, one for each

STARTS = 12  # lengths and first words that are tried
COMBINATIONS = 512  # texts that are tried for each of these, in one batch
SWEEPS = 2  # passes over the places of each text
ALTERNATIVES = 8  # tokens tried at a place


class Guess(NamedTuple):
    """Words of the texts, and the texts that they may form."""

    words: TokenIds  # the likeliest first
    texts: tuple[TokenIds, ...]
    rank: int  # of the span


def span_check(view: View, prior: Prior) -> AuditFinding:
    """Guess the tokens of each party's texts, or of a sum's."""
    model = prior.model()
    chosen: tuple[Reading, ...] = ()
    if inputs_of(model):
        chosen = choose(view.readings, prior, lambda r: bool(_spans(r.values, model, prior, 0)))
    if not chosen:
        why = "no move of the first attention layer was readable, or its inputs are not BERT's"
        return nothing(NAME, view.role, RECALL, why)
    guesses = [guess_texts(reading.values, prior) for reading in chosen]
    scores = [_score(g, r, prior) for g, r in zip(guesses, chosen, strict=True)]
    note = "" if any(guess.words for guess in guesses) else FULL
    return finding(NAME, view.role, RECALL, chosen, scores, note)


def guess_texts(values: Arrays, prior: Prior) -> Guess:
    """Find the words in the span, at most as many as its rank, and texts made of them."""
    model = prior.model()
    names = attention_names(model)
    kinds = range(2 if prior.task.kind == "pair" else 1)
    tables = [table for kind in kinds if (table := inputs_of(model, kind)) is not None]
    if not names or not tables:
        return Guess((), (), 0)
    spans = _spans(values, model, prior, 0)
    rank = max((span.basis.shape[1] for span in spans), default=0)
    if not spans or not all(span.is_proper for span in spans):
        return Guess((), (), rank)
    longest = min(prior.task.max_length, len(tables[0].places))
    hits = sorted({hit for table in tables for hit in in_span(table, spans, longest)})
    banned = specials(prior)
    words = tuple(dict.fromkeys(hit.token for hit in hits if hit.token not in banned))
    # A sentence's vector is its first token's, so only that query matters in the last layer.
    only_first = prior.task.head == "sequence" and depth(model) == 2
    second = _spans(values, model, prior, 1, only_queries=only_first) if depth(model) > 1 else ()
    texts = assemble(hits, model, second, prior.tokenizer, only_first=only_first)
    return Guess(words[:rank], texts, rank)  # no more than a span of this rank can hold


def _spans(
    values: Arrays, model: nn.Module, prior: Prior, layer: int, *, only_queries: bool = False
) -> tuple[InputSpan, ...]:
    """Return the span of one layer's inputs, or one for each adapter; none without its update."""
    names = attention_names(model, layer)
    names = tuple(n for n in names if not only_queries or module_of(n).startswith("q"))
    weights = {n: array(w) for n, w in model.named_parameters() if n in names}
    width = weights[names[0]].shape[1] if names else 0
    if adapters := adapter_views(model, names):
        rows_of = {name: adapter_rows(values, name, A) for name, A in adapters.items()}
        return tuple(
            InputSpan(span_of({"B": rows}, {}, 0.0), adapters[name].T)
            for name, rows in rows_of.items()
            if len(rows)
        )
    if not (rows := row_values(values, names, width)):
        return ()
    return (InputSpan(span_of(rows, weights, first_rate(prior) * prior.training.weight_decay)),)


def first_rate(prior: Prior) -> float:
    """Compute the learning rate of a run's first step, if a round has one step."""
    start = Round(1, prior.algorithm.rounds).at(0, 1)
    rate = prior.training.learning_rate or learning_rate_of(prior.model(), prior.training)
    return rate * factor(prior.training, start)


def _score(guess: Guess, reading: Reading, prior: Prior) -> GuessScore:
    """Score the recall of distinct tokens, but not their places, which spans confuse.

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
    return GuessScore(recall, set_scores(public, truth)[1], len(truth), details)


# --- texts of words at places ---------------------------------------------------------------------
#
# Place 0 has [CLS], so a text's first word is at place 1, and [SEP] is at the place after its last
# word, its *end*. A text is right if the second layer's inputs lie in the span of that layer, too.
# Where most places have more candidates than the search tries, the right words are seldom among
# those tried. Then the likeliest word at each place makes the text, without a search.


def assemble(
    hits: Sequence[Hit],
    model: nn.Module,
    second: Sequence[InputSpan],
    tokenizer: Any,
    *,
    only_first: bool = False,
) -> tuple[TokenIds, ...]:
    """Form texts from hits. A search cuts `model` to its first layer.

    `second`: spans of the second layer's inputs; `only_first`: of texts' first inputs.
    """
    tokens: dict[int, list[int]] = {}
    for hit in sorted(hits):
        tokens.setdefault(hit.place, []).append(hit.token)
    words = {
        place: [t for t in likeliest if t not in tokenizer.all_special_ids][:ALTERNATIVES]
        for place, likeliest in tokens.items()
    }
    ends = [hit.place for hit in sorted(hits) if hit.token == tokenizer.sep_token_id]
    starts = _starts(ends, words)
    crowded = bool(words) and median(map(len, tokens.values())) > ALTERNATIVES
    if crowded or not second or not all(span.is_proper for span in second):
        unsearched = [(first, *(words[p][0] for p in range(2, end))) for end, first in starts]
        return tuple(dict.fromkeys(unsearched))
    frame = tokenizer.cls_token_id, tokenizer.sep_token_id
    distance = _distance_from(second, model, frame, only_first)
    texts = [
        _improved(_best(end, first, words, distance), words, distance) for end, first in starts
    ]
    return tuple(dict.fromkeys(texts))


def _starts(separators: Sequence[int], words: WordsByPlace) -> list[tuple[int, int]]:
    """List the ends and first words of texts, the likeliest first."""
    gap = next(p for p in range(1, len(words) + 2) if not words.get(p))  # the first without a word
    ends = [end for end in separators if 1 < end <= gap] or ([gap] if gap > 1 else [])
    ranked = [(i + j, end, word) for i, end in enumerate(ends) for j, word in enumerate(words[1])]
    return [(end, word) for _, end, word in sorted(ranked)][:STARTS]


def _best(end: int, first: int, words: WordsByPlace, distance: Distance) -> TokenIds:
    """Find the best text of this end and first word, of the likeliest words at each place."""
    options = [list(words[place]) for place in range(2, end)]
    while prod(map(len, options)) > COMBINATIONS:
        max(options, key=len).pop()
    texts = [(first, *others) for others in product(*options)]
    return texts[int(distance(texts).argmin())]


def _improved(text: TokenIds, words: WordsByPlace, distance: Distance) -> TokenIds:
    """Exchange one token at a time while the second layer's inputs come nearer to the spans."""
    least = float(distance([text])[0])
    for _ in range(SWEEPS):
        before = text
        for index in range(1, len(text)):  # the first word is fixed
            others = [token for token in words[index + 1] if token != text[index]]
            if not others:
                continue
            changed = [(*text[:index], other, *text[index + 1 :]) for other in others]
            distances = distance(changed)
            if distances.min() < least:
                least, text = float(distances.min()), changed[int(distances.argmin())]
        if text == before:
            break
    return text


def _distance_from(
    spans: Sequence[InputSpan], model: nn.Module, frame: tuple[int, int], only_first: bool
) -> Distance:
    """Make a function of texts: the mean distance of their second-layer inputs from the spans."""
    body = body_of(cut(model, 1))  # later layers are not needed
    outputs: list[torch.Tensor] = []  # the hook stays as long as the model, which is cut anyway
    encoder_layers(model)[0].register_forward_hook(lambda _, __, out: outputs.append(_first(out)))

    def distance(texts: list[TokenIds]) -> Array:
        ids = torch.tensor([[frame[0], *text, frame[1]] for text in texts])
        with inference(model):
            body(input_ids=ids)
        inputs = outputs.pop().double().numpy()
        sines = np.mean([span.sine(inputs) for span in spans], axis=0)
        return np.asarray(sines[:, 0] if only_first else sines.mean(-1))

    return distance


def _first(out: Any) -> torch.Tensor:
    """Return a layer's output; some model families return a tuple."""
    hidden: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
