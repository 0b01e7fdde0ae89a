"""Label counts: estimates how often each label occurs, from the classifier's move.

∂L/∂b = mean(softmax − onehot) over records (Geng, Mou, Li, Li, Beyan, Decker, Rong: Towards General
Deep Leakage in Federated Learning, arXiv 2110.09074; Wainakh et al.: User-Level Label Leakage from
Gradients in Federated Learning. PoPETs 2022(2), arXiv 2105.09369). So b moves by about
s·(labels − the initial model's predictions). The weights move by the same along their mean input;
where they do not, the attack ignores b. Where a record can have several labels, the loss of each is
a binary cross-entropy, and its entry of b moves by sigmoid − label, independently of the others.

The slope s of one step of plain SGD is the learning rate. For any other training it follows from
simulations: the attacker trains with the run's settings, on public records whose labels it knows.
They are as many as the party's where their number can be read, else all public ones. Clipping and
AdamW divide by the gradient's own size, and long training overshoots. There the order of the labels
is estimated better than their shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from secure_fl.algorithms.layers import head_names
from secure_fl.audits.attacks.guess_scores import GuessScore, choose, finding, nothing, records_of
from secure_fl.audits.attacks.label_rates import (
    blind_guesses,
    distance,
    label_shares,
    nearest_shares,
)
from secure_fl.audits.attacks.layer_inputs import Array, array
from secure_fl.audits.attacks.simulated_training import MOST, drawn, simulate
from secure_fl.audits.findings import Arrays, AuditFinding, Prior, Reading, View
from secure_fl.data.examples import Example
from secure_fl.learning.anatomy import unwrapped
from secure_fl.learning.learning_rates import learning_rate_of
from secure_fl.learning.tasks.batches import by_record
from secure_fl.learning.tasks.task import inference
from secure_fl.learning.tasks.token_table import IGNORED
from secure_fl.protocol.sum_names import RECORDS

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
    if not prior.task.labels:
        why = f"a {prior.task.kind} task has no labels to count"
        return nothing(NAME, view.role, MEASURE, why)
    names = _head(prior.model())

    def usable(reading: Reading) -> bool:
        return names is not None and all(name in reading.values for name in names)

    chosen = choose(view.readings, prior, usable)
    if not chosen:
        return nothing(NAME, view.role, MEASURE, "no move of the output layer was readable")
    public = label_shares(prior.outsiders, prior)
    start = _start(prior)
    slope = _first_slope(prior, start, _size(chosen[0].values, len(chosen[0].of)))
    scores = []
    for reading in chosen:
        guess = _guess(reading.values, prior, start, slope, len(reading.of))
        scores.append(_score(guess, [start.shares, public], reading, prior))
    return finding(NAME, view.role, MEASURE, chosen, scores)


def _size(values: Arrays, parties: int) -> int | None:
    """Read the mean number of a party's records; None: it cannot be read."""
    count = float(np.sum(values[RECORDS])) / parties if RECORDS in values else 0.0
    return round(count) if 1 <= count < np.inf else None


def _guess(
    values: Arrays, prior: Prior, start: InitialOutputs, slope: float, parties: int = 1
) -> Array:
    names = _head(prior.model())
    if names is None or any(name not in values for name in names):
        return start.shares
    W, b = (np.asarray(values[name], np.float64) for name in names)
    move = _cause(b, prior)
    if not _coherent(W, move, start):
        return start.shares
    guess = nearest_shares(start.shares + move / slope, prior.task)
    size = _size(values, parties)
    for at in range(REFINEMENTS):  # clipping and AdamW bend the line: simulate near the guess
        slope = _slope(prior, start, [drawn(prior, guess, "near", at, size=size)]) or slope
        guess = nearest_shares(start.shares + move / slope, prior.task)
    return guess


def _coherent(W: Array, move: Array, start: InitialOutputs) -> bool:
    """Test if the weights moved as the bias did, along the mean input, as a gradient's step does.

    The cosine of unrelated values has a deviation of 1/√(entries): 0.09 for two classes of 64.
    """
    expected = np.outer(move, start.inputs)
    size = np.linalg.norm(expected) * np.linalg.norm(W)
    return not start.inputs.any() or bool((W * expected).sum() > COHERENT * size)


def _cause(b: Array, prior: Prior) -> Array:
    """Keep the part of the bias's move that labels cause.

    Softmax minus onehot adds up to 0; the rest is weight decay or noise. Sigmoid minus labels does
    not.
    """
    return np.asarray(b - b.mean() if prior.task.exclusive else b)


def _head(model: nn.Module) -> tuple[str, str] | None:
    """Find the names of the output layer's weight and bias."""
    names = sorted(head_names(model))
    weights = [name for name in names if name.endswith("weight")]
    biases = [name for name in names if name.endswith("bias")]
    return (weights[0], biases[0]) if len(weights) == len(biases) == 1 else None


def _start(prior: Prior) -> InitialOutputs:
    """Run the initial model on public records; without any, assume equal shares."""
    model = unwrapped(prior.model())
    names = _head(model)
    if names is None or not prior.outsiders:
        width = 0 if names is None else model.get_parameter(names[0]).shape[1]
        return InitialOutputs(blind_guesses(prior.task)[0], np.zeros(width))
    inputs_seen: list[torch.Tensor] = []
    head = model.get_submodule(names[0].rpartition(".")[0])
    handle = head.register_forward_pre_hook(lambda _, args: inputs_seen.append(args[0]))
    encoded = prior.task.encode(prior.outsiders[:MOST], prior.tokenizer, labelled=False)
    batch = encoded.batch(range(len(encoded)))
    with inference(model):
        logits = prior.task.forward(model, batch)
    handle.remove()
    inputs = torch.cat(inputs_seen)
    shares = logits.softmax(-1) if prior.task.exclusive else logits.sigmoid()
    if "words" in batch:  # tags count at the first piece of each word
        at = batch["words"] != IGNORED
        inputs, shares = by_record(inputs, batch, words=True)[at], shares[at]
    return InitialOutputs(array(shares.mean(0)), array(inputs.mean(0)))


def _slope(prior: Prior, start: InitialOutputs, mixes: Sequence[Sequence[Example]]) -> float | None:
    """Estimate how far the bias moves for a share of 1, by least squares over simulations."""
    names = _head(prior.model())
    moves, causes = [], []
    for at, records in enumerate(mixes):
        mixed = label_shares(records, prior)
        if mixed is None or names is None:
            return None
        moves.append(_cause(simulate(prior, records, at)[names[1]], prior))
        causes.append(mixed - start.shares)
    if not moves:
        return None
    Δ, y = np.concatenate(moves), np.concatenate(causes)
    slope = float(Δ @ y) / max(float(y @ y), 1e-12)
    return slope if slope > 0 and np.abs(y).max() > LEAST_DIFFERENCE else None


def _first_slope(prior: Prior, start: InitialOutputs, size: int | None = None) -> float:
    """Estimate the slope over mixes that favour one label each; else take one step's."""
    classes, mixes = len(prior.task.labels), []
    public = None if prior.task.exclusive else label_shares(prior.outsiders, prior)
    for at in range(SIMULATIONS):
        rest = (1 - FAVOURED) / max(1, classes - 1)
        shares = np.full(classes, rest) if public is None else public.copy()
        shares[at % classes] = FAVOURED
        mixes.append(drawn(prior, shares, "mix", at, size=size))
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
    blind = [*blind_guesses(prior.task), *(g for g in others if g is not None)]
    chance = max(1 - distance(other, truth, prior.task) for other in blind)
    order = float(np.argmax(guess) == np.argmax(truth))
    details = {"worst_error": float(np.abs(guess - truth).max()), "commonest_right": order}
    return GuessScore(1 - distance(guess, truth, prior.task), chance, len(records), details)
