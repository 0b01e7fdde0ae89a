"""Attacks on predictions on public records: members and labels of the private records.

After Shi, Ouyang, Wang: Unveiling Client Privacy Leakage from Public Dataset Usage in Federated
Distillation, arXiv 2502.08001. A copy is distilled from the predictions, and one from each
shadow's; LiRA then compares copies. Differs: shadows are trained on halves of the candidates, as in
online LiRA; the label histogram is the mean prediction, without shadows. Where a record can have
several labels, each label's probability is a prediction of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
SHADOWS, MOST = 8, 100
CERTAIN = 0.95
UNREAD = "no reading holds predictions"
DRAWS = 4000  # for the threshold of the label histogram

Shown = tuple[Floats, tuple[str, ...], str, tuple[str, ...]]  # predictions, owners, role, evidence


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
    asked, _ = _asked(prior, public)
    shown = _shown(view, prior, asked)
    if isinstance(shown, str):
        return _nothing(MEMBERSHIP, view, membership.MEASURE, 0.5, shown)
    y, of, _, evidence = shown
    pool = candidates_of(prior, of, public)
    if min(pool.members.sum(), (~pool.members).sum()) < membership.FEWEST:
        why = f"fewer than {membership.FEWEST} members or outsiders: an AUC would show nothing"
        return _nothing(MEMBERSHIP, view, membership.MEASURE, 0.5, why)
    made = shadows or shadows_for(prior, asked, pool.records)
    scores = guess_members(y, asked, pool.records, prior, made)
    view_of_all = PublicView(view.role, nn.Identity(), evidence)
    finding = membership.judged(
        MEMBERSHIP, view_of_all, scores, pool.members, shadows=len(made.scores), public=len(asked)
    )
    return finding.at(target=_target(view, of))


def candidates_of(prior: Prior, of: Sequence[str], public: Sequence[Example] | None) -> Pool:
    """Choose candidates: records of these parties, and of outsiders that are not public."""
    truth = {name: known for name, known in prior.truth.items() if name in of}
    return pool_of(replace(prior, truth=truth), MOST, spare=_asked(prior, public)[1])


def shadows_for(
    prior: Prior, public: Sequence[Example], candidates: Sequence[Example], models: int = SHADOWS
) -> Shadows:
    """Distil a copy of each shadow from its answers, and score the candidates by the copies."""
    pool = prior.task.encode(candidates, prior.tokenizer)
    asked = prior.task.encode(public, prior.tokenizer, labelled=False)

    def copied(site: Site, model: nn.Module) -> Floats:
        answers = probabilities(site.task, model, asked)
        return confidences(site.task, distilled(answers, asked, prior, site.name), pool)

    return train_shadows(prior, pool, models, copied, MEMBERSHIP)


def guess_members(
    y: Floats,
    public: Sequence[Example],
    candidates: Sequence[Example],
    prior: Prior,
    shadows: Shadows,
) -> Floats:
    """Score each candidate's membership, from predictions on public records alone."""
    pool = prior.task.encode(candidates, prior.tokenizer)
    asked = prior.task.encode(public, prior.tokenizer, labelled=False)
    copy = distilled(y, asked, prior, "target")
    return membership.guess_lira(confidences(prior.task, copy, pool), shadows)


def distilled(y: Floats, public: Encoded, prior: Prior, purpose: str) -> nn.Module:
    """Train a model on the predictions alone."""
    assert isinstance(public, TokenTable | WindowTable)  # noqa: S101 - classifiers read tables
    targets = torch.from_numpy(np.clip(y, 0, None)).float()
    if prior.task.exclusive:
        targets = targets / targets.sum(-1, keepdim=True).clamp(min=1e-12)
    records = public.with_values(targets=targets)
    site = site_of(prior, records, MEMBERSHIP, "copy", purpose)
    model = prior.model().to(site.device)

    def towards(model: nn.Module, batch: Batch) -> torch.Tensor:
        z, y = prior.task.forward(model, batch).float(), batch["targets"]
        if prior.task.exclusive:
            return -(y * z.log_softmax(-1)).sum(-1)
        return F.binary_cross_entropy_with_logits(z, y, reduction="none").sum(-1)

    with site.surroundings():
        fit(site, model, prior.algorithm.rounds * prior.algorithm.epochs, objective=towards)
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
    measure, task = "total variation saved", prior.task
    asked, _ = _asked(prior, public)
    shown = _shown(view, prior, asked)
    if isinstance(shown, str):
        return _nothing(LABELS, view, measure, 0.0, shown)
    y, of, role, evidence = shown
    guess = guess_labels(y, task)
    known = label_shares(prior.outsiders, prior)
    records = [r for name, truth in prior.truth.items() if name in of for r in truth.records]
    if known is None or (actual := label_shares(records, prior)) is None:
        return _nothing(LABELS, view, measure, 0.0, "no labelled outsiders, or no records")
    ignorant = min(distance(actual, other, task) for other in (known, *blind_guesses(task)))
    off = distance(actual, guess, task)
    return AuditFinding(
        LABELS, role, _target(view, of), measure, ignorant - off,
        0.0, max(_by_chance(known, len(records), prior), 1e-9), len(records), None, evidence,
        {"labels": list(task.labels), "guess": guess.tolist(), "truth": actual.tolist(),
         "known": known.tolist(), "distance": off, "public": len(asked)},
    )  # fmt: skip


def _by_chance(known: Floats, records: int, prior: Prior) -> float:
    """Compute the distance from the outsiders' histogram that so many drawn records exceed in 5 %.

    Several labels are drawn by record, because labels of a record depend on each other.
    """
    rng, task = prior.rng(LABELS), prior.task
    if task.exclusive:
        drawn = rng.multinomial(records, known, size=DRAWS) / records
        return float(np.quantile(0.5 * np.abs(drawn - known).sum(1), CERTAIN))
    pool = task.encode(prior.outsiders, prior.tokenizer).batch(range(len(prior.outsiders)))
    truth = pool["labels"].numpy()
    means = (truth[rng.integers(len(truth), size=records)].mean(0) for _ in range(DRAWS))
    return float(np.quantile([distance(mean, known, task) for mean in means], CERTAIN))


def guess_labels(y: Floats, task: Task) -> Floats:
    """Average the predictions to a histogram."""
    mean: Floats = np.clip(y, 0, None).mean(0)
    return mean / max(float(mean.sum()), 1e-12) if task.exclusive else mean


def predictions_of(
    readings: Sequence[Reading], prior: Prior, public: Sequence[Example]
) -> tuple[Floats, tuple[str, ...]] | str:
    """Collect the last round's predictions on all public records, and their owners, or a reason.

    A sum holds weight · (prediction - 1/classes) (`algorithms.ensembles`). Under noise no weight is
    sent: it is the number of drawn parties, which the audit computes. A reading without a weight
    counts each of its parties once. Records that FedID's last round left out have an earlier
    round's predictions.
    """
    carrying = [r for r in readings if "predictions" in r.values]
    if not carrying:
        return UNREAD
    of = carrying[-1].of
    C = len(prior.task.labels)
    y = np.full((len(public), C), np.nan)
    for number in sorted({r.round for r in carrying if r.of == of}):
        parts = [r for r in carrying if r.of == of and r.round == number]
        rows = _rows(prior, public, number)
        if [len(r.values["predictions"]) for r in parts] != [len(some) for some in rows]:
            return f"round {number}'s predictions are not those of {len(public)} public records"
        for reading, some in zip(parts, rows, strict=True):
            weight = float(np.sum(reading.values.get("weight", len(reading.of))))
            if weight > 0:
                y[some] = np.asarray(reading.values["predictions"]) / weight + 1 / C
    if np.isnan(y).any():
        y = np.where(np.isnan(y), 1 / C, y)  # never predicted
    return y, of


def _rows(prior: Prior, public: Sequence[Example], round: int) -> list[Any]:
    """List the records of each sum of a round: all of them, or FedID's batches."""
    if not isinstance(prior.algorithm, FedID):
        return [np.arange(len(public))]
    silo = Silo("host", public, public=public)
    site = Site(
        silo,
        SiteSpec(prior.task, ModelSettings(), prior.training, prior.seed),
        SiteContext(EventLog("host")),
    )
    site.tokenizer = prior.tokenizer
    records = PublicRecords(site, prior.algorithm.public_batch)
    groups = exchanges(records, prior.algorithm, Round(round, prior.algorithm.rounds))
    return [torch.cat(tuple(batches)).numpy() for batches, _ in groups]


def _shown(view: PublicView | View, prior: Prior, public: Sequence[Example]) -> Shown | str:
    if prior.task.kind not in ("classification", "pair", "multilabel"):
        return "not tested: predictions are attacked label by label"
    if not public:
        return "there are no public records"
    if isinstance(view, PublicView):
        asked = prior.task.encode(public, prior.tokenizer, labelled=False)
        y = probabilities(prior.task, view.model, asked)
        return y, tuple(prior.truth), view.role, view.evidence
    opened = predictions_of(view.readings, prior, public)
    if isinstance(opened, str):
        return opened
    evidence = tuple(dict.fromkeys(e for r in view.readings for e in r.evidence))
    return *opened, view.role, evidence


def _asked(prior: Prior, public: Sequence[Example] | None) -> tuple[Sequence[Example], int]:
    """Choose the public records, and count those that are the last outsiders."""
    if public is not None:
        return public, 0
    half = len(prior.outsiders) // 2
    return prior.outsiders[len(prior.outsiders) - half :], half


def _target(view: PublicView | View, of: Sequence[str]) -> str:
    if isinstance(view, PublicView):
        return "the released model's predictions"
    return of[0] if len(of) == 1 else f"the sum of {len(of)}"


def _nothing(
    attack: str, view: PublicView | View, measure: str, chance: float, reason: str
) -> AuditFinding:
    """Make a finding without a value; only a role without predictions shows that nothing leaks."""
    return AuditFinding(
        attack, view.role, "predictions", measure, None, chance, 1.0, 0, note=reason,
        could_run=reason == UNREAD,
    )  # fmt: skip
