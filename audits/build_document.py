"""Builds an audit's document from its trials, the run's result and its recorded views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from secure_fl.audits.attacks import reading
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.conclusions import judge, matrix, trial_id
from secure_fl.audits.document import (
    BAG,
    AuditDocument,
    FindingPart,
    PointPart,
    PrivacyPart,
    RocPart,
    RunPart,
    SeriesPart,
    TrialPart,
)
from secure_fl.audits.findings import AuditFinding, AuditTrial, Verdict
from secure_fl.audits.public_trials import RELEASED
from secure_fl.audits.roles import CODE, COORDINATOR, Shapes, within_bound
from secure_fl.capture import readings
from secure_fl.capture.opening import RecordedRun
from secure_fl.config.load import dump
from secure_fl.crypto.privacy.accounting import decode_event, epsilon
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.display.figures import of_round

WORDS = "which vocabulary words occur, as the coordinator finds them (F1)"
UPDATE = "a hospital's update, as the coordinator reads it (correlation)"
RECOVERED = dict.fromkeys((BAG, "span check", "gradient matching"), WORDS) | {reading.ONE: UPDATE}
DIGITS = 6  # of figures in the document: beyond, machines round differently
MATRICES = 4  # with the spectra that the document shows

LOCAL = "each hospital adds the noise itself before it sends anything, and trusts nobody else"
DISTRIBUTED = (
    "each hospital adds a share of the noise before its values are masked: nobody ever has a sum "
    "without noise, even if the number of hospitals given below reveal their shares to the host"
)
SHARED = (
    "each hospital adds a share of the noise before its values are masked: nobody ever has a sum "
    "without noise; a hospital knows its own share, and ε holds even if the number of colluders "
    "given below compare theirs"
)
NOISE_FACTS = (
    "epsilon_of_this_run",
    "releases",
    "std_guaranteed",
    "std_all_present",
    "signal",
    "signal_to_noise",
    "drowned",
    "dropouts",
    "colluders",
    "durable",
)


def build(
    audited: AuditedRun,
    trials: Sequence[AuditTrial],
    about: Mapping[str, str],
    skipped: Sequence[str] = (),
) -> AuditDocument:
    """Build the document; `about` describes attacks, `skipped` lists steps that were not run."""
    result, settings = audited.result, audited.settings
    privacy = privacy_statements(result)
    within = within_bound(len(audited.run.parties), audited.bound)
    status, reasons = judge(trials, settings.policy, within, privacy)
    roles = list(dict.fromkeys(t.role for t in trials if t.role != CODE))
    run = _run_part(audited)
    return AuditDocument(
        run=run,
        status=status,
        reasons=reasons,
        matrix=matrix(trials, roles),
        privacy=privacy,
        trials=tuple(trial_part(trial, about) for trial in trials),
        accuracy=_accuracy(result),
        points=(_deployed_point(run, result, trials),),
        budget=_budget(audited.folder),
        spectra=_spectra(audited.run, audited.shapes),
        roc=_roc(trials),
        bytes={
            f"{party} {direction}": count
            for party, directions in result["bytes"].items()
            for direction, count in directions.items()
        },
        untested=_untested(audited, trials, skipped),
        policy=settings.policy.model_dump(mode="json"),
    )


def _run_part(audited: AuditedRun) -> RunPart:
    result, settings = audited.result, audited.settings
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


def trial_part(trial: AuditTrial, about: Mapping[str, str]) -> TrialPart:
    """Convert a trial, with the description of its attack."""
    return TrialPart(
        id=trial_id(trial),
        attack=trial.attack,
        role=trial.role,
        verdict=trial.verdict.value,
        about=about.get(trial.attack) or about.get(trial.attack.partition(":")[0], ""),
        control=_finding_part(trial.control),
        deployed=_finding_part(trial.deployed),
        null=_finding_part(trial.null),
        reason=trial.reason,
    )


def _finding_part(finding: AuditFinding | None) -> FindingPart | None:
    if finding is None:
        return None
    fields = {name: getattr(finding, name) for name in FindingPart.__struct_fields__}
    fields["details"] = {name: v for name, v in finding.details.items() if name != "roc"}
    return msgspec.convert(_rounded(fields), FindingPart)


def privacy_statements(result: Mapping[str, Any]) -> tuple[PrivacyPart, ...]:
    """State the differential privacy of a run, in the terms of NIST SP 800-226; empty: none."""
    statements = []
    if dp := result.get("privacy"):
        statements.append(
            PrivacyPart(
                unit=dp["unit"],
                adjacency=dp["adjacency"],
                trust_model=SHARED if dp.get("noise") == "shared" else LOCAL,
                mechanism=_dp_mechanism(dp),
                epsilon=dp["overall_epsilon"],
                delta=dp["delta"],
                budget=dp["budget"],
                assumptions=(dp["assumes"],),
                facts={
                    "epsilon of each hospital": dp.get("epsilon", {}),
                    "epsilon for readers of the model alone": dp.get("model"),
                    "not covered": dp["uncovered"],
                    **_sharing(dp.get("shared")),
                },
            )
        )
    if noise := result.get("noise"):
        statements.append(
            PrivacyPart(
                unit=noise["unit"],
                adjacency=noise["adjacency"],
                trust_model=DISTRIBUTED,
                mechanism=f"{noise['mechanism']} noise on sums of predictions",
                epsilon=noise["epsilon"],
                delta=noise["delta"],
                budget=noise["budget"],
                assumptions=(noise["assumes"],),
                facts={name.replace("_", " "): noise.get(name) for name in NOISE_FACTS},
            )
        )
    return tuple(statements)


def _sharing(shared: Mapping[str, Any] | None) -> dict[str, int]:
    """State the members whose shares the ε does without; a member knows its own share."""
    if shared is None:
        return {}
    return {"colluders": max(1, shared["colluders"]), "dropouts": shared["dropouts"]}


def _dp_mechanism(dp: Mapping[str, Any]) -> str:
    kind = "shared Skellam noise" if dp.get("noise") == "shared" else f"{dp['clipping']} clipping"
    accountant = dp["accountant"].upper()
    return f"DP-SGD ({kind}, bound {dp['max_grad_norm']:g}), composed by {accountant}"


def _accuracy(result: Mapping[str, Any]) -> dict[str, float | None]:
    metric, scores = result["main_metric"], result.get("metrics", {})
    return {
        f"{which} round, {split} {metric}": _score(scores.get(which, {}), split, metric)
        for which in ("last", "best")
        for split in ("dev", "test")
    }


def _score(metrics: Mapping[str, Any], split: str, metric: str) -> float | None:
    every = metrics.get("pooled") or metrics.get("mean", {})
    value = every.get(split, every.get(f"local/{split}", {})).get(metric)
    return None if value is None else _round(value)


def _deployed_point(
    run: RunPart, result: Mapping[str, Any], trials: Sequence[AuditTrial]
) -> PointPart:
    leakage, measure = recovered(trials)
    return PointPart(
        label=f"{run.algorithm}, {run.mode}",
        accuracy=_score(of_round(result, "delivered"), "test", run.metric),
        leakage=leakage,
        measure=measure,
        deployed=True,
    )


def recovered(trials: Sequence[AuditTrial]) -> tuple[float | None, str]:
    """Find how much the coordinator recovered, and of what; None: no attack came to a verdict.

    A hospital's update comes first, because it contains all that was sent. Words can often be
    guessed, so their measure names the result of guessing.
    """
    mine = [t for t in trials if t.role == COORDINATOR and t.attack in RECOVERED]
    known = [t for t in mine if t.verdict in (Verdict.LEAKS, Verdict.HOLDS)]
    of_update = [t for t in known if t.attack == reading.ONE]
    findings = [t.deployed for t in of_update or known if t.deployed]
    if not findings:
        return None, UPDATE
    best = max(findings, key=lambda finding: finding.value or 0.0)
    guess = "" if of_update else f", guessing: {best.chance:.2f}"
    return _round(best.value or 0.0), RECOVERED[best.attack] + guess


def _budget(folder: Path) -> tuple[SeriesPart, ...]:
    """Compose ε over rounds from each party's ledger in the run's folder."""
    curves = []
    for file in sorted(folder.glob("parties/*/ledger.sqlite")):
        entries = [e for e in load_chain(file).entries if e.state == "reserved"]
        rounds, spent = [], []
        for entry in entries:
            before = [decode_event(e.event) for e in entries if e.sequence <= entry.sequence]
            if entry.round is not None and entry.delta is not None:
                rounds.append(float(entry.round))
                spent.append(round(epsilon(before, entry.delta), 6))
        if rounds:
            curves.append(_series(file.parent.name, rounds, spent))
    return tuple(curves)


def _spectra(run: RecordedRun, shapes: Shapes) -> tuple[SeriesPart, ...]:
    """Accumulate the energy of the first aggregate's singular values, for its largest matrices."""
    reads = readings.of_all(run, shapes, run.first_round)
    matrices = {n: v for n, v in reads[0].values.items() if np.ndim(v) == 2} if reads else {}
    names = sorted(matrices, key=lambda name: (-matrices[name].size, name))[:MATRICES]
    curves = []
    for name in names:
        energy = np.linalg.svd(matrices[name], compute_uv=False) ** 2
        share = np.cumsum(energy) / max(energy.sum(), 1e-300)
        ranks = np.arange(1, len(share) + 1) / len(share)
        curves.append(_series(name, ranks.tolist(), share.round(6).tolist()))
    return tuple(curves)


def _series(label: str, x: list[int] | list[float], y: list[int] | list[float]) -> SeriesPart:
    return SeriesPart(label=label, x=tuple(map(float, x)), y=tuple(map(float, y)))


def _roc(trials: Sequence[AuditTrial]) -> tuple[RocPart, ...]:
    curves = []
    for trial in trials:
        for label, finding in (("", trial.deployed), (", control", trial.control)):
            if finding is not None and "roc" in finding.details:
                roc = finding.details["roc"]
                fpr, tpr = (tuple(map(_round, roc[side])) for side in ("fpr", "tpr"))
                name = f"{trial.attack} ({trial.role}{label})"
                curves.append(RocPart(label=name, fpr=fpr, tpr=tpr))
    return tuple(curves)


def _untested(
    audited: AuditedRun, trials: Sequence[AuditTrial], skipped: Sequence[str]
) -> tuple[str, ...]:
    """List what a reader might believe was tested, and was not."""
    lines = [
        f"attacks on views use round {audited.round} of {audited.result['rounds']}, when models "
        "move most; later rounds are recorded and were not attacked",
        "networks, operating systems and the people who run them",
    ]
    released = [name for name in RELEASED if (audited.folder / name).is_dir()]
    lines += [f"the released {n}: attacks are on the released {released[0]}" for n in released[1:]]
    if audited.round > 1:
        lines.append(f"the rounds before round {audited.round}: they were not recorded")
    if max(1, audited.bound) + 1 < len(audited.run.parties) - 1:
        lines.append(
            f"more than {max(0, audited.bound)} hospitals that collude, but not all but one: "
            "nothing is promised then, and enough of them hold shares that remove every mask"
        )
    lines += [f"{name}: skipped in this audit" for name in skipped]
    for trial in trials:
        if trial.verdict in (Verdict.UNTESTED, Verdict.INCONCLUSIVE):
            why = trial.reason or _why(trial)
            lines.append(f"{trial.attack} by {trial.role}: {trial.verdict.value} ({why})")
    return tuple(dict.fromkeys(lines))


def _why(trial: AuditTrial) -> str:
    if trial.control is not None and not trial.control.succeeded:
        return trial.control.note or "it does not succeed unprotected either"
    if trial.null is not None and trial.null.succeeded:
        return "it succeeds where there is nothing to find"
    return "there was nothing to run it on"


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return _round(value) if isinstance(value, float) else value


def _round(value: float) -> float:
    return round(float(value), DIGITS)
