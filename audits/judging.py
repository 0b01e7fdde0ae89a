"""Within policy, beyond it, or inconclusive: what the trials and the statements come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secure_fl.audits.access_matrix import MEMBERSHIP, ROWS, answer, ident, promised
from secure_fl.audits.document import PrivacyPart, Status
from secure_fl.audits.findings import AuditTrial, Verdict
from secure_fl.audits.roles import CODE, COORDINATOR
from secure_fl.audits.selftest import one_run
from secure_fl.settings import PolicySettings


def judge(
    trials: Sequence[AuditTrial],
    policy: PolicySettings,
    within: Mapping[str, bool],
    said: Sequence[PrivacyPart],
) -> tuple[Status, tuple[str, ...]]:
    """The status, and why it is not better; `within`: whether a coalition is within the bound."""
    asked = [t for t in trials if t.role == CODE or promised(t, within)]
    asked = [t for t in asked if ident(t) not in policy.accept]
    beyond = [_leak(t) for t in asked if t.verdict is Verdict.LEAKS]
    beyond += _membership(trials, policy) + _statements(policy, said)
    if beyond:
        return "beyond policy", tuple(beyond)
    open_questions = _unanswered(asked)
    if open_questions:
        return "inconclusive", tuple(open_questions)
    return "within policy", ()


def _leak(trial: AuditTrial) -> str:
    found = trial.deployed
    assert found is not None  # noqa: S101 - it leaks
    if trial.role == CODE:
        return f"{trial.attack}: {found.target}: {found.measure} {found.value:.3g}"
    return f"{trial.role}: {trial.attack} of {found.target}, {found.measure} {found.value:.2f}"


def _unanswered(asked: Sequence[AuditTrial]) -> list[str]:
    """Roles and rows on which no attack came to a verdict."""
    missing = []
    for row in filter(lambda row: row.promised and row.required, ROWS):
        for role in dict.fromkeys(t.role for t in asked if t.attack in row.attacks):
            if answer(row, role, asked)[0] not in (Verdict.HOLDS, Verdict.LEAKS):
                missing.append(f"{role}: nothing can be said about {row.what}")
    viewed = [t for t in asked if t.role != CODE]
    if viewed and all(t.verdict is Verdict.UNTESTED and t.reason for t in viewed):
        missing = list(dict.fromkeys(t.reason for t in viewed))  # the same for all: once
    for trial in asked:
        # Nothing there to be tested, or too much noise for any canary: neither is a doubt.
        answered = trial.verdict is Verdict.HOLDS or trial.reason or trial.attack == one_run.NAME
        if trial.role == CODE and not answered:
            missing.append(f"{trial.attack}: {trial.verdict.value}")
    if not any(trial.role == COORDINATOR for trial in asked):
        missing.append("no view of the coordinator was attacked")
    return missing


def _membership(trials: Sequence[AuditTrial], policy: PolicySettings) -> list[str]:
    """Attacks on the released model, where the policy sets them a limit."""
    if policy.membership is None:
        return []
    found = [t.deployed for t in trials if t.attack in MEMBERSHIP and t.deployed is not None]
    measured = [f for f in found if f.interval is not None]
    if not measured:
        return ["policy.membership is set, and no membership attack was run"]
    worst = max(measured, key=lambda f: f.interval[0] if f.interval else 0.0)
    low = worst.interval[0] if worst.interval else 0.0
    if low <= policy.membership:
        return []
    return [f"{worst.attack}: AUC of at least {low:.2f}, and policy.membership is "
            f"{policy.membership:g}"]  # fmt: skip


def _statements(policy: PolicySettings, said: Sequence[PrivacyPart]) -> list[str]:
    """The ε that the policy asks for."""
    if policy.epsilon is None:
        return []
    bounded = [one.epsilon for one in said if one.epsilon is not None]
    if not bounded:
        return ["policy.epsilon is set, and this run makes no differential-privacy statement"]
    if min(bounded) > policy.epsilon:
        return [f"ε = {min(bounded):.3g}, and policy.epsilon is {policy.epsilon:g}"]
    return []
