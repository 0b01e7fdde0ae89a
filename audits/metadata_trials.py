"""Trials of the sizes and times on the wire, on a probe federation of eight hospitals.

No byte is opened. Hospitals are ranked by how many bytes they send, or by how long they take to
answer, and the ranking is compared with their record counts. Three hospitals can be in any order by
chance, so the probe has hospitals of many sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.registry import entry_of
from secure_fl.audits import roles
from secure_fl.audits.audited_run import prior_of, recorded
from secure_fl.audits.findings import AuditFinding, AuditTrial, CoordinatorView, Prior
from secure_fl.capture.recording import CapturedFrame
from secure_fl.config.data import CorpusData
from secure_fl.config.load import Settings, silos
from secure_fl.errors import SecureFLError
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings

SIZES, TIMING = "sizes", "timing"
ABOUT = {
    SIZES: "Ranks hospitals by the bytes they send. Success: the ranking is that of their record "
    "counts.",
    TIMING: "Ranks hospitals by how long each takes to answer. Success: the ranking is that of "
    "their record counts. Nothing hides this: a coordinator always sees who answers when.",
}
PROBE, PROBE_CONTROL = "probe", "probe-control"
PROBE_SIZES = (8, 12, 18, 27, 40, 60, 90, 135)  # records of each hospital
PROBE_LENGTH = 48  # tokens
THRESHOLD = 0.5  # |Kendall's tau|: three of four pairs in order; 11 % of random orders reach it
FEWEST = 6  # hospitals; in any order, fewer come out ranked too often
NULLS = 500


def metadata_trials(settings: Settings, place: Path) -> tuple[AuditTrial, ...]:
    """Rank the probe's hospitals by sizes and by times."""
    leaky, probe = probe_settings(settings, ranks=True), probe_settings(settings)
    control = roles.coordinator(recorded(leaky, place / PROBE_CONTROL, until=1), {}, 0)
    prior = prior_of(leaky, tuple(silos(leaky)))
    deployed, reason = CoordinatorView(roles.COORDINATOR), ""
    try:
        deployed = roles.coordinator(recorded(probe, place / PROBE, until=1), {}, 0)
    except SecureFLError as error:  # for example, tiers that are too small for sums
        reason = f"eight hospitals of many sizes cannot train with these settings: {error.what}"
    trials = []
    for attack in (sizes, timing):
        known, measured = attack(control, prior), attack(deployed, prior)
        if measured.value is None:  # too few hospitals to rank: no protection is to be credited
            trials.append(AuditTrial(None, measured, None, reason or measured.note))
        else:
            trials.append(AuditTrial(known, measured, null(known)))
    return tuple(trials)


def probe_settings(settings: Settings, *, ranks: bool = False) -> Settings:
    """Put hospitals of many sizes, with built-in notes, under a run's settings.

    `ranks`: train as FedKD is printed. What a hospital's factors cost to send then depends on its
    ranks, so sizes tell hospitals apart. This is clearest after plain gradient steps, for AdamW
    makes the ranks of all much alike.
    """
    algorithm = FedKD(rounds=1, factors="per_party") if ranks else settings.algorithm
    host = entry_of(algorithm).has_host
    data = CorpusData(
        corpus="ade",
        parties=len(PROBE_SIZES),
        size=PROBE_SIZES,
        public=16 if host else 0,
        labelled=8 if host else 0,
    )
    protection = ProtectionSettings(mode=settings.protection.mode, bits=settings.protection.bits)
    return Settings(
        run=settings.run.model_copy(update={"record": True, "folder": None}),
        task=TaskSettings(max_length=PROBE_LENGTH),
        data=data,
        model=ModelSettings(layers=settings.model.layers and max(2, settings.model.layers)),
        training=TrainingSettings(
            optimizer="sgd" if ranks else "adamw",
            learning_rate=0.1 if ranks else 1e-3,
            batch_size=8,
            device="cpu",
        ),
        protection=protection,
        algorithm=algorithm,
    )


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
        if before is not None and not frame.sent:  # any answer: training came before it
            spent[frame.party] = spent.get(frame.party, 0.0) + frame.line.at - before.line.at
        before = frame
    return _ranked(TIMING, view, prior, spent)


def null(finding: AuditFinding) -> AuditFinding:
    """Deal the record counts out at random: the mean over many deals."""
    return finding.at(value=finding.chance, evidence=(), details={"deals": NULLS})


def _guessed(attack: str, prior: Prior, counts: np.ndarray) -> float:
    rng = prior.rng("null", attack)
    return float(np.mean([abs(tau(counts, rng.permutation(counts))) for _ in range(NULLS)]))


def tau(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Kendall's tau with ties as 0: (pairs in order - pairs in reverse) / pairs."""
    order = [np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in combinations(range(len(x)), 2)]
    return float(np.mean(order)) if order else 0.0


def _ranked(
    attack: str, view: CoordinatorView, prior: Prior, measured: Mapping[str, float]
) -> AuditFinding:
    names = sorted(set(measured) & set(prior.truth))
    blank = AuditFinding(
        attack, view.role, "record counts", "|tau|", None, 0.0, THRESHOLD, len(names)
    )
    if len(names) < FEWEST:
        return blank.at(note=f"{len(names)} hospitals are too few to distinguish rank from chance")
    counts = np.array([len(prior.truth[name].records) for name in names], float)
    value = abs(tau(counts, np.array([measured[name] for name in names])))
    return blank.at(value=value, chance=_guessed(attack, prior, counts))
