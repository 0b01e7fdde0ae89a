"""Audits of the code that a run used: its noise, clipping, masks and refusals, what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from secure_fl.audits import asking_trials
from secure_fl.audits.base import Finding, Trial
from secure_fl.audits.roles import CODE
from secure_fl.audits.shipped import composition, differences, masks, mechanism, recorded, tampering
from secure_fl.audits.shipped.composition_subjects import composition_trials
from secure_fl.audits.shipped.mask_trials import mask_trials
from secure_fl.audits.shipped.mechanism import mechanism_trials
from secure_fl.audits.shipped.tampering import tampering_trials
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.planning import plan_for_settings, size_for_settings

if TYPE_CHECKING:
    from secure_fl.audits.session import Audit

ABOUT: Mapping[str, str] = {
    mechanism.NAME: mechanism.ABOUT,
    composition.NAME: composition.ABOUT,
    masks.NAME: masks.ABOUT,
    tampering.NAME: tampering.ABOUT,
    recorded.NOISE: recorded.ABOUT_NOISE,
    differences.NAME: differences.ABOUT,
    **asking_trials.ABOUT,
}


def steps(audit: Audit) -> Iterator[tuple[str, Callable[[], Sequence[Trial]]]]:
    """Each audit of code, by what it is called while it runs."""
    prior, quick = audit.prior, audit.quick
    yield mechanism.NAME, lambda: of_code(mechanism_trials(noise_of(audit), prior, quick))
    yield composition.NAME, lambda: of_code(composition_trials(prior, quick))
    yield masks.NAME, lambda: of_code(mask_trials(prior, quick, recorded.masked_inputs(audit.run)))
    yield tampering.NAME, lambda: of_code(tampering_trials(prior, quick, audit.mode))
    noise = audit.result.get("noise") or {}
    std = noise.get("std_guaranteed")
    yield recorded.NOISE, lambda: recorded.noise_trials(audit.run, prior, std)
    yield from asking_trials.steps(prior, audit.mode, audit.place)
    yield differences.NAME, lambda: of_code(differences.difference_trials(prior, quick))


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


def of_code(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Put what was found down to the code, not to a role."""
    return tuple(
        replace(
            trial, control=_at(trial.control), deployed=_at(trial.deployed), null=_at(trial.null)
        )
        for trial in trials
    )


def _at(found: Finding | None) -> Finding | None:
    return None if found is None else found.at(role=CODE)
