"""`audit(folder)`: a recorded run in, its document out, with the status that policy gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secure_fl.audits import code_trials, public_trials, series, suite
from secure_fl.audits.access_matrix import ident, matrix
from secure_fl.audits.attacks import metadata, reading
from secure_fl.audits.document import (
    AuditDocument,
    FindingPart,
    PointPart,
    RocPart,
    RunPart,
    TrialPart,
)
from secure_fl.audits.findings import AuditFinding, AuditTrial, Verdict
from secure_fl.audits.judging import judge
from secure_fl.audits.roles import CODE, COORDINATOR, PUBLIC, within_bound
from secure_fl.audits.session import Audit, Tell, steps_left_out, trials
from secure_fl.audits.statements import statements
from secure_fl.config.load import dump
from secure_fl.learning.builtin import few_threads

ABOUT = {
    reading.ONE: reading.ABOUT_ONE,
    reading.SUM: reading.ABOUT_SUM,
    reading.COUNTS: reading.ABOUT_COUNTS,
    metadata.SIZES: metadata.ABOUT_SIZES,
    metadata.TIMING: metadata.ABOUT_TIMING,
    **{name: entry.about for name, entry in suite.RECONSTRUCTION.items()},
    **public_trials.ABOUT,
    **code_trials.ABOUT,
}


def audit(
    folder: Path,
    *,
    quick: bool = False,
    code: bool = True,
    work: Path | None = None,
    tell: Tell = lambda done, total, label: None,
) -> AuditDocument:
    """Attack what each role saw of a recorded run.

    What it makes on the way is kept in the run's folder (or in `work`, for audits of runs that
    differ in protection alone), so a second audit is quicker and says the same. `quick` leaves out
    what takes minutes, `code=False` what does not depend on the run; the document says what.
    """
    session = Audit(folder, quick, code, work)
    session.run, session.result  # noqa: B018 - what is missing is said before anything is run
    with few_threads(session.settings.model.name):
        return build(session, trials(session, tell), ABOUT)


WORDS = "words of records that the coordinator recovers (F1)"
UPDATE = "a hospital's update that it reads (correlation)"
RECOVERED = {
    "token bag": WORDS,
    "span check": WORDS,
    "gradient matching": WORDS,
    reading.ONE: UPDATE,
}
DIGITS = 6  # of figures in the document: beyond, machines round differently


def build(audit: Audit, trials: Sequence[AuditTrial], about: Mapping[str, str]) -> AuditDocument:
    """Everything a report shows of one audit."""
    result, settings = audit.result, audit.settings
    said = statements(result)
    within = within_bound(len(audit.run.parties), audit.bound)
    status, reasons = judge(trials, settings.policy, within, said)
    roles = list(dict.fromkeys(t.role for t in trials if t.role != CODE))
    return AuditDocument(
        run=_run(audit),
        status=status,
        reasons=reasons,
        matrix=matrix(trials, roles),
        privacy=said,
        trials=tuple(_trial(trial, about) for trial in trials),
        accuracy=_accuracy(result),
        points=_points(audit, trials),
        budget=series.budget(audit.folder),
        traffic=series.traffic(audit.run, int(audit.result["rounds"])),
        spectra=series.spectra(audit.run, audit.shapes),
        roc=_roc(trials),
        seconds=_seconds(result),
        bytes=_bytes(result),
        untested=_untested(audit, trials),
        policy=settings.policy.model_dump(mode="json"),
    )


def _run(audit: Audit) -> RunPart:
    result, settings = audit.result, audit.settings
    protection = result["protection"]
    return RunPart(
        name=settings.run.name,
        algorithm=result["algorithm"],
        mode=protection["mode"],
        statement=protection["statement"],
        parties=tuple(result["parties"]),
        threshold=protection["threshold"],
        min_cohort=protection["min_cohort"],
        rounds=result["rounds"],
        seed=result["seed"],
        model=settings.model.name,
        task=result["task"]["kind"],
        metric=result["main_metric"],
        settings=dump(settings),
        versions=result["versions"],
        machine=result["machine"],
    )


def _trial(trial: AuditTrial, about: Mapping[str, str]) -> TrialPart:
    return TrialPart(
        id=ident(trial),
        attack=trial.attack,
        role=trial.role,
        verdict=trial.verdict.value,
        about=about.get(trial.attack) or about.get(trial.attack.partition(":")[0], ""),
        control=_finding(trial.control),
        deployed=_finding(trial.deployed),
        null=_finding(trial.null),
        reason=trial.reason,
    )


def _finding(found: AuditFinding | None) -> FindingPart | None:
    if found is None:
        return None
    interval = found.interval and (_round(found.interval[0]), _round(found.interval[1]))
    return FindingPart(
        target=found.target,
        measure=found.measure,
        value=None if found.value is None else _round(found.value),
        chance=_round(found.chance),
        threshold=_round(found.threshold),
        samples=found.samples,
        succeeded=found.succeeded,
        interval=interval,
        evidence=found.evidence,
        details=_rounded({k: v for k, v in found.details.items() if k != "roc"}),
        note=found.note,
    )


def _accuracy(result: Mapping[str, Any]) -> dict[str, float | None]:
    metric = result["main_metric"]
    scores = result.get("metrics", {})
    found = {}
    for which in ("last", "best"):
        of_round = scores.get(which, {})
        every = of_round.get("pooled") or of_round.get("mean", {})
        for split in ("dev", "test"):
            value = every.get(split, every.get(f"local/{split}", {})).get(metric)
            found[f"{which} round, {split} {metric}"] = None if value is None else _round(value)
    return found


def _points(audit: Audit, trials: Sequence[AuditTrial]) -> tuple[PointPart, ...]:
    """The deployed run; what it is compared with are other runs' documents."""
    run = _run(audit)
    leakage, measure = _recovered(trials)
    return (
        PointPart(
            label=f"{run.algorithm}, {run.mode}",
            accuracy=_accuracy(audit.result)[f"last round, test {run.metric}"],
            leakage=leakage,
            measure=measure,
            deployed=True,
        ),
    )


def _recovered(trials: Sequence[AuditTrial]) -> tuple[float | None, str]:
    """How much the coordinator recovered at best, and of what; None: no attack says.

    Who reads a hospital's update has it, whether or not an attack made words of it.
    """
    mine = [t for t in trials if t.role == COORDINATOR and t.attack in RECOVERED]
    found = [
        (t.deployed.value or 0.0, RECOVERED[t.attack])
        for t in mine
        if t.verdict is Verdict.LEAKS and t.deployed
    ]
    if found:
        value, measure = max(found, key=lambda one: (round(one[0], 3), one[1] == WORDS))
        return _round(value), measure
    held = any(t.verdict is Verdict.HOLDS for t in mine)
    return (0.0 if held else None), f"{WORDS}, or {UPDATE}"


def _roc(trials: Sequence[AuditTrial]) -> tuple[RocPart, ...]:
    curves = []
    for trial in trials:
        for label, found in (("", trial.deployed), (", control", trial.control)):
            if found is not None and "roc" in found.details:
                roc = found.details["roc"]
                fpr, tpr = (tuple(map(_round, roc[side])) for side in ("fpr", "tpr"))
                name = f"{trial.attack} ({trial.role}{label})"
                curves.append(RocPart(label=name, fpr=fpr, tpr=tpr))
    return tuple(curves)


def _seconds(result: Mapping[str, Any]) -> dict[str, float]:
    phases: dict[str, float] = {"total": result["seconds"]["total"]}
    for party in result["seconds"]["party"].values():
        for name, spent in party.items():
            phases[name] = phases.get(name, 0.0) + spent
    return {name: round(spent, 3) for name, spent in phases.items()}


def _bytes(result: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{party} {way}": count
        for party, ways in result["bytes"].items()
        for way, count in ways.items()
    }


def _untested(audit: Audit, trials: Sequence[AuditTrial]) -> tuple[str, ...]:
    """What a reader might believe was tested, and was not."""
    said = [
        f"attacks on views work on round {audit.round} of {audit.result['rounds']}, when models "
        "move most; later rounds are recorded and were not attacked",
        "networks, operating systems and the people who run them",
    ]
    if audit.round > 1:
        said.append(f"the rounds before round {audit.round}: they were not recorded")
    if max(1, audit.bound) + 1 < len(audit.run.parties) - 1:
        said.append(
            f"more than {max(0, audit.bound)} hospitals that collude, but not all but one: nothing "
            "is promised then, and enough of them hold shares that remove every mask"
        )
    said += [f"{name}: left out of this audit" for name in steps_left_out(audit)]
    for trial in trials:
        if trial.verdict in (Verdict.UNTESTED, Verdict.INCONCLUSIVE) and trial.role != PUBLIC:
            why = trial.reason or _why(trial)
            said.append(f"{trial.attack} by {trial.role}: {trial.verdict.value} ({why})")
    return tuple(dict.fromkeys(said))


def _why(trial: AuditTrial) -> str:
    if trial.control is not None and not trial.control.succeeded:
        return trial.control.note or "it does not succeed unprotected either"
    if trial.null is not None and trial.null.succeeded:
        return "it succeeds where there is nothing to be found"
    return "there was nothing to run it on"


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return _round(value) if isinstance(value, float) else value


def _round(value: float) -> float:
    return round(float(value), DIGITS)
