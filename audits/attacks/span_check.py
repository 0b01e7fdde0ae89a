"""The span check: finds tokens whose embeddings lie in the span of an attention gradient.

Petrov, Dimitrov, Baader, Müller, Vechev: DAGER: Exact Gradient Inversion for Large Language
Models. NeurIPS 2024, arXiv 2405.15586; for adapters, Meerza, Wang, Liu: FedSpy-LLM, arXiv
2604.06297. ∂L/∂W_Q = (∂L/∂Q)ᵀX, so its rows lie in the span of the inputs X. With fewer tokens
than columns, a (token, place) whose input lies in that span was in the batch. The rows of Uᵀ·G, and
an update's right singular vectors, span the same. The span of the second layer's gradient contains
a text's inputs only if all its tokens are right. An adapter's B moves by (∂L/∂Q)ᵀX·Aᵀ, and A is
public, so the same is true of what A sees of the inputs, with fewer tokens than A has rows.

The attack works on a step of plain SGD, on few tokens. AdamW's moves, and many steps, fill all
columns. Then nothing can be distinguished, which is no merit of any protection.
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

Text = tuple[int, ...]
Places = Mapping[int, Sequence[int]]
Judge = Callable[[list[Text]], Array]

STARTS = 12  # lengths and first words that are tried
COMBINATIONS = 512  # texts that are tried for each of these, in one batch
SWEEPS = 2  # passes over the places of each text
ALTERNATIVES = 8  # tokens tried at a place


class Guess(NamedTuple):
    """Words of the texts, and the texts that they may form."""

    words: tuple[int, ...]  # likeliest first
    texts: tuple[tuple[int, ...], ...]
    rank: int


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
    words = tuple(dict.fromkeys(token for _, _, token in hits if token not in banned))
    # A sentence's vector is its first token's, so only that query matters in the last layer.
    first = prior.task.head == "sequence" and depth(model) == 2
    second = _spans(values, model, prior, 1, only_queries=first) if depth(model) > 1 else ()
    texts = assemble(hits, model, second, prior.tokenizer, only_first=first)
    return Guess(words[:rank], texts, rank)  # no more than a span of this rank can hold


def _spans(
    values: Arrays, model: nn.Module, prior: Prior, layer: int, *, only_queries: bool = False
) -> tuple[InputSpan, ...]:
    """Compute the span of one layer's inputs, or what each adapter saw of it; empty: unread."""
    names = attention_names(model, layer)
    names = tuple(n for n in names if not only_queries or module_of(n).startswith("q"))
    weights = {n: array(w) for n, w in model.named_parameters() if n in names}
    width = weights[names[0]].shape[1] if names else 0
    if views := adapter_views(model, names):
        seen = [(adapter_rows(values, n, A), A.T) for n, A in views.items()]
        return tuple(
            InputSpan(span_of({"B": rows}, {}, 0.0), view) for rows, view in seen if len(rows)
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


# --- sentences out of words at places: the second layer's inputs must lie in its span, too --------
#
# Where most places have more candidates than the search tries, the right words are seldom among
# those tried. Then the likeliest word at each place makes the text, without a search.


def assemble(
    hits: Sequence[tuple[float, int, int]],
    model: nn.Module,
    second: Sequence[InputSpan],
    tokenizer: Any,
    *,
    only_first: bool = False,
) -> tuple[Text, ...]:
    """Form texts from these (log p, place, token) hits.

    `second`: spans of the second layer's inputs; `only_first`: of texts' first inputs.
    """
    places: dict[int, list[int]] = {}
    for _, place, token in sorted(hits):
        places.setdefault(place, []).append(token)
    words = {
        place: [t for t in hit if t not in tokenizer.all_special_ids][:ALTERNATIVES]
        for place, hit in places.items()
    }
    separators = [p for _, p, token in sorted(hits) if token == tokenizer.sep_token_id]
    starts = _starts(separators, words)
    crowded = bool(words) and median(map(len, places.values())) > ALTERNATIVES
    if crowded or not second or not all(span.is_proper for span in second):
        likeliest = [(first, *(words[p][0] for p in range(2, end))) for end, first in starts]
        return tuple(dict.fromkeys(likeliest))
    judge = _judge(model, second, (tokenizer.cls_token_id, tokenizer.sep_token_id), only_first)
    texts = [_improved(_best(end, first, words, judge), words, judge) for end, first in starts]
    return tuple(dict.fromkeys(texts))


def _starts(separators: Sequence[int], words: Places) -> list[tuple[int, int]]:
    """List the ends and first words of texts, the likeliest first."""
    gap = next(p for p in range(1, len(words) + 2) if not words.get(p))  # the first without a word
    ends = [end for end in separators if 1 < end <= gap] or ([gap] if gap > 1 else [])
    both = [(i + j, end, first) for i, end in enumerate(ends) for j, first in enumerate(words[1])]
    return [(end, first) for _, end, first in sorted(both)][:STARTS]


def _best(end: int, first: int, words: Places, judge: Judge) -> Text:
    """Find the best text of this length and first word, of the likeliest words at each place."""
    options = [list(words[place]) for place in range(2, end)]
    while prod(map(len, options)) > COMBINATIONS:
        max(options, key=len).pop()
    texts = [(first, *rest) for rest in product(*options)]
    return texts[int(judge(texts).argmin())]


def _improved(text: Text, words: Places, judge: Judge) -> Text:
    """Exchange one token at a time while the second layer's inputs come nearer to the spans."""
    best = float(judge([text])[0])
    for _ in range(SWEEPS):
        before = text
        for at in range(1, len(text)):  # the first word is fixed
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


def _judge(
    model: nn.Module, second: Sequence[InputSpan], frame: tuple[int, int], only_first: bool
) -> Judge:
    """Make a function of texts: the mean distance of second-layer inputs from the spans."""
    body = body_of(cut(model, 1))  # later layers are not needed
    outputs: list[torch.Tensor] = []
    encoder_layers(model)[0].register_forward_hook(lambda _, __, out: outputs.append(_first(out)))

    def judge(texts: list[Text]) -> Array:
        ids = torch.tensor([[frame[0], *text, frame[1]] for text in texts])
        with inference(model):
            body(input_ids=ids)
        H = outputs.pop().double().numpy()
        far = np.mean([span.sine(H) for span in second], axis=0)
        return np.asarray(far[:, 0] if only_first else far.mean(-1))

    return judge


def _first(out: Any) -> torch.Tensor:
    """Take a layer's output; some model families return a tuple."""
    hidden: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
