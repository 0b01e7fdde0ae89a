"""Eqs. 13 to 15 of FedID: a party's steps on public records, and what it writes down of them.

Ma, Liu, Wang, Zhang: FedID: Federated Interactive Distillation for Large-Scale Pretraining
Language Models. EMNLP 2023. What is written down stays in the member's own log.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from secure_fl.algorithms.feedback import Feedback, Scale
from secure_fl.algorithms.public_records import Rows, cross_entropy, votes
from secure_fl.learning.local_training import Optimizer, public_step
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch

UNKNOWN = -1  # the class of a public record that nobody was asked about yet


class Given(NamedTuple):
    """What a party has for a step: Eq. 10, Eq. 9 and Eq. 12."""

    y: Tensor  # the ensemble
    own: Tensor  # its own predictions, as it sent them
    h: Tensor  # the feedback


class Rules(NamedTuple):
    """What of Eqs. 13 and 14 is in the step, and how much the latter counts."""

    distill: bool
    feedback: Feedback
    scale: Scale
    weight: float


def terms(z: Tensor, given: Given, w: float, rules: Rules) -> tuple[Tensor, Tensor]:
    """Compute the losses whose gradients are g_distill and g_feedback.

    As printed, feedback counts by the party's share w of all records; in units of its own, not.
    """
    nothing, printed = z.new_zeros((), dtype=torch.float32), rules.scale == "printed"
    distilled = cross_entropy(z, given.y) if rules.distill else nothing  # Eq. 13
    weight = rules.weight * (w if printed else 1.0)
    if rules.feedback == "exact":
        each = (given.h * z.float().softmax(-1)).sum(-1)
        return distilled, weight * (each.sum() if printed else each.mean())  # Eq. 14
    if rules.feedback == "scalar":
        # Differs: the likeliest class is strengthened even where probabilities are sent, for
        # towards its own probabilities a model has nowhere to go.
        return distilled, weight * given.h * cross_entropy(z, votes(given.own))  # Eq. 14
    return distilled, nothing


def rectify(
    site: Site,
    model: nn.Module,
    optimizer: Optimizer,
    x: Batch,
    given: Given,
    w: float,
    rules: Rules,
    watch: Watch,
) -> None:
    """Eq. 15: a step of a party's model against g_distill + g_feedback."""

    def loss() -> Tensor:
        z = site.task.forward(model, x)
        found = terms(z, given, w, rules)
        watch.step(z, given, found)
        return torch.stack(found).sum()

    model.train()
    with site.recorder.phase("train"):
        public_step(site, optimizer, loss)


class Watch:
    """A round's steps at a party: how far it moved since it predicted, and what moved it."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[float]] = defaultdict(list)

    def step(self, z: Tensor, given: Given, losses: tuple[Tensor, Tensor]) -> None:
        """Look at a step before it is made: at its logits, and at both losses of them."""
        said = z.detach().argmax(-1)
        for name, other in (("as_sent", given.own), ("as_ensemble", given.y)):
            self._seen[name].append(float((said == other.argmax(-1)).float().mean()))
        if all(loss.requires_grad for loss in losses):
            g_distill, g_feedback = (
                float(torch.autograd.grad(loss, z, retain_graph=True)[0].float().norm())
                for loss in losses
            )
            if g_distill > 0:
                self._seen["feedback_to_distill"].append(g_feedback / g_distill)

    def tell(self, site: Site) -> None:
        """Write the means over the round's steps into the party's log."""
        means = {name: fmean(values) for name, values in self._seen.items()}
        site.recorder.event("public steps", round=site.recorder.round, **means)


class Drift:
    """The ensemble from pass to pass, as the host sees it: a collapse begins with one class."""

    def __init__(self, records: int) -> None:
        self._classes = torch.full((records,), UNKNOWN)
        self._changed: list[float] = []

    def saw(self, rows: Rows, y: Tensor) -> None:
        """Compare the likeliest classes with those of the last time these records came up."""
        found, before = y.argmax(-1), self._classes[rows]
        known = before != UNKNOWN
        if known.any():
            self._changed.append(float((found != before)[known].float().mean()))
        self._classes[rows] = found

    def tell(self, site: Site) -> None:
        """Write down how much changed, and how many records have the commonest class now."""
        known = self._classes[self._classes != UNKNOWN]
        facts = {"commonest": float(known.bincount().max()) / len(known)}
        if self._changed:
            facts["changed"] = fmean(self._changed)
        self._changed.clear()
        site.recorder.event("ensemble", round=site.recorder.round, **facts)
