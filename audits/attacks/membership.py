"""Membership attacks: decide from the released model's answers if a record was trained on.

LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First
Principles. IEEE S&P 2022, arXiv 2112.03570. RMIA: Zarifzadeh, Liu, Shokri: Low-Cost High-Power
Membership Inference Attacks. ICML 2024, arXiv 2312.03262.

The threshold depends on the numbers of records alone: scores without information exceed this AUC
with probability LEVEL at most. A MARGIN allows for small differences in kind between members and
outsiders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from secure_fl.audits import audit_statistics
from secure_fl.audits.attacks.shadow_models import (
    Floats,
    Mask,
    Pool,
    Shadows,
    confidences,
    pool_of,
    train_shadows,
)
from secure_fl.audits.findings import AuditFinding, Prior, PublicView

LIRA, RMIA = "membership (LiRA)", "membership (RMIA)"
ABOUT = {
    LIRA: "Anybody who may query the released model and has a record decides if it was trained on, "
    "by comparing the answer with those of models trained with and without the record.",
    RMIA: "The same question with much less effort: a few comparison models show if the released "
    "model is surer of a record than it should be.",
}
SHADOWS, REFERENCES = 16, 4
MOST = 200  # members, and outsiders, among the candidates
FEWEST = 20  # of each; with fewer, an AUC shows nothing
PER_RECORD = 64  # with so many shadows, each record has its own variance
LEVEL, MARGIN = 0.01, 0.02
POINTS = 200  # of a ROC curve
RATES = (0.01, 0.001)
MEASURE = "AUC of members against outsiders"


def lira(view: PublicView, prior: Prior, shadows: Shadows) -> AuditFinding:
    """Run online LiRA on the released model."""
    return _attack(LIRA, view, prior, shadows, guess_lira)


def rmia(view: PublicView, prior: Prior, shadows: Shadows) -> AuditFinding:
    """Run RMIA on the released model, with few references."""
    return _attack(RMIA, view, prior, shadows, guess_rmia)


def _attack(
    name: str,
    view: PublicView,
    prior: Prior,
    shadows: Shadows,
    guess: Callable[[Floats, Shadows], Floats],
) -> AuditFinding:
    pool = pool_of(prior, MOST)
    records = prior.task.encode(pool.records, prior.tokenizer)
    scores = guess(confidences(prior.task, view.model, records), shadows)
    return judged(name, view, scores, pool.members, shadows=len(shadows.scores))


def shadows_for(prior: Prior, pool: Pool, models: int, purpose: str) -> Shadows:
    """Train shadows on halves of a pool; they serve every view of the same prior."""
    records = prior.task.encode(pool.records, prior.tokenizer)
    return train_shadows(
        prior, records, models, lambda site, model: confidences(site.task, model, records), purpose
    )


def guess_lira(target: Floats, shadows: Shadows) -> Floats:
    """Compute log p(φ | member) - log p(φ | not), each a Gaussian fitted to the shadows (Alg. 1).

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
    """Compute the share of candidates z with p(x|θ)/p(x) >= γ·p(z|θ)/p(z), γ = 1 (Eqs. 2, 3).

    p(x) is the mean over references, half of which were trained on x (Sec. 3.2, "online").
    Differs: z are the other candidates, not further records of the population. The order of the
    scores, and so the AUC, is that of p(x|θ)/p(x) with any z.
    """
    ratio = np.log(np.maximum(expit(target), 1e-300)) - np.log(
        np.maximum(expit(shadows.scores).mean(0), 1e-300)
    )
    beaten = np.searchsorted(np.sort(ratio), ratio, side="right") - 1  # without itself
    share: Floats = beaten / max(1, len(ratio) - 1)
    return share


def unsupported(prior: Prior) -> str:
    """Explain why membership cannot be tested here; empty if it can."""
    if prior.task.kind == "ranking":
        return "not tested: a reader's loss depends on the other titles that are shown"
    records = sum(len(truth.records) for truth in prior.truth.values())
    if min(records, len(prior.outsiders)) < FEWEST:
        return f"fewer than {FEWEST} members or outsiders: an AUC would show nothing"
    return ""


def judged(
    attack: str, view: PublicView, scores: Floats, members: Mask, **details: Any
) -> AuditFinding:
    """Score a finished guess by the truth, which is read nowhere else."""
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
    """Compute points of the ROC curve, and TPRs at small FPRs, as JSON values."""
    fpr, tpr, auc = audit_statistics.roc(scores, members)
    at = np.unique(np.linspace(0, len(fpr) - 1, min(POINTS, len(fpr))).round().astype(int))
    return {
        "auc": auc,
        "tpr": [asdict(audit_statistics.tpr_at(rate, scores, members)) for rate in RATES],
        "roc": {"fpr": fpr[at].tolist(), "tpr": tpr[at].tolist()},
    }
