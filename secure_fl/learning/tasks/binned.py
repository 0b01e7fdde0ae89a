"""What a record of a class adds to counts: the cell of a confusion matrix, and bins of scores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.learning.counts import Rows
from secure_fl.learning.rates import BINS, odds_bin
from secure_fl.learning.rates import SURE as SURE_BINS

MOST_CROSSED = 10  # classes whose confusion matrix is summed: of more, most cells hold one record
MOST_SCORED = 30  # classes whose scores are summed in bins: 128 numbers each, in every round
SCORED = "scored "  # before a class: its records by bins of its log-odds, then all others'
SURE = "sure"  # records that are right by bins of confidence, then those that are wrong
CONFIDENCE = "confidence"  # its sum in each of these bins


def joined(tensors: Iterable[Tensor], width: int | None = None) -> NDArray[Any]:
    """Batches as one array, also where there is none."""
    empty = torch.zeros(0) if width is None else torch.zeros(0, width)
    return torch.cat([empty, *(tensor.double() for tensor in tensors)]).numpy()


def taken(gold: NDArray[Any], guessed: NDArray[Any], label: int, classes: int) -> Rows:
    """What the records of a class are taken for."""
    (own,) = np.nonzero(gold == label)
    return Rows(len(gold), classes, own, guessed[own], np.ones(len(own), np.int64))


def outcome_rows(gold: NDArray[Any], guessed: NDArray[Any], label: int) -> Rows:
    """Hits, false alarms and missed ones of a class."""
    true, said = gold == label, guessed == label
    (record,) = np.nonzero(true | said)
    place = np.where(~true, 1, np.where(said, 0, 2))[record]
    return Rows(len(gold), 3, record, place, np.ones(len(record), np.int64))


def scored(gold: NDArray[Any], z: NDArray[Any], label: int) -> Rows:
    """Bins of a class's log-odds."""
    others = np.delete(z, label, axis=1)
    odds = z[:, label] - np.logaddexp.reduce(others, axis=1)
    return Rows.of_cells(odds_bin(odds) + BINS * (gold != label), 2 * BINS)


def sureness(gold: NDArray[Any], guessed: NDArray[Any], z: NDArray[Any]) -> dict[str, Rows]:
    """Whether the likeliest class is right, and how likely it was said to be."""
    every = np.arange(len(gold))
    likely = np.exp(z[every, guessed] - np.logaddexp.reduce(z, axis=1))
    at = np.clip((likely * SURE_BINS).astype(np.int64), 0, SURE_BINS - 1)
    return {
        SURE: Rows.of_cells(at + SURE_BINS * (gold != guessed), 2 * SURE_BINS),
        CONFIDENCE: Rows(len(gold), SURE_BINS, every, at, likely),
    }
