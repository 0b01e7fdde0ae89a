"""Shadow models: models trained with and without each record, for comparison.

A shadow imitates the released model: the same initial weights, the run's own training settings and
as many passes or steps, on a random half of a pool of candidates. It differs in that it is trained
in one place, without averaging and noise, and on fewer records than a federation has. So the
attacker knows less about the release than it could.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.audits.findings import Prior
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.local_training import fit
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Batch, Encoded, Task
from secure_fl.learning.tasks.task import device_of, inference
from secure_fl.party.rounds import Round
from secure_fl.settings import ModelSettings, TrainingSettings

AT_ONCE = 64  # records of a batch

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Measure: TypeAlias = Callable[[Site, nn.Module], Floats]  # one value for each record of the pool


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates in random order, and (for scoring only) the members among them."""

    records: tuple[Example, ...]
    members: Mask


@dataclass(frozen=True, slots=True)
class Shadows:
    """The score of each shadow for each record of the pool, and the records it was trained on."""

    scores: Floats  # shadows x records
    inside: Mask  # shadows x records


def pool_of(prior: Prior, most: int, *, spare: int = 0) -> Pool:
    """Draw as many members as outsiders, at most `most` each, without the last `spare` outsiders.

    With more of one kind than of the other, shadows would learn the kind of a record.
    """
    rng = prior.rng("pool")
    inside = [record for name in sorted(prior.truth) for record in prior.truth[name].records]
    outside = list(prior.outsiders[: len(prior.outsiders) - spare])
    count = min(len(inside), len(outside), most)
    chosen = [
        *(inside[i] for i in rng.permutation(len(inside))[:count]),
        *(outside[i] for i in rng.permutation(len(outside))[:count]),
    ]
    order = rng.permutation(len(chosen))
    return Pool(tuple(chosen[i] for i in order), order < count)


def halves(models: int, records: int, rng: np.random.Generator) -> Mask:
    """Assign records to shadows: every record to exactly half of them (rounded down)."""
    places = np.stack([rng.permutation(models) for _ in range(records)], axis=1)
    inside: Mask = places < models // 2
    return inside


def train_shadows(
    prior: Prior, pool: Encoded, models: int, measure: Measure, *purpose: object
) -> Shadows:
    """Train shadows one after the other; keep only what `measure` returns for each."""
    inside = halves(models, len(pool), prior.rng(*purpose, "halves"))
    scores = []
    for number, mask in enumerate(inside):
        site = site_of(prior, pool.subset(np.flatnonzero(mask).tolist()), *purpose, number)
        model = imitate(prior, site)
        with site.surroundings():
            scores.append(measure(site, model))
    return Shadows(np.stack(scores), inside)


def site_of(prior: Prior, records: Encoded, *purpose: object) -> Site:
    """Make a site for training, with its own randomness for this purpose and no protection."""
    name = "/".join(map(str, purpose))
    seed = int(prior.rng(*purpose, "site").integers(2**53))
    return made_site(prior, prior.training.model_copy(update={"dp": None}), records, name, seed)


def made_site(
    prior: Prior, training: TrainingSettings, records: Encoded, name: str, seed: int
) -> Site:
    """Make a site for records that are already tokenised, with the public model and task."""
    known = (prior.outsiders, *(truth.records for truth in prior.truth.values()))
    silo = Silo(name, next((r[:1] for r in known if r), ()))  # a stand-in
    spec = SiteSpec(prior.task, ModelSettings(), training, seed)
    site = Site(silo, spec, SiteContext(EventLog(name)))
    site.balances = prior.algorithm.balances and prior.training.dp is None  # as in the run
    site.tokenizer, site.train = prior.tokenizer, site.weighed(records)
    return site


def imitate(prior: Prior, site: Site) -> nn.Module:
    """Train the initial model as the run does: by its own program, or by as many local passes."""
    if prior.imitation is not None:
        return prior.imitation(site)
    model = prior.model().to(site.device)
    with site.surroundings():
        rounds = prior.algorithm.rounds
        for number in range(1, rounds + 1):
            fit(site, model, prior.algorithm.epochs, Round(number, rounds))
    return model


def confidences(task: Task, model: nn.Module, records: Encoded) -> Floats:
    """Compute a model's confidence in each record's label, on a nearly Gaussian scale.

    It is log p/(1 - p) of the label's probability p (Carlini et al., arXiv 2112.03570, Sec. IV-C).
    Where a record has several decisions or a score, p is e to minus its loss.
    """
    return _by_batch(task, model, records, lambda z, batch: _logits(task, z.double(), batch))


def losses(task: Task, model: nn.Module, records: Encoded) -> Floats:
    """Compute a model's loss for each record."""
    return _by_batch(
        task, model, records, lambda z, batch: task.loss(z, batch, reduction="none").double()
    )


def probabilities(task: Task, model: nn.Module, records: Encoded) -> Floats:
    """Compute a classifier's probabilities for each record."""

    def measure(z: Tensor, batch: Batch) -> Tensor:
        return z.double().softmax(-1) if task.exclusive else z.double().sigmoid()

    return _by_batch(task, model, records, measure)


def _by_batch(
    task: Task, model: nn.Module, records: Encoded, measure: Callable[[Tensor, Batch], Tensor]
) -> Floats:
    with inference(model):
        parts = [
            measure(task.forward(model, batch), batch).cpu()
            for batch in records.batches(AT_ONCE, device=device_of(model))
        ]
    values: Floats = torch.cat(parts).numpy()
    return values


def _logits(task: Task, z: Tensor, batch: Batch) -> Tensor:
    if task.kind in ("classification", "pair"):
        label = batch["labels"].unsqueeze(-1)
        others = z.scatter(-1, label, -torch.inf).logsumexp(-1)
        return z.gather(-1, label).squeeze(-1) - others
    loss = task.loss(z, batch, reduction="none").double().clamp(min=1e-12)
    return -loss - torch.log(-torch.expm1(-loss))
