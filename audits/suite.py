"""Every attack on views, by name, and how each goes through the control gate.

The control is what the coordinator of an unprotected run read, for it read everything; the null is
the same numbers in random places. Both are the same for all roles, so each attack runs on them
once. What several roles read alike is attacked once, too.
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
    slow: bool = False  # left out of a quick audit
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
    """What attacks run on: every role of the deployed run, the control, and the null."""

    deployed: Sequence[View]
    sent: Sent  # in the deployed run
    control: CoordinatorView
    sent_in_control: Sent
    null: CoordinatorView

    @property
    def nothing(self) -> str:
        """Why attacks have nothing to work on; empty: hospitals sent something."""
        sent = any(self.sent.values())
        return "" if sent else "nothing was summed or shared: there is nothing to be hidden"


def reading_trials(evidence: AttackEvidence, prior: Prior) -> tuple[AuditTrial, ...]:
    """Who reads a single hospital's update, who a sum, and who its number of records."""
    trials = []
    for attack in (reading.reading_one, reading.reading_sum, _counts):
        control = attack(evidence.control, prior, evidence.sent_in_control)
        null = attack(evidence.null, prior, evidence.sent_in_control)
        for view in evidence.deployed:
            found = attack(view, prior, evidence.sent)
            trials.append(_untested(found, evidence.nothing) or AuditTrial(control, found, null))
    return tuple(trials)


def _counts(view: View, prior: Prior, sent: Sent) -> AuditFinding:
    return reading.reading_counts(view, prior)


def _untested(found: AuditFinding, reason: str) -> AuditTrial | None:
    """Nothing was found where nothing was: that is no success of any protection."""
    return AuditTrial(None, found, None, reason) if reason else None


def reconstruction_trials(
    name: str, entry: ReconstructionAttack, evidence: AttackEvidence, prior: Prior
) -> tuple[AuditTrial, ...]:
    """One attack on every role."""
    control, null = entry.attack(evidence.control, prior), entry.attack(evidence.null, prior)
    reason = "" if control.succeeded or evidence.nothing else _at_best(entry, prior)
    known: dict[str, AuditFinding] = {}
    trials = []
    for view in evidence.deployed:
        same = _digest(view)
        if same not in known:
            known[same] = entry.attack(view, prior)
        found = known[same].at(role=view.role)
        trials.append(
            _untested(found, evidence.nothing) or AuditTrial(control, found, null, reason)
        )
    return tuple(trials)


def _at_best(entry: ReconstructionAttack, prior: Prior) -> str:
    """What an attack that fails on a run's own training does on one plain step."""
    if not entry.at_best or not prior.outsiders:
        return ""
    found = entry.attack(*best_case(prior, entry.at_best))
    if found.value is None:
        return ""
    return (
        "it does not succeed on this run's training unprotected either; on one plain gradient "
        f"step over {entry.at_best} record{'s' if entry.at_best > 1 else ''}, {found.measure} is "
        f"{found.value:.2f}"
    )


def _digest(view: View) -> str:
    """Equal for roles that read the same."""
    state = hashlib.sha256()
    for one in view.readings:
        state.update(f"{one.of} {one.round} {one.evidence}".encode())
        for name, value in one.values.items():
            state.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return state.hexdigest()
