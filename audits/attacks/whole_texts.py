"""Whole texts: recovers one record word for word.

Spans determine texts exactly if a batch has fewer tokens than columns were read (DAGER: arXiv
2405.15586). An adapter has few columns; where they are full, a search over inputs starts the text
(TAG), as for other gradients. Then tokens are exchanged or left out while the step's gradient comes
nearer to the one that was read. The gradient of the distance proposes the exchanges (Ebrahimi, Rao,
Lowd, Dou: HotFlip, ACL 2018, arXiv 1712.06751).
"""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from secure_fl.audits.attacks.gradient_matching import (
    Match,
    guess_words,
    labels_of,
    match_of,
    matchable,
)
from secure_fl.audits.attacks.guess_scores import (
    GuessScore,
    best_rouge,
    finding,
    nothing,
    records_of,
    sequences,
    specials,
)
from secure_fl.audits.attacks.span_check import guess_texts
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.learning.anatomy import body_of

NAME = "whole texts"
ABOUT = (
    "Writes down a text whose training step looks like the one that was read; success means that "
    "this role learns a record's words in their order."
)
MEASURE = "ROUGE-2"

READINGS = 1  # readings to attack: the search takes long
PROPOSALS = 16  # words tried at each place
SWEEPS = 12  # exchanges of one token, at most

Text = tuple[int, ...]


def whole_texts(view: View, prior: Prior) -> AuditFinding:
    """Write down a text behind each reading."""
    chosen, why = matchable(view, prior)
    if not chosen:
        return nothing(NAME, view.role, MEASURE, why)
    chosen = chosen[:READINGS]
    scores = [_score(recovered(r.values, prior), r, prior) for r in chosen]
    return finding(NAME, view.role, MEASURE, chosen, scores)


def recovered(values: Arrays, prior: Prior) -> tuple[Text, ...]:
    """Recover texts from spans; without any, search the text with the nearest gradient."""
    match = match_of(values, prior)
    texts = guess_texts(values, prior).texts
    if match is None or texts:
        return texts
    start = guess_words(values, prior)
    Z = labels_of(match, values, len(start) + 2)
    with sdpa_kernel(SDPBackend.MATH):
        return (_improved(start, match, Z),)


def _improved(text: Text, match: Match, Z: Tensor) -> Text:
    """Exchange, remove or repeat one token at a time: the change with the nearest gradient."""
    table = body_of(match.model).get_input_embeddings().weight.detach()
    fixed = match.prior.task.head == "token"  # each place has a tag: none can be removed
    best = _far(text, match, Z, table)
    for _ in range(SWEEPS):
        tried = _proposed(text, match, Z, table) + ([] if fixed else _resized(text))
        nearest = min(((_far(t, match, Z, table), t) for t in tried), default=(best, text))
        if nearest[0] >= best:
            break
        best, text = nearest
    return text


def _proposed(text: Text, match: Match, Z: Tensor, table: Tensor) -> list[Text]:
    """Propose texts with one other word, by the slope of the distance."""
    X = _rows(text, match, table).requires_grad_()
    far = match.distance(X, Z, differentiable=True)
    (slope,) = torch.autograd.grad(far, X)
    falls = -(slope[1:-1] @ table.T)
    falls[:, sorted(specials(match.prior))] = -torch.inf
    words = falls.topk(PROPOSALS, dim=1).indices.tolist()
    return [
        (*text[:at], word, *text[at + 1 :])
        for at, options in enumerate(words)
        for word in options
        if word != text[at]
    ]


def _resized(text: Text) -> list[Text]:
    """Propose texts without a word, with a word twice, or shorter: the length is a guess."""
    places = range(len(text))
    resized = [(*text[:at], *text[at + 1 :]) for at in places]
    resized += [(*text[: at + 1], *text[at:]) for at in places]
    return [t for t in (*resized, *(text[:at] for at in places)) if t]


def _rows(text: Text, match: Match, table: Tensor) -> Tensor:
    """Embed a text between its first and last token, which are known."""
    tokenizer = match.prior.tokenizer
    return table[[tokenizer.cls_token_id, *text, tokenizer.sep_token_id]].clone()


def _far(text: Text, match: Match, Z: Tensor, table: Tensor) -> float:
    return float(match.distance(_rows(text, match, table), Z, differentiable=False))


def _score(guess: tuple[Text, ...], reading: Reading, prior: Prior) -> GuessScore:
    """Score ROUGE-2 of the best guess for each text; chance is that of as many public texts."""
    banned = specials(prior)

    def plain(records: object) -> list[Text]:
        rows = sequences(records, prior)  # type: ignore[arg-type]
        return [tuple(token for token in row if token not in banned) for row in rows]

    truth, public = plain(records_of(reading, prior)), plain(prior.outsiders)
    rouge_2 = [max((best_rouge([g], [t], 2) for g in guess), default=0.0) for t in truth]
    details = {
        "rouge_1": best_rouge(guess, truth, 1),
        "exact": sum(text in guess for text in truth),
        "texts": len(truth),
    }
    chance = best_rouge(public[: max(1, len(guess))], truth, 2)
    return GuessScore(fmean(rouge_2), chance, len(truth), details)
