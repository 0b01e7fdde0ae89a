"""Attacks on predictions on public records: members and labels of the private records.

After Shi, Ouyang, Wang: Unveiling Client Privacy Leakage from Public Dataset Usage in Federated
Distillation, arXiv 2502.08001. A copy is distilled from the predictions, and one from each shadow's
predictions. LiRA then compares the copies. Differs: shadows are trained on halves of the
candidates, as in online LiRA, and the label histogram is the mean prediction, without shadows. If a
record can have several labels, each label's probability is a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedid.algorithm import exchanges
from secure_fl.algorithms.public_distillation import PublicRecords
from secure_fl.audits.attacks import membership
from secure_fl.audits.attacks.label_counts import blind_guesses, distance, label_shares
from secure_fl.audits.attacks.shadow_models import (
    Floats,
    Pool,
    Shadows,
    confidences,
    pool_of,
    probabilities,
    site_of,
    train_shadows,
)
from secure_fl.audits.findings import AuditFinding, Prior, PublicView, Reading, View
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.local_training import fit
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Batch, Encoded, Task
from secure_fl.learning.tasks.token_table import TokenTable, WindowTable
from secure_fl.party.rounds import Round
from secure_fl.settings import ModelSettings

MEMBERSHIP, LABELS = "membership (predictions)", "label distribution (predictions)"
ABOUT = {
    MEMBERSHIP: "An attacker with nothing but predictions on public records decides which private "
    "records the predicting model was trained on.",
    LABELS: "An attacker with nothing but predictions on public records estimates how often each "
    "label occurs in private records, better than from public knowledge.",
}
SAVED = "total variation saved"  # measure of the label histogram
SHADOWS, MOST = 8, 100
CERTAIN = 0.95
DRAWS = 4000  # for the threshold of the label histogram


@dataclass(frozen=True, slots=True)
class Predictions:
    """The mean prediction of some parties on each public record, as one role could read it."""

    values: Floats  # records x classes
    owners: tuple[str, ...]
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPredictions:
    """The reason why an attack has no predictions to work on."""

    reason: str
    could_run: bool = False  # true: the role never saw predictions, so nothing leaked


def membership_of(
    view: PublicView | View,
    prior: Prior,
    public: Sequence[Example] | None = None,
    shadows: Shadows | None = None,
) -> AuditFinding:
    """Run LiRA on distilled copies. `public`: D⁰ of the run; None: the last half of the outsiders.

    Candidates that are not members come from the other outsiders. Shadows of an earlier call may be
    reused if party, prior and public records are the same (`shadows_for`).
    """
    public_records = _public_records(prior, public)
    read = _read(view, prior, public_records)
    if isinstance(read, NoPredictions):
        return _without_value(MEMBERSHIP, view, membership.MEASURE, 0.5, read)
    pool = candidates_of(prior, read.owners, public)
    if min(pool.members.sum(), (~pool.members).sum()) < membership.FEWEST:
        too_few = f"fewer than {membership.FEWEST} members or outsiders: an AUC would show nothing"
        return _without_value(MEMBERSHIP, view, membership.MEASURE, 0.5, NoPredictions(too_few))
    shadows = shadows or shadows_for(prior, public_records, pool.records)
    encoded = prior.task.encode(public_records, prior.tokenizer, labelled=False)
    copy = distilled(read.values, encoded, prior, "target")
    candidates = prior.task.encode(pool.records, prior.tokenizer)
    scores = membership.guess_lira(confidences(prior.task, copy, candidates), shadows)
    finding = membership.judged(
        MEMBERSHIP, PublicView(view.role, nn.Identity(), read.evidence), scores, pool.members,
        shadows=len(shadows.scores), public=len(public_records),
    )  # fmt: skip
    return finding.at(target=_target(view, read.owners))


def candidates_of(prior: Prior, owners: Sequence[str], public: Sequence[Example] | None) -> Pool:
    """Draw candidates from the owners' records, and from outsiders that do not serve as public."""
    truth = {name: records for name, records in prior.truth.items() if name in owners}
    return pool_of(replace(prior, truth=truth), MOST, spare=_spare(prior, public))


def shadows_for(
    prior: Prior, public: Sequence[Example], candidates: Sequence[Example], models: int = SHADOWS
) -> Shadows:
    """Distil a copy of each shadow from its predictions, and score the candidates by the copies."""
    pool = prior.task.encode(candidates, prior.tokenizer)
    encoded = prior.task.encode(public, prior.tokenizer, labelled=False)

    def scores_of_copy(site: Site, shadow: nn.Module) -> Floats:
        predictions = probabilities(site.task, shadow, encoded)
        return confidences(site.task, distilled(predictions, encoded, prior, site.name), pool)

    return train_shadows(prior, pool, models, scores_of_copy, MEMBERSHIP)


def distilled(predictions: Floats, public: Encoded, prior: Prior, purpose: str) -> nn.Module:
    """Train a model on the predictions alone."""
    assert isinstance(public, TokenTable | WindowTable)  # noqa: S101 - classifiers read tables
    targets = torch.from_numpy(np.clip(predictions, 0, None)).float()
    if prior.task.exclusive:
        targets = targets / targets.sum(-1, keepdim=True).clamp(min=1e-12)
    records = public.with_values(targets=targets)
    site = site_of(prior, records, MEMBERSHIP, "copy", purpose)
    model = prior.model().to(site.device)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        logits, targets = prior.task.forward(model, batch).float(), batch["targets"]
        if prior.task.exclusive:
            return -(targets * logits.log_softmax(-1)).sum(-1)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)

    with site.surroundings():
        fit(site, model, prior.algorithm.rounds * prior.algorithm.epochs, objective=loss)
    return model


def labels_of(
    view: PublicView | View, prior: Prior, public: Sequence[Example] | None = None
) -> AuditFinding:
    """Measure how much nearer the guessed label histogram is than public knowledge.

    The value is the total variation distance saved. Public knowledge is uniform labels or the
    outsiders' histogram, whichever is nearer. The threshold is the distance that a sample of as
    many records has from the outsiders' histogram by chance, in 95 % of cases. If private labels
    are drawn as public ones are, no guess can gain more.
    """
    public_records = _public_records(prior, public)
    read = _read(view, prior, public_records)
    if isinstance(read, NoPredictions):
        return _without_value(LABELS, view, SAVED, 0.0, read)
    records = [r for n, truth in prior.truth.items() if n in read.owners for r in truth.records]
    actual, outsiders = label_shares(records, prior), label_shares(prior.outsiders, prior)
    if actual is None or outsiders is None:
        missing = NoPredictions("no labelled outsiders, or no records")
        return _without_value(LABELS, view, SAVED, 0.0, missing)
    task = prior.task
    guess = guess_labels(read.values, task)
    guess_distance = distance(actual, guess, task)
    public_distance = min(distance(actual, p, task) for p in (outsiders, *blind_guesses(task)))
    threshold = max(_chance_distance(outsiders, len(records), prior), 1e-9)
    return AuditFinding(
        LABELS, view.role, _target(view, read.owners), SAVED, public_distance - guess_distance,
        0.0, threshold, len(records), None, read.evidence,
        {"labels": list(task.labels), "guess": guess.tolist(), "truth": actual.tolist(),
         "known": outsiders.tolist(), "distance": guess_distance, "public": len(public_records)},
    )  # fmt: skip


def _chance_distance(histogram: Floats, records: int, prior: Prior) -> float:
    """Compute the 95th percentile of the distance of a random sample from the outsiders' histogram.

    Several labels are drawn by record, because labels of a record depend on each other.
    """
    rng, task = prior.rng(LABELS), prior.task
    if task.exclusive:
        samples = rng.multinomial(records, histogram, size=DRAWS) / records
        return float(np.quantile(0.5 * np.abs(samples - histogram).sum(1), CERTAIN))
    pool = task.encode(prior.outsiders, prior.tokenizer).batch(range(len(prior.outsiders)))
    labels = pool["labels"].numpy()
    means = (labels[rng.integers(len(labels), size=records)].mean(0) for _ in range(DRAWS))
    return float(np.quantile([distance(mean, histogram, task) for mean in means], CERTAIN))


def guess_labels(predictions: Floats, task: Task) -> Floats:
    """Average the predictions to a histogram."""
    mean: Floats = np.clip(predictions, 0, None).mean(0)
    return mean / max(float(mean.sum()), 1e-12) if task.exclusive else mean


def _read(
    view: PublicView | View, prior: Prior, public: Sequence[Example]
) -> Predictions | NoPredictions:
    """Ask the released model, or collect the predictions of the sums that the role opened."""
    if prior.task.kind not in ("classification", "pair", "multilabel"):
        return NoPredictions("not applicable: this attack needs a task with labels for each text")
    if not public:
        return NoPredictions("there are no public records")
    if isinstance(view, View):
        return predictions_of(view.readings, prior, public)
    encoded = prior.task.encode(public, prior.tokenizer, labelled=False)
    values = probabilities(prior.task, view.model, encoded)
    return Predictions(values, tuple(prior.truth), view.evidence)


def predictions_of(
    readings: Sequence[Reading], prior: Prior, public: Sequence[Example]
) -> Predictions | NoPredictions:
    """Collect the last predictions on each public record, of the last round's owners.

    A sum holds weight · (prediction - 1/classes) (`algorithms.ensembles`). Under noise no weight is
    sent: it is the number of drawn parties, which the audit computes. A reading without a weight
    counts each of its parties once. Records that FedID's last round left out have an earlier
    round's predictions, and records without any have equal probabilities.
    """
    opened = [reading for reading in readings if "predictions" in reading.values]
    if not opened:
        return NoPredictions("no reading holds predictions", could_run=True)
    owners, classes = opened[-1].of, len(prior.task.labels)
    values = np.full((len(public), classes), 1 / classes)
    for number in sorted({reading.round for reading in opened if reading.of == owners}):
        sums = [r for r in opened if r.of == owners and r.round == number]
        rows = _rows_of_sums(prior, public, number)
        if [len(r.values["predictions"]) for r in sums] != [len(records) for records in rows]:
            why = f"round {number}'s predictions are not those of {len(public)} public records"
            return NoPredictions(why)
        for reading, records in zip(sums, rows, strict=True):
            weight = float(np.sum(reading.values.get("weight", len(owners))))
            if weight > 0:
                values[records] = reading.values["predictions"] / weight + 1 / classes
    evidence = tuple(dict.fromkeys(place for r in readings for place in r.evidence))
    return Predictions(values, owners, evidence)


def _rows_of_sums(prior: Prior, public: Sequence[Example], round: int) -> list[Any]:
    """List the records of each sum of a round: all of them, or FedID's batches.

    The batches follow from the run's seed, so a site with the public records draws them again.
    """
    if not isinstance(prior.algorithm, FedID):
        return [np.arange(len(public))]
    silo = Silo("host", public, public=public)
    spec = SiteSpec(prior.task, ModelSettings(), prior.training, prior.seed)
    site = Site(silo, spec, SiteContext(EventLog("host")))
    site.tokenizer = prior.tokenizer
    records = PublicRecords(site, prior.algorithm.public_batch)
    groups = exchanges(records, prior.algorithm, Round(round, prior.algorithm.rounds))
    return [torch.cat(tuple(batches)).numpy() for batches, _ in groups]


def _public_records(prior: Prior, public: Sequence[Example] | None) -> Sequence[Example]:
    """Return the run's public records, or the outsiders that serve as public records."""
    if public is not None:
        return public
    return prior.outsiders[len(prior.outsiders) - _spare(prior, None) :]


def _spare(prior: Prior, public: Sequence[Example] | None) -> int:
    """Count the last outsiders that serve as public records, and so cannot be candidates."""
    return 0 if public is not None else len(prior.outsiders) // 2


def _target(view: PublicView | View, owners: Sequence[str]) -> str:
    if isinstance(view, PublicView):
        return "the released model's predictions"
    return owners[0] if len(owners) == 1 else f"the sum of {len(owners)}"


def _without_value(
    attack: str, view: PublicView | View, measure: str, chance: float, missing: NoPredictions
) -> AuditFinding:
    """Make a finding without a value; only a role without predictions shows that nothing leaks."""
    return AuditFinding(
        attack, view.role, "predictions", measure, None, chance, 1.0, 0, note=missing.reason,
        could_run=missing.could_run,
    )  # fmt: skip
