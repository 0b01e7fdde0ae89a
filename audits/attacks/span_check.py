"""The span check: finds tokens whose embeddings lie in the span of an attention gradient.

Petrov, Dimitrov, Baader, Müller, Vechev: DAGER: Exact Gradient Inversion for Large Language
Models. NeurIPS 2024, arXiv 2405.15586; for adapters, Meerza, Wang, Liu: FedSpy-LLM, arXiv
2604.06297. ∂L/∂W_Q = (∂L/∂Q)ᵀX, so its rows lie in the span of the inputs X. With fewer tokens
than columns, a (token, place) whose input lies in that span was in the batch. The rows of Uᵀ·G, and
an update's right singular vectors, span the same. A text's second-layer inputs lie in the span of
that layer's gradient only if all its tokens are right. So this span tells which candidates belong
together.

An adapter's B moves by (∂L/∂Q)ᵀX·Aᵀ, and A is public. The same is true of what A sees of the
inputs, as long as a batch has fewer tokens than A has rows.

The attack works on one gradient: a step of plain SGD, on few tokens. AdamW's moves, and many steps,
fill all columns. Then nothing can be distinguished, which is no merit of any protection.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from secure_fl.audits.attacks.gradient_spans import InputSpan, in_span, span_of
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
    adapter_rows,
    adapter_views,
    array,
    attention_names,
    inputs_of,
    module_of,
    row_values,
)
from secure_fl.audits.attacks.sentence_search import assemble
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.learning.anatomy import depth
from secure_fl.learning.learning_rates import factor, learning_rate_of
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


class Guess(NamedTuple):
    """Words of the texts, and the texts that they may form."""

    words: tuple[int, ...]  # likeliest first
    texts: tuple[tuple[int, ...], ...]
    rank: int


def span_check(view: View, prior: Prior) -> AuditFinding:
    """Guess the tokens of each party's texts, or of a sum's."""
    model = prior.model()

    def usable(reading: Reading) -> bool:
        return bool(_spans(reading.values, model, prior, 0))

    chosen = choose(view.readings, prior, usable) if inputs_of(model) else ()
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
