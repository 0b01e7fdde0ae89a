"""Conclusions from trials: the access matrix, and the status under the run's policy.

The matrix has one cell for each role and each kind of information. "Nothing" needs at least one
attack that works unprotected, fails on the null, and fails here. Where every attack is
inconclusive, so is the cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from secure_fl.audits import metadata_trials
from secure_fl.audits.attacks import membership, predictions, reading
from secure_fl.audits.document import BAG, Access, CellPart, PrivacyPart, RowPart, Status
from secure_fl.audits.findings import AuditFinding, AuditTrial, Verdict
from secure_fl.audits.roles import CODE, COORDINATOR, PUBLIC
from secure_fl.audits.selftest import one_run
from secure_fl.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One kind of information, with the attacks that look for it and the meaning of success."""

    what: str
    attacks: tuple[str, ...]
    access: Access = "everything"  # of a role whose attack succeeds
    promised: bool = True  # he+secagg hides it from every role, alone or in a small coalition
    from_updates: bool = False  # it could only be found in an update that was read
    required: bool = True  # an attack must come to a verdict, if it is promised


def _counts(what: str, name: str) -> tuple[MatrixRow, MatrixRow]:
    """Make the rows of what hospitals count: each one's counts, and those of several."""
    one, total = f"{name}: {reading.ONE_COUNTED}", f"{name}: {reading.SUM_COUNTED}"
    return (
        MatrixRow(f"one hospital's counts in {what}", (one,)),
        MatrixRow(f"sums of counts in {what}", (total,), "of a sum", promised=False),
    )


MEMBERSHIP = (membership.LIRA, membership.RMIA, predictions.MEMBERSHIP)
METADATA = (metadata_trials.SIZES, metadata_trials.TIMING)
TEXTS = (BAG, "span check", "gradient matching", "whole texts")
ROWS = (
    MatrixRow("one hospital's update", (reading.ONE,)),
    MatrixRow("a sum of updates", (reading.SUM,), access="of a sum", promised=False),
    MatrixRow("words of one hospital's records", TEXTS, from_updates=True),
    MatrixRow(
        "how many records of each label a hospital has", ("label counts",), from_updates=True
    ),
    MatrixRow(
        "the number of records that a hospital sends along", (reading.COUNTS,), required=False
    ),
    MatrixRow("how many records a hospital has", METADATA, "sizes", False),
    MatrixRow("whether a record was trained on", MEMBERSHIP, promised=False),
    MatrixRow("the label histogram", (predictions.LABELS,), promised=False),
    *_counts("a codebook", reading.CODEBOOKS),
    *_counts("an evaluation", reading.EVALUATION),
)


def trial_id(trial: AuditTrial) -> str:
    """Make the id by which cells and reports refer to a trial."""
    finding = trial.deployed
    target = f"/{finding.target}" if trial.role == CODE and finding is not None else ""
    return re.sub(r"[^\w/.+:-]+", "-", f"{trial.attack}/{trial.role}{target}")


def matrix(trials: Sequence[AuditTrial], roles: Sequence[str]) -> tuple[RowPart, ...]:
    """Build every row for which an attack was run, over all roles."""
    rows = []
    for row in ROWS:
        if any(trial.attack in row.attacks for trial in trials):
            cells = tuple(_cell(row, role, trials) for role in roles)
            rows.append(RowPart(what=row.what, cells=cells))
    return tuple(rows)


def answer(
    row: MatrixRow, role: str, trials: Sequence[AuditTrial]
) -> tuple[Verdict, tuple[AuditTrial, ...]]:
    """Decide what a role learns of a row, and by which trials.

    A role that could read no single hospital's update has nothing to search, even where an attack
    does not work on such updates (AdamW's, after epochs). Where it could read one, all attacks of
    the row must come to a verdict before the cell is "nothing".
    """
    mine = [t for t in trials if t.role == role and t.attack in row.attacks]
    leaking, holding, weak = (
        tuple(t for t in mine if t.verdict is verdict)
        for verdict in (Verdict.LEAKS, Verdict.HOLDS, Verdict.INCONCLUSIVE)
    )
    if leaking:
        return Verdict.LEAKS, leaking
    if row.from_updates and mine:
        unread = tuple(t for t in trials if t.role == role and t.attack == reading.ONE)
        if unread and all(trial.verdict is Verdict.HOLDS for trial in unread):
            return Verdict.HOLDS, holding or unread
    if weak:
        return Verdict.INCONCLUSIVE, (*weak, *holding)
    return (Verdict.HOLDS if holding else Verdict.UNTESTED), holding


def _cell(row: MatrixRow, role: str, trials: Sequence[AuditTrial]) -> CellPart:
    verdict, deciding = answer(row, role, trials)
    evidence = tuple(map(trial_id, deciding))
    if verdict is Verdict.LEAKS:
        best = _best(deciding)
        return CellPart(role=role, access=_access(row, best), evidence=evidence, note=_note(best))
    if verdict is Verdict.HOLDS:
        implied = not any(trial.attack in row.attacks for trial in deciding)
        why = "no single update could be read" if implied else _note(_best(deciding), False)
        return CellPart(role=role, access="nothing", evidence=evidence, note=why)
    access: Access = "inconclusive" if verdict is Verdict.INCONCLUSIVE else "not tested"
    held = [t.attack for t in deciding if t.verdict is Verdict.HOLDS]
    why = _why(t for t in trials if t.role == role and t.attack in row.attacks)
    why = f"not by {', '.join(held)}" if held else why
    return CellPart(role=role, access=access, evidence=evidence, note=why)


def _why(mine: Iterable[AuditTrial]) -> str:
    """Join the reasons for which trials came to no verdict."""
    reasons = []
    for trial in mine:
        if trial.verdict is Verdict.UNTESTED:
            reasons.append(trial.reason)
        elif trial.control is not None and trial.control.value is None:
            reasons.append(f"{trial.attack}: {trial.control.note}")
        elif trial.deployed is not None and not trial.deployed.could_run:
            reasons.append(f"{trial.attack}: {trial.deployed.note}")
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def _access(row: MatrixRow, trial: AuditTrial) -> Access:
    target = trial.deployed.target if trial.deployed else ""
    return "of a sum" if target.startswith("the sum") else row.access


def _best(trials: Sequence[AuditTrial]) -> AuditTrial:
    return max(trials, key=lambda t: (t.deployed and t.deployed.value) or 0.0)


def _note(trial: AuditTrial, of: bool = True) -> str:
    """Compare what the deciding attack reached with guessing; `of`: name its target."""
    finding = trial.deployed
    if finding is None or finding.value is None:
        return ""
    figures = f"{finding.measure} {finding.value:.2f}, guessing: {finding.chance:.2f}"
    if trial.attack == BAG:
        figures = f"which vocabulary words occur: {100 * finding.value:.0f} %"
        figures += f", guessing: {100 * finding.chance:.0f} %"
    elif trial.attack in (reading.ONE, reading.SUM):
        figures = f"correlation {finding.value:.2f}, noise: {finding.chance:.2f}"
    elif trial.attack == reading.COUNTS:
        figures = f"{100 * finding.value:.0f} % of the counts"
    return f"{figures} ({_owners(finding.target)})" if of else figures


def _owners(target: str) -> str:
    """Describe the target of a finding: "hospital-3", "2 hospitals together"."""
    if target.startswith("the sum of "):
        return f"{target.removeprefix('the sum of ')} hospitals together"
    if target.endswith(" hospitals, each separately"):
        return f"each of {target.split(' ', 1)[0]} hospitals"
    return target


def promised(trial: AuditTrial, within_bound: Mapping[str, bool]) -> bool:
    """Decide if the protection promises that this attack fails for this role.

    Nothing is promised beyond the number of colluders that a run states, nor of sums, which
    parties are meant to learn.
    """
    rows = [row for row in ROWS if trial.attack in row.attacks]
    of_sum = trial.deployed is not None and trial.deployed.target.startswith("the sum")
    return (
        any(row.promised for row in rows)
        and trial.role != PUBLIC
        and within_bound.get(trial.role, True)
        and not of_sum
    )


def judge(
    trials: Sequence[AuditTrial],
    policy: PolicySettings,
    within: Mapping[str, bool],
    privacy: Sequence[PrivacyPart],
) -> tuple[Status, tuple[str, ...]]:
    """Decide the status, with the reasons why it is not better.

    `within`: for each coalition, if it is within the run's bound.
    """
    judged = [t for t in trials if t.role == CODE or promised(t, within)]
    judged = [t for t in judged if trial_id(t) not in policy.accept]
    beyond = [_leak(t) for t in judged if t.verdict is Verdict.LEAKS]
    beyond += _membership(trials, policy) + _epsilon(policy, privacy)
    if beyond:
        return "beyond policy", tuple(beyond)
    open_questions = _unanswered(judged)
    if policy.membership is not None and not _members_sought(trials):
        open_questions.append(
            "policy.membership is set, and no membership attack came to a verdict"
        )
    if open_questions:
        return "inconclusive", tuple(open_questions)
    return "within policy", ()


def _leak(trial: AuditTrial) -> str:
    finding = trial.deployed
    assert finding is not None  # noqa: S101 - it leaks
    if trial.role == CODE:
        return f"{trial.attack}: {finding.target}: {finding.measure} {finding.value:.3g}"
    what = next(row.what for row in ROWS if trial.attack in row.attacks)
    return f"{trial.role}: {what}, {_note(trial)}"


def _unanswered(judged: Sequence[AuditTrial]) -> list[str]:
    """List roles and rows on which no attack came to a verdict."""
    missing = []
    for row in filter(lambda row: row.promised and row.required, ROWS):
        for role in dict.fromkeys(t.role for t in judged if t.attack in row.attacks):
            if answer(row, role, judged)[0] not in (Verdict.HOLDS, Verdict.LEAKS):
                missing.append(f"{role}: no verdict about {row.what}")
    viewed = [t for t in judged if t.role != CODE]
    if viewed and all(t.verdict is Verdict.UNTESTED and t.reason for t in viewed):
        missing = list(dict.fromkeys(t.reason for t in viewed))  # the same for all: once
    for trial in judged:
        # Nothing to test, or too much noise for any canary: neither casts doubt.
        answered = trial.verdict is Verdict.HOLDS or trial.reason or trial.attack == one_run.NAME
        if trial.role == CODE and not answered:
            missing.append(f"{trial.attack}: {trial.verdict.value}")
    if not any(trial.role == COORDINATOR for trial in judged):
        missing.append("no view of the coordinator was attacked")
    return missing


def _membership(trials: Sequence[AuditTrial], policy: PolicySettings) -> list[str]:
    """Judge attacks on the released model, where the policy limits them."""
    measured = _members_sought(trials)
    if policy.membership is None or not measured:
        return []
    worst = max(measured, key=lambda f: f.interval[0] if f.interval else 0.0)
    low = worst.interval[0] if worst.interval else 0.0
    if low <= policy.membership:
        return []
    limit = f"policy.membership is {policy.membership:g}"
    return [f"{worst.attack}: AUC of at least {low:.2f}, and {limit}"]


def _members_sought(trials: Sequence[AuditTrial]) -> list[AuditFinding]:
    """List the findings of membership attacks that came to a verdict."""
    decided = [t for t in trials if t.verdict in (Verdict.HOLDS, Verdict.LEAKS)]
    found = [t.deployed for t in decided if t.attack in MEMBERSHIP and t.deployed is not None]
    return [finding for finding in found if finding.interval is not None]


def _epsilon(policy: PolicySettings, privacy: Sequence[PrivacyPart]) -> list[str]:
    """Judge the largest ε of all statements, where the policy limits it."""
    if policy.epsilon is None:
        return []
    if not privacy:
        return ["policy.epsilon is set, and this run makes no differential-privacy statement"]
    limit = f"policy.epsilon is {policy.epsilon:g}"
    return [
        f"{'ε has no bound' if part.epsilon is None else f'ε = {part.epsilon:.3g}'} "
        f"per {part.unit}, and {limit}"
        for part in privacy
        if part.epsilon is None or part.epsilon > policy.epsilon
    ]
