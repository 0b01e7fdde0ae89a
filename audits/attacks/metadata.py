"""What sizes and times on the wire tell the coordinator about a hospital's records.

Nothing here opens a byte. Hospitals are ranked by how many bytes they send, or by how long they
take to answer, and the ranking is compared with how many records they hold. A probe federation of
hospitals of many sizes is needed: three hospitals can be in any order by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from secure_fl.audits.findings import AuditFinding, CoordinatorView, Prior
from secure_fl.capture.coordinator_view import CapturedFrame

SIZES, TIMING = "sizes", "timing"
ABOUT_SIZES = (
    "Ranks hospitals by the bytes they send. Success: the ranking is that of their record counts."
)
ABOUT_TIMING = (
    "Ranks hospitals by how long each takes to answer. Success: the ranking is that of their "
    "record counts. Nothing hides this: a coordinator always sees who answers when."
)
THRESHOLD = 0.5  # |Kendall's tau|: three of four pairs of hospitals in order
FEWEST = 6  # hospitals; in any order, fewer come out ranked too often
NULLS = 500


def sizes(view: CoordinatorView, prior: Prior) -> AuditFinding:
    """Rank hospitals by the bytes they sent in all."""
    sent: dict[str, float] = {}
    for frame in view.frames:
        if not frame.sent:
            sent[frame.party] = sent.get(frame.party, 0.0) + frame.size
    return _ranked(SIZES, view, prior, sent)


def timing(view: CoordinatorView, prior: Prior) -> AuditFinding:
    """Rank hospitals by how long they took over all their answers."""
    spent: dict[str, float] = {}
    before: CapturedFrame | None = None
    for frame in view.frames:
        if before is not None and not frame.sent:  # whatever it says: training came before it
            spent[frame.party] = spent.get(frame.party, 0.0) + frame.line.at - before.line.at
        before = frame
    return _ranked(TIMING, view, prior, spent)


def null(finding: AuditFinding, prior: Prior) -> AuditFinding:
    """The same with record counts dealt out at random: the mean of many deals."""
    counts = np.array([len(truth.records) for truth in prior.truth.values()], float)
    rng = prior.rng("null", finding.attack)
    told = [abs(tau(counts, rng.permutation(counts))) for _ in range(NULLS)]
    return finding.at(value=float(np.mean(told)), evidence=(), details={"deals": NULLS})


def _ranked(
    attack: str, view: CoordinatorView, prior: Prior, told: Mapping[str, float]
) -> AuditFinding:
    names = sorted(set(told) & set(prior.truth))
    blank = AuditFinding(
        attack, view.role, "record counts", "|tau|", None, 0.0, THRESHOLD, len(names)
    )
    if len(names) < FEWEST:
        return blank.at(note=f"{len(names)} hospitals are too few to be ranked by chance or not")
    counts = np.array([len(prior.truth[name].records) for name in names], float)
    return blank.at(value=abs(tau(counts, np.array([told[name] for name in names]))))


def tau(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau, where ties tell nothing: (pairs in order - pairs in reverse) / pairs."""
    order = [np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in combinations(range(len(x)), 2)]
    return float(np.mean(order)) if order else 0.0
