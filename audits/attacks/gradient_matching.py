"""Gradient matching: searches inputs whose gradient is the one that was read.

Deng, Wang, Li, Wang, Shang, Liu, Rajasekaran, Ding: TAG: Gradient Attack on Transformer-based
Language Models. Findings of EMNLP 2021, arXiv 2103.06819; Balunović, Dimitrov,
Jovanović, Vechev: LAMP: Extracting Text from Gradients with Language Model Priors. NeurIPS 2022,
arXiv 2202.08827 (the cosine loss, the usual length of embeddings, discrete steps).

The attack assumes one step of plain SGD on one record, without dropout: the largest setting in
which it is known to work here. Several steps, many records, and AdamW are beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from secure_fl.algorithms.layers import head_names
from secure_fl.audits.attacks.guess_scores import (
    RECALL,
    GuessScore,
    choose,
    finding,
    frequent,
    nothing,
    records_of,
    sequences,
    set_scores,
    specials,
    tokens,
)
from secure_fl.audits.attacks.layer_inputs import (
    array,
    attention_names,
    row_values,
    span_of,
    with_factors,
)
from secure_fl.audits.attacks.span_check import first_rate
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.learning.anatomy import body_of, depth, embeddings, unwrapped

NAME = "gradient matching"
ABOUT = (
    "Searches for a text whose training step would look like the one that was read; success means "
    "that this role learns most of the words of a record of that step."
)

READINGS = 2  # readings to attack: the search takes long
STEPS = 100  # of the search over inputs
RATE = 0.2  # of an embedding's length, per step
LENGTH = 0.1  # weight of embeddings' length
NEAREST = 10  # words tried at each place
SWEEPS = 2  # passes over the places


@dataclass(frozen=True, slots=True)
class Match:
    """The target of a search: the reading's gradient, its weights and its model."""

    model: nn.Module
    prior: Prior
    target: tuple[Tensor, ...]
    weights: tuple[nn.Parameter, ...]

    def distance(self, X: Tensor, Z: Tensor, *, differentiable: bool) -> Tensor:
        """Compute TAG's squared distance of directions, and LAMP's mean 1 − cos over tensors."""
        with replaced(body_of(self.model).get_input_embeddings(), X):
            G: tuple[Tensor | None, ...] = torch.autograd.grad(
                self.loss(Z, len(X)), self.weights, create_graph=differentiable, allow_unused=True
            )
        pairs = [(g, t) for g, t in zip(G, self.target, strict=True) if g is not None]
        products = torch.stack([(g * t).sum() for g, t in pairs])
        ours = torch.stack([(g * g).sum() for g, _ in pairs])
        theirs = torch.stack([(t * t).sum() for _, t in pairs])
        cosines = products / (ours * theirs).clamp(min=1e-30).sqrt()
        cosine = products.sum() / (ours.sum() * theirs.sum()).clamp(min=1e-30).sqrt()
        return (1 - cosines).mean() + 2 * (1 - cosine)  # ‖a − b‖² = 2(1 − cos) of unit vectors

    def loss(self, Z: Tensor, length: int) -> Tensor:
        """Compute the training loss of one text with soft labels."""
        ids = torch.full((1, length), int(self.prior.tokenizer.pad_token_id))
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        logits = self.prior.task.forward(self.model, batch)
        if not self.prior.task.exclusive:
            return nn.functional.binary_cross_entropy_with_logits(logits, Z.sigmoid())
        return -(Z.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


def gradient_matching(view: View, prior: Prior) -> AuditFinding:
    """Guess the words of one record behind each reading."""
    chosen, why = matchable(view, prior)
    if not chosen:
        return nothing(NAME, view.role, RECALL, why)
    chosen = chosen[:READINGS]
    guesses = [guess_words(reading.values, prior) for reading in chosen]
    scores = [_score(g, r, prior) for g, r in zip(guesses, chosen, strict=True)]
    note = "treated as one step on one record" if any(_many(r, prior) for r in chosen) else ""
    return finding(NAME, view.role, RECALL, chosen, scores, note)


def matchable(view: View, prior: Prior) -> tuple[tuple[Reading, ...], str]:
    """Choose readings of moves that a search can match; also return why there may be none."""
    if prior.task.head in ("ranking", "prompt") or not prior.task.labels:
        return (), f"not built for tasks of kind {prior.task.kind}: it needs classes or tags"
    model = prior.model()
    chosen = choose(view.readings, prior, lambda r: len(shared_with(r.values, model)) > 1)
    return chosen, "no moves of the encoder's weights were readable"


def guess_words(values: Arrays, prior: Prior) -> tuple[int, ...]:
    """Find the text whose gradient comes nearest to the moves, without specials."""
    match = match_of(values, prior)
    if match is None:
        return ()
    length = _length(values, prior, match.model)
    with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
        X, Z = _search(match, values, length)
        return _words(match, X, Z)


def match_of(values: Arrays, prior: Prior) -> Match | None:
    """Prepare a search for these moves; None: too few of them were read."""
    model = unwrapped(prior.model()).eval()
    values = with_factors(values, model)
    shared = shared_with(values, model)
    if len(shared) < 2:
        return None
    target = tuple(torch.from_numpy(-np.asarray(values[n], np.float32)) for n in shared)
    return Match(model, prior, target, tuple(model.get_parameter(name) for name in shared))


def _search(match: Match, values: Arrays, length: int) -> tuple[Tensor, Tensor]:
    """Optimise dummy inputs by Adam (TAG); the first and last token of a text are known."""
    prior, table = match.prior, body_of(match.model).get_input_embeddings().weight.detach()
    size = float(table.norm(dim=1).mean())
    ends = table[[prior.tokenizer.cls_token_id, prior.tokenizer.sep_token_id]]
    start = prior.rng(NAME, "start").permutation(len(table))[: length - 2]
    free = table[torch.from_numpy(start)].clone().requires_grad_()
    Z = labels_of(match, values, length).requires_grad_()
    optimizer = torch.optim.Adam(
        [{"params": [free], "lr": RATE * size / table.shape[1] ** 0.5}, {"params": [Z], "lr": 0.05}]
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        X = torch.cat([ends[:1], free, ends[1:]])
        far = match.distance(X, Z, differentiable=True)
        far = far + LENGTH * ((free.norm(dim=1).mean() / size - 1) ** 2)
        free.grad, Z.grad = torch.autograd.grad(far, [free, Z])
        optimizer.step()
    return torch.cat([ends[:1], free, ends[1:]]).detach(), Z.detach()


def _words(match: Match, X: Tensor, Z: Tensor) -> tuple[int, ...]:
    """Take the nearest words, and exchange them while the gradient comes nearer (LAMP)."""
    table = body_of(match.model).get_input_embeddings().weight.detach()
    unit = nn.functional.normalize(table, dim=1)
    near = unit @ nn.functional.normalize(X, dim=1).T  # V x L
    near[sorted(specials(match.prior))] = -2.0
    tried = near.topk(NEAREST, dim=0).indices.T.tolist()
    text = [options[0] for options in tried[1:-1]]

    def far(words: Sequence[int]) -> float:
        rows = torch.cat([X[:1], table[list(words)], X[-1:]])
        return float(match.distance(rows, Z, differentiable=False))

    best = far(text)
    for _ in range(SWEEPS):
        for at, options in enumerate(tried[1:-1]):
            for other in options:
                changed = [*text[:at], other, *text[at + 1 :]]
                if other != text[at] and (d := far(changed)) < best:
                    best, text = d, changed
    return tuple(text)


@contextmanager
def replaced(module: nn.Module, output: Tensor) -> Iterator[None]:
    """Make a module return these rows, for any input."""

    def instead(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return output[None]

    handle = module.register_forward_hook(instead)
    try:
        yield
    finally:
        handle.remove()


def labels_of(match: Match, values: Arrays, length: int) -> Tensor:
    """Choose initial soft labels: those whose bias rose; for tags, nothing is known."""
    classes, rows = len(match.prior.task.labels), length
    if match.prior.task.head == "token":
        return torch.zeros(1, rows, classes)
    for name in sorted(head_names(match.model)):
        if name in values and values[name].shape == (classes,):
            if not match.prior.task.exclusive:
                return 6.0 * torch.from_numpy(np.sign(values[name]).astype(np.float32))[None]
            risen = torch.tensor([int(np.argmax(values[name]))])
            return 6.0 * nn.functional.one_hot(risen, classes).float()
    return torch.zeros(1, classes)


def shared_with(values: Arrays, model: nn.Module) -> list[str]:
    """List weights of the encoder and the head whose moves were read completely, and are not 0."""
    frozen = {id(parameter) for parameter in embeddings(model).parameters()}
    return [
        name
        for name, weight in unwrapped(model).named_parameters()
        if id(weight) not in frozen
        and weight.requires_grad
        and name in values
        and values[name].shape == tuple(weight.shape)
        and np.any(values[name])
    ]


def _length(values: Arrays, prior: Prior, model: nn.Module) -> int:
    """Estimate the text's length: the rank of the first layer's move, else the median length."""
    names = attention_names(model) if depth(model) else ()
    weights = {n: array(w) for n, w in model.named_parameters() if n in names}
    rows = row_values(values, names, weights[names[0]].shape[1]) if names else {}
    lengths = [len(row) for row in sequences(prior.outsiders, prior)]
    length = round(median(lengths)) if lengths else prior.task.max_length // 2
    if rows:
        basis = span_of(rows, weights, first_rate(prior) * prior.training.weight_decay)
        rank = basis.shape[1]
        length = rank if 3 <= rank <= max([length, *lengths]) else length
    return max(3, min(length, prior.task.max_length))


def _many(reading: Reading, prior: Prior) -> bool:
    return len(records_of(reading, prior)) > 1


def _score(guess: tuple[int, ...], reading: Reading, prior: Prior) -> GuessScore:
    truth = tokens(records_of(reading, prior), prior)
    precision, recall = set_scores(set(guess), truth)
    public = frequent(prior, len(guess))
    details = {"precision": precision, "guessed": len(guess), "hits": len(set(guess) & truth)}
    return GuessScore(recall, set_scores(public, truth)[1], len(truth), details)
