"""Membership: whether a record was trained on, from how the released model answers for it.

LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First
Principles. IEEE S&P 2022, arXiv 2112.03570. RMIA: Zarifzadeh, Liu, Shokri: Low-Cost High-Power
Membership Inference Attacks. ICML 2024, arXiv 2312.03262.

Success is fixed beforehand by the numbers of records alone: an AUC which scores without any
information pass with probability LEVEL at most, plus a MARGIN for small differences of kind
between members and outsiders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from torch import nn

from secure_fl.audits import audit_statistics
from secure_fl.audits.attacks.shadow_models import (
    Floats,
    Mask,
    Pool,
    Progress,
    Shadows,
    confidences,
    pool_of,
    train_shadows,
)
from secure_fl.audits.findings import AuditFinding, Prior, PublicView

LIRA, RMIA = "membership (LiRA)", "membership (RMIA)"
ABOUT = {
    LIRA: "Somebody who may query the released model, and holds a record, tells whether it was "
    "trained on, by comparing the answer with those of models trained with and without it.",
    RMIA: "The same question with much less effort: a few comparison models are enough to see "
    "whether the released model is surer of a record than it should be.",
}
SHADOWS, REFERENCES = 16, 4
MOST = 200  # members, and outsiders, that are looked at
FEWEST = 20  # of each, below which no AUC says anything
PER_RECORD = 64  # shadows from which each record has a variance of its own
LEVEL, MARGIN = 0.01, 0.02
POINTS = 200  # of a ROC curve
RATES = (0.01, 0.001)
MEASURE = "AUC of members against outsiders"


def lira(
    view: PublicView,
    prior: Prior,
    *,
    models: int = SHADOWS,
    most: int = MOST,
    shadows: Shadows | None = None,
    progress: Progress | None = None,
) -> AuditFinding:
    """Online LiRA on the released model; `shadows` that were made before may be used again."""
    if reason := unsupported(prior):
        return nothing(LIRA, view, reason)
    pool = pool_of(prior, most)
    made = shadows or shadows_for(prior, pool, models, LIRA, progress=progress)
    scores = guess_lira(observed(view.model, pool, prior), made)
    return judged(LIRA, view, scores, pool.members, shadows=len(made.scores))


def rmia(
    view: PublicView,
    prior: Prior,
    *,
    models: int = REFERENCES,
    most: int = MOST,
    shadows: Shadows | None = None,
    progress: Progress | None = None,
) -> AuditFinding:
    """RMIA on the released model, with few references."""
    if reason := unsupported(prior):
        return nothing(RMIA, view, reason)
    pool = pool_of(prior, most)
    made = shadows or shadows_for(prior, pool, models, RMIA, progress=progress)
    scores = guess_rmia(observed(view.model, pool, prior), made)
    return judged(RMIA, view, scores, pool.members, shadows=len(made.scores))


def shadows_for(
    prior: Prior, pool: Pool, models: int, purpose: str, *, progress: Progress | None = None
) -> Shadows:
    """Shadows on halves of a pool. They depend on the prior only: one set serves every view."""
    records = prior.task.encode(pool.records, prior.tokenizer)
    return train_shadows(
        prior,
        records,
        models,
        lambda site, model: confidences(site.task, model, records),
        purpose,
        progress=progress,
    )


def observed(model: nn.Module, pool: Pool, prior: Prior) -> Floats:
    """The released model's confidence in each candidate."""
    return confidences(prior.task, model, prior.task.encode(pool.records, prior.tokenizer))


def guess_lira(target: Floats, shadows: Shadows) -> Floats:
    """Log p(φ | trained on) - log p(φ | not), each a Gaussian fitted to the shadows (Alg. 1).

    With few shadows all records share the variances, as the paper does below 64 (Sec. VI-C).
    """
    φ, inside = shadows.scores, shadows.inside
    densities = []
    for side in (inside, ~inside):
        count = side.sum(0)
        mean = (φ * side).sum(0) / count
        squares = np.square(φ - mean) * side
        if len(φ) >= PER_RECORD:
            variance = squares.sum(0) / (count - 1)
        else:
            variance = squares.sum() / max(1, int((count - 1).sum()))
        variance = np.maximum(variance, 1e-6)
        densities.append(-0.5 * np.square(target - mean) / variance - 0.5 * np.log(variance))
    score: Floats = densities[0] - densities[1]
    return score


def guess_rmia(target: Floats, shadows: Shadows) -> Floats:
    """The share of other candidates z with p(x|θ)/p(x) >= γ·p(z|θ)/p(z), γ = 1 (Eqs. 2, 3).

    p(x) is the mean over references, half of which were trained on x (Sec. 3.2, "online").
    Differs: z are the other candidates, not further records of the population. The order of the
    scores, and so the AUC, is that of p(x|θ)/p(x) with any z.
    """
    ratio = np.log(np.maximum(expit(target), 1e-300)) - np.log(
        np.maximum(expit(shadows.scores).mean(0), 1e-300)
    )
    beaten = np.searchsorted(np.sort(ratio), ratio, side="right") - 1  # all but itself
    share: Floats = beaten / max(1, len(ratio) - 1)
    return share


def unsupported(prior: Prior) -> str:
    """Why membership cannot be tested here; empty if it can."""
    if prior.task.kind == "ranking":
        return "not tested: a reader's loss depends on the titles that are shown beside"
    records = sum(len(truth.records) for truth in prior.truth.values())
    if min(records, len(prior.outsiders)) < FEWEST:
        return f"fewer than {FEWEST} members or outsiders: no AUC would say anything"
    return ""


def nothing(attack: str, view: PublicView, reason: str) -> AuditFinding:
    """A finding that there was nothing to work on."""
    return AuditFinding(
        attack, view.role, "the released model", MEASURE, None, 0.5, 1.0, 0,
        evidence=view.evidence, note=reason,
    )  # fmt: skip


def judged(
    attack: str, view: PublicView, scores: Floats, members: Mask, **details: Any
) -> AuditFinding:
    """Score a guess that is fixed by the truth: the one place where that is read."""
    inside, outside = int(members.sum()), int((~members).sum())
    return AuditFinding(
        attack,
        view.role,
        "the released model",
        MEASURE,
        audit_statistics.roc(scores, members)[2],
        0.5,
        audit_statistics.auc_threshold(inside, outside, level=LEVEL, margin=MARGIN),
        inside + outside,
        audit_statistics.auc_interval(scores, members),
        view.evidence,
        {"members": inside, "outsiders": outside, **curve(scores, members), **details},
    )


def curve(scores: ArrayLike, members: ArrayLike) -> dict[str, Any]:
    """Points of the ROC curve, and the TPR where few outsiders are accused, as JSON values."""
    fpr, tpr, auc = audit_statistics.roc(scores, members)
    at = np.unique(np.linspace(0, len(fpr) - 1, min(POINTS, len(fpr))).round().astype(int))
    return {
        "auc": auc,
        "tpr": [_plain(audit_statistics.tpr_at(rate, scores, members)) for rate in RATES],
        "roc": {"fpr": fpr[at].tolist(), "tpr": tpr[at].tolist()},
    }


def _plain(rate: audit_statistics.Rate) -> dict[str, Any]:
    found = rate.as_json()
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}
