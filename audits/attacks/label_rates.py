"""Shares of labels among records, and distances between guesses of them.

Where a record has one label, the shares are a distribution over labels. Where it can have several,
each label's share is a distribution of its own: of records with the label and without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from secure_fl.audits.attacks.layer_inputs import Array, array
from secure_fl.audits.findings import Prior
from secure_fl.data.examples import Example
from secure_fl.learning.tasks import Task
from secure_fl.learning.tasks.token_table import IGNORED


def label_shares(records: Sequence[Example], prior: Prior) -> Array | None:
    """Compute the share of each label among records; None: unlabelled records, or none."""
    if not records or any(getattr(r, "label", getattr(r, "tags", None)) is None for r in records):
        return None
    encoded = prior.task.encode(records, prior.tokenizer)
    labels = encoded.batch(range(len(encoded)))["labels"]
    if not prior.task.exclusive:
        return array(labels.float().mean(0))
    counts = torch.bincount(labels[labels != IGNORED], minlength=len(prior.task.labels))
    return array(counts / counts.sum())


def blind_guesses(task: Task) -> list[Array]:
    """List guesses without any knowledge: equal shares; for several labels also no label."""
    labels = len(task.labels)
    if task.exclusive:
        return [np.full(labels, 1 / labels)]
    return [np.full(labels, 0.5), np.zeros(labels)]


def nearest_shares(y: Array, task: Task) -> Array:
    """Find the nearest possible shares: none negative, with sum 1 or each at most 1."""
    if not task.exclusive:
        return np.clip(y, 0, 1)
    falling = np.sort(y)[::-1]
    over = (np.cumsum(falling) - 1) / np.arange(1, len(y) + 1)
    return np.asarray(np.maximum(y - over[np.flatnonzero(falling > over)[-1]], 0))


def distance(p: Array, q: Array, task: Task) -> float:
    """Compute the total variation distance; for several labels, its mean over labels."""
    differences = np.abs(p - q)
    return float(differences.sum() / 2 if task.exclusive else differences.mean())
