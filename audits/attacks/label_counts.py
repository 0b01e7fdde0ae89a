"""Label counts: estimates how often each label occurs, from the classifier's move.

∂L/∂b = mean(softmax − onehot) over records (Geng, Mou, Li, Li, Beyan, Decker, Rong: Towards General
Deep Leakage in Federated Learning, arXiv 2110.09074; Wainakh et al.: User-Level Label Leakage from
Gradients in Federated Learning. PoPETs 2022(2), arXiv 2105.09369). So b moves by about
s·(labels − the initial model's predictions). The weights move by the same along their mean input;
where they do not, the attack ignores b.

The slope s of one step of plain SGD is the learning rate. For any other training it follows from
simulations: the attacker trains with the run's settings, on public records whose labels it knows.
This assumes that a party is as large as the public set. Clipping and AdamW divide by the gradient's
own size, and long training overshoots. There the order of the labels is estimated better than their
shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from secure_fl.algorithms.layers import head_names
from secure_fl.audits.attacks.guess_scores import GuessScore, choose, finding, nothing, records_of
from secure_fl.audits.attacks.layer_inputs import Array, array
from secure_fl.audits.attacks.simulated_training import MOST, drawn, simulate
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.data.examples import Example
from secure_fl.learning.anatomy import unwrapped
from secure_fl.learning.learning_rates import learning_rate_of
from secure_fl.learning.tasks.task import inference
from secure_fl.learning.tasks.token_table import IGNORED

NAME = "label counts"
ABOUT = (
    "Estimates how often each label (or tag) occurs in a hospital's records from the move of the "
    "output layer; success means that this role learns, say, what share has the diagnosis."
)
MEASURE = "1 - total variation distance"

COHERENT = 0.3  # least cosine between the weights' move and the move that the bias implies
LEAST_DIFFERENCE = 0.05  # of shares, from which a slope can be estimated
REFINEMENTS = 2  # further simulations for each reading
SIMULATIONS = 3  # trainings on public records with other mixes of labels
FAVOURED = 0.8  # share of one label in a simulation, each label in turn


@dataclass(frozen=True, slots=True)
class InitialOutputs:
    """The initial model's outputs on records of this kind."""

    shares: Array  # its mean prediction, one share for each label
    inputs: Array  # the mean input of its output layer


def label_counts(view: View, prior: Prior) -> AuditFinding:
    """Guess the share of each label in a party's records, or in a sum's."""
    if not prior.task.labels or not prior.task.exclusive:
        few = "several labels per record" if prior.task.labels else "no labels to count"
        why = f"a {prior.task.kind} task has {few}"
        return nothing(NAME, view.role, MEASURE, why)
    names = _head(prior.model())

    def usable(reading: Reading) -> bool:
        return names is not None and all(name in reading.values for name in names)

    chosen = choose(view.readings, prior, usable)
    if not chosen:
        return nothing(NAME, view.role, MEASURE, "no move of the output layer was readable")
    public = label_shares(prior.outsiders, prior)
    start = _start(prior)
    slope = _first_slope(prior, start)
    scores = []
    for reading in chosen:
        guess = _guess(reading.values, prior, start, slope)
        scores.append(_score(guess, [start.shares, public], reading, prior))
    return finding(NAME, view.role, MEASURE, chosen, scores)


def label_shares(records: Sequence[Example], prior: Prior) -> Array | None:
    """Compute the share of each label among records; None: unlabelled records, or none."""
    if not records or any(getattr(r, "label", getattr(r, "tags", None)) is None for r in records):
        return None
    encoded = prior.task.encode(records, prior.tokenizer)
    labels = encoded.batch(range(len(encoded)))["labels"]
    counts = torch.bincount(labels[labels != IGNORED], minlength=len(prior.task.labels))
    return array(counts / counts.sum())


def _guess(values: Arrays, prior: Prior, start: InitialOutputs, slope: float) -> Array:
    names = _head(prior.model())
    if names is None or any(name not in values for name in names):
        return start.shares
    W, b = (np.asarray(values[name], np.float64) for name in names)
    if not _coherent(W, b, start):
        return start.shares
    guess = _nearest(start.shares + _centred(b) / slope)
    for at in range(REFINEMENTS):  # clipping and AdamW bend the line: simulate near the guess
        slope = _slope(prior, start, [drawn(prior, guess, "near", at)]) or slope
        guess = _nearest(start.shares + _centred(b) / slope)
    return guess


def _coherent(W: Array, b: Array, start: InitialOutputs) -> bool:
    """Test if the weights moved as the bias did, along the mean input, as a gradient's step does.

    The cosine of unrelated values has a deviation of 1/√(entries): 0.09 for two classes of 64.
    """
    expected = np.outer(_centred(b), start.inputs)
    size = np.linalg.norm(expected) * np.linalg.norm(W)
    return not start.inputs.any() or bool((W * expected).sum() > COHERENT * size)


def _centred(b: Array) -> Array:
    """Subtract the mean: softmax minus onehot adds up to 0; the rest is weight decay or noise."""
    return np.asarray(b - b.mean())


def _head(model: nn.Module) -> tuple[str, str] | None:
    """Find the names of the output layer's weight and bias."""
    names = sorted(head_names(model))
    weights = [name for name in names if name.endswith("weight")]
    biases = [name for name in names if name.endswith("bias")]
    return (weights[0], biases[0]) if len(weights) == len(biases) == 1 else None


def _nearest(y: Array) -> Array:
    """Find the nearest vector of shares: none negative, with sum 1."""
    falling = np.sort(y)[::-1]
    over = (np.cumsum(falling) - 1) / np.arange(1, len(y) + 1)
    return np.asarray(np.maximum(y - over[np.flatnonzero(falling > over)[-1]], 0))


def _start(prior: Prior) -> InitialOutputs:
    """Run the initial model on public records; without any, assume equal shares."""
    model = unwrapped(prior.model())
    names = _head(model)
    classes = len(prior.task.labels)
    if names is None or not prior.outsiders:
        width = 0 if names is None else model.get_parameter(names[0]).shape[1]
        return InitialOutputs(np.full(classes, 1 / classes), np.zeros(width))
    inputs_seen: list[torch.Tensor] = []
    head = model.get_submodule(names[0].rpartition(".")[0])
    handle = head.register_forward_pre_hook(lambda _, args: inputs_seen.append(args[0]))
    encoded = prior.task.encode(prior.outsiders[:MOST], prior.tokenizer, labelled=False)
    batch = encoded.batch(range(len(encoded)))
    with inference(model):
        logits = prior.task.forward(model, batch)
    handle.remove()
    inputs, shares = inputs_seen[0], logits.softmax(-1)
    if "words" in batch:  # tags count at the first piece of each word
        at = batch["words"] != IGNORED
        inputs, shares = inputs[at], shares[at]
    return InitialOutputs(array(shares.mean(0)), array(inputs.mean(0)))


def _slope(prior: Prior, start: InitialOutputs, mixes: Sequence[Sequence[Example]]) -> float | None:
    """Estimate how far the bias moves for a share of 1, by least squares over simulations."""
    names = _head(prior.model())
    moves, causes = [], []
    for at, records in enumerate(mixes):
        mixed = label_shares(records, prior)
        if mixed is None or names is None:
            return None
        moves.append(_centred(simulate(prior, records, at)[names[1]]))
        causes.append(mixed - start.shares)
    if not moves:
        return None
    Δ, y = np.concatenate(moves), np.concatenate(causes)
    slope = float(Δ @ y) / max(float(y @ y), 1e-12)
    return slope if slope > 0 and np.abs(y).max() > LEAST_DIFFERENCE else None


def _first_slope(prior: Prior, start: InitialOutputs) -> float:
    """Estimate the slope over mixes that favour one label each; else take one step's."""
    classes, mixes = len(prior.task.labels), []
    for at in range(SIMULATIONS):
        weight = np.full(classes, (1 - FAVOURED) / max(1, classes - 1))
        weight[at % classes] = FAVOURED
        mixes.append(drawn(prior, weight, "mix", at))
    slope = _slope(prior, start, mixes) or prior.training.learning_rate
    return slope or learning_rate_of(prior.model(), prior.training)


def _score(
    guess: Array, others: Sequence[Array | None], reading: Reading, prior: Prior
) -> GuessScore:
    """Score a guess; chance is the best guess without a reading: equal shares, or `others`."""
    records = records_of(reading, prior)
    truth = label_shares(records, prior)
    if truth is None:
        return GuessScore(0.0, 0.0, 0, {"worst_error": 1.0, "commonest_right": 0.0})
    blind = [np.full(len(truth), 1 / len(truth)), *(g for g in others if g is not None)]
    chance = max(1 - _distance(other, truth) for other in blind)
    order = float(np.argmax(guess) == np.argmax(truth))
    details = {"worst_error": float(np.abs(guess - truth).max()), "commonest_right": order}
    return GuessScore(1 - _distance(guess, truth), chance, len(records), details)


def _distance(p: Array, q: Array) -> float:
    """Compute the total variation distance."""
    return float(np.abs(p - q).sum() / 2)
