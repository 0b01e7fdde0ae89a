"""Audits of the code that a run used: its noise, clipping, masks and refusals, what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from secure_fl.audits import question_trials
from secure_fl.audits.findings import AuditFinding, AuditTrial
from secure_fl.audits.roles import CODE
from secure_fl.audits.selftest import (
    answer_differences,
    composition,
    masks,
    mechanism,
    run_checks,
    tampering,
)
from secure_fl.audits.selftest.composition_subjects import composition_trials
from secure_fl.audits.selftest.mask_trials import mask_trials
from secure_fl.audits.selftest.mechanism import mechanism_trials
from secure_fl.audits.selftest.tampering import tampering_trials
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.planning import plan_for_settings, size_for_settings

if TYPE_CHECKING:
    from secure_fl.audits.session import Audit

ABOUT: Mapping[str, str] = {
    mechanism.NAME: mechanism.ABOUT,
    composition.NAME: composition.ABOUT,
    masks.NAME: masks.ABOUT,
    tampering.NAME: tampering.ABOUT,
    run_checks.NOISE: run_checks.ABOUT_NOISE,
    answer_differences.NAME: answer_differences.ABOUT,
    **question_trials.ABOUT,
}


def steps(audit: Audit) -> Iterator[tuple[str, Callable[[], Sequence[AuditTrial]]]]:
    """Each audit of code, by what it is called while it runs."""
    prior, quick = audit.prior, audit.quick
    yield mechanism.NAME, lambda: of_code(mechanism_trials(noise_of(audit), prior, quick))
    yield composition.NAME, lambda: of_code(composition_trials(prior, quick))
    yield (
        masks.NAME,
        lambda: of_code(mask_trials(prior, quick, run_checks.masked_inputs(audit.run))),
    )
    yield tampering.NAME, lambda: of_code(tampering_trials(prior, quick, audit.mode))
    noise = audit.result.get("noise") or {}
    std = noise.get("std_guaranteed")
    yield run_checks.NOISE, lambda: run_checks.noise_trials(audit.run, prior, std)
    yield from question_trials.steps(prior, audit.mode, audit.place)
    yield (
        answer_differences.NAME,
        lambda: of_code(answer_differences.difference_trials(prior, quick)),
    )


def noise_of(audit: Audit) -> SkellamNoise | None:
    """The noise that this run's sums of predictions carry, sized as the run sized it."""
    settings, shape = audit.settings.protection.noise, None
    public = audit.silos[0].public
    if settings is not None and public:
        shape = audit.settings.algorithm.releases(len(public), audit.settings.training.batch_size)
    if settings is None or shape is None:
        return None
    examples, releases = shape
    plan = plan_for_settings(
        settings,
        examples=examples,
        classes=len(audit.prior.task.labels),
        releases=releases,
        parties=len(audit.run.parties),
        threshold=audit.result["protection"]["threshold"],
    )
    return size_for_settings(settings, plan).noise


def of_code(trials: Sequence[AuditTrial]) -> tuple[AuditTrial, ...]:
    """Put what was found down to the code, not to a role."""
    return tuple(
        replace(
            trial, control=_at(trial.control), deployed=_at(trial.deployed), null=_at(trial.null)
        )
        for trial in trials
    )


def _at(found: AuditFinding | None) -> AuditFinding | None:
    return None if found is None else found.at(role=CODE)
