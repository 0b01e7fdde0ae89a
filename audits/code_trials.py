"""Trials of the installed code: its noise, clipping, masks, refusals and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from secure_fl.audits import question_trials
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import AuditFinding, AuditTrial
from secure_fl.audits.roles import CODE
from secure_fl.audits.selftest import composition, masks, mechanism, run_checks, tampering
from secure_fl.crypto.ensemble_noise import planned, sized
from secure_fl.crypto.noise import SkellamNoise

ABOUT: Mapping[str, str] = {
    mechanism.NAME: mechanism.ABOUT,
    composition.NAME: composition.ABOUT,
    masks.NAME: masks.ABOUT,
    tampering.NAME: tampering.ABOUT,
    run_checks.NOISE: run_checks.ABOUT_NOISE,
    **question_trials.ABOUT,
}


def steps(audited: AuditedRun) -> Iterator[tuple[str, Callable[[], Sequence[AuditTrial]]]]:
    """List the trials of code, by the name of their step."""
    prior, quick, run = audited.prior, audited.quick, audited.run
    tested: dict[str, Callable[[], Sequence[AuditTrial]]] = {
        mechanism.NAME: lambda: mechanism.mechanism_trials(noise_of(audited), prior, quick),
        composition.NAME: lambda: composition.composition_trials(prior, quick),
        masks.NAME: lambda: masks.mask_trials(prior, quick, run_checks.masked_inputs(run)),
        tampering.NAME: lambda: tampering.tampering_trials(audited.mode),
    }
    for name, trials in tested.items():
        yield name, partial(_of_code, trials)
    std = (audited.result.get("noise") or {}).get("std_guaranteed")
    yield run_checks.NOISE, lambda: run_checks.noise_trials(run, prior, std)
    yield from question_trials.steps(prior, audited.mode, audited.place)
    differences = partial(question_trials.difference_trials, prior, quick)
    yield question_trials.DIFFERENCES, partial(_of_code, differences)


def noise_of(audited: AuditedRun) -> SkellamNoise | None:
    """Size the noise of this run's sums of predictions as the run did; None: it has none."""
    settings, shape = audited.settings.protection.noise, None
    public = audited.silos[0].public
    if settings is not None and public:
        batch_size = audited.settings.training.batch_size
        shape = audited.settings.algorithm.releases(len(public), batch_size)
    if settings is None or shape is None:
        return None
    examples, releases = shape
    plan = planned(
        settings,
        examples=examples,
        classes=len(audited.prior.task.labels),
        releases=releases,
        parties=len(audited.run.parties),
        threshold=audited.result["protection"]["threshold"],
    )
    return sized(settings, plan).noise


def _of_code(run: Callable[[], Sequence[AuditTrial]]) -> tuple[AuditTrial, ...]:
    """Run trials, and attribute their findings to the code, not to a role."""
    return tuple(
        replace(t, control=_at(t.control), deployed=_at(t.deployed), null=_at(t.null))
        for t in run()
    )


def _at(finding: AuditFinding | None) -> AuditFinding | None:
    return None if finding is None else finding.at(role=CODE)
