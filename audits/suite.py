"""The attacks on views, and their runs through the control gate.

The control is the view of an unprotected run's coordinator, which could read everything. The null
has the same numbers in random places. Both are the same for all roles, so each attack runs on them
once. Equal views of several roles are attacked once, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from secure_fl.audits.attacks import (
    gradient_matching,
    label_counts,
    reading,
    span_check,
    token_bag,
    whole_texts,
)
from secure_fl.audits.attacks.reading import Sent
from secure_fl.audits.attacks.simulated_training import best_case
from secure_fl.audits.findings import AuditFinding, AuditTrial, CoordinatorView, Prior, View

Attack: TypeAlias = Callable[[View, Prior], AuditFinding]


@dataclass(frozen=True, slots=True)
class ReconstructionAttack:
    """An attack on whatever a role could read."""

    attack: Attack
    about: str
    slow: bool = False  # skipped by a quick audit
    at_best: int = 0  # records of one plain gradient step on which it is known to work


RECONSTRUCTION: Mapping[str, ReconstructionAttack] = {
    token_bag.NAME: ReconstructionAttack(token_bag.token_bag, token_bag.ABOUT),
    span_check.NAME: ReconstructionAttack(span_check.span_check, span_check.ABOUT, at_best=1),
    gradient_matching.NAME: ReconstructionAttack(
        gradient_matching.gradient_matching, gradient_matching.ABOUT, slow=True, at_best=1
    ),
    whole_texts.NAME: ReconstructionAttack(
        whole_texts.whole_texts, whole_texts.ABOUT, slow=True, at_best=1
    ),
    label_counts.NAME: ReconstructionAttack(
        label_counts.label_counts, label_counts.ABOUT, slow=True, at_best=32
    ),
}


@dataclass(frozen=True, slots=True)
class AttackEvidence:
    """The input of attacks: every role of the deployed run, the control, and the null."""

    deployed: Sequence[View]
    sent: Sent  # in the deployed run
    control: CoordinatorView
    sent_in_control: Sent
    null: CoordinatorView

    @property
    def nothing(self) -> str:
        """The reason why attacks have nothing to work on; empty: hospitals sent something."""
        sent = any(self.sent.values())
        return "" if sent else "nothing was summed or shared: there is nothing to hide"


def reading_trials(evidence: AttackEvidence, prior: Prior) -> tuple[AuditTrial, ...]:
    """Try to read a single hospital's update, a sum, and a number of records."""
    trials = []
    for attack in (reading.reading_one, reading.reading_sum, reading.reading_counts):
        control = attack(evidence.control, prior, evidence.sent_in_control)
        null = attack(evidence.null, prior, evidence.sent_in_control)
        for view in evidence.deployed:
            deployed = attack(view, prior, evidence.sent)
            trials.append(_trial(evidence, control, deployed, null))
    return tuple(trials)


def _trial(
    evidence: AttackEvidence,
    control: AuditFinding,
    deployed: AuditFinding,
    null: AuditFinding,
    reason: str = "",
) -> AuditTrial:
    """Make a trial; where nothing was sent, no protection is to be credited."""
    if evidence.nothing:
        return AuditTrial(None, deployed, None, evidence.nothing)
    return AuditTrial(control, deployed, null, reason)


def reconstruction_trials(
    attack: ReconstructionAttack, evidence: AttackEvidence, prior: Prior
) -> tuple[AuditTrial, ...]:
    """Run one attack on every role."""
    control, null = attack.attack(evidence.control, prior), attack.attack(evidence.null, prior)
    reason = "" if control.succeeded or evidence.nothing else _at_best(attack, prior)
    known: dict[str, AuditFinding] = {}
    trials = []
    for view in evidence.deployed:
        same = _digest(view)
        if same not in known:
            known[same] = attack.attack(view, prior)
        trials.append(_trial(evidence, control, known[same].at(role=view.role), null, reason))
    return tuple(trials)


def _at_best(attack: ReconstructionAttack, prior: Prior) -> str:
    """Measure on one plain step an attack that fails on the run's own training."""
    if not attack.at_best or not prior.outsiders:
        return ""
    finding = attack.attack(*best_case(prior, attack.at_best))
    if finding.value is None:
        return ""
    return (
        "it does not succeed on this run's training unprotected either; on one plain gradient "
        f"step over {attack.at_best} record{'s' if attack.at_best > 1 else ''}, {finding.measure} "
        f"is {finding.value:.2f}"
    )


def _digest(view: View) -> str:
    """Digest what a role read, so that equal views are recognised."""
    state = hashlib.sha256()
    for one in view.readings:
        state.update(f"{one.of} {one.round} {one.evidence}".encode())
        for name, value in one.values.items():
            state.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return state.hexdigest()
