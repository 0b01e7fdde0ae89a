"""Trials of the installed code: its noise, clipping, masks, refusals and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from secure_fl.algorithms.ensembles import PREDICTIONS
from secure_fl.audits import codebook_trials
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.roles import CODE
from secure_fl.audits.selftest import composition, masks, mechanism, shared_steps, tampering
from secure_fl.capture.opening import CapturedSegment, RecordedRun, keys_of, slots_of
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.planning import plan_for_settings, size_for_settings
from secure_fl.crypto.sealing.masking import Slots

NOISE = "un-noised predictions"
ABOUT_NOISE = (
    "Compares every opened sum of predictions with the true sum. Success: the difference is "
    "smaller than the noise that the run promises."
)
NOISE_LEVEL = 1e-6  # of a false alarm
ENOUGH = 64  # values of opened predictions
MOST = 4  # sums whose masks are compared with each other

ABOUT: Mapping[str, str] = {
    mechanism.NAME: mechanism.ABOUT,
    shared_steps.NAME: shared_steps.ABOUT,
    composition.NAME: composition.ABOUT,
    masks.NAME: masks.ABOUT,
    tampering.NAME: tampering.ABOUT,
    NOISE: ABOUT_NOISE,
    **codebook_trials.ABOUT,
}


def steps(audited: AuditedRun) -> Iterator[tuple[str, Callable[[], Sequence[AuditTrial]]]]:
    """List the trials of code, by the name of their step."""
    prior, quick, run = audited.prior, audited.quick, audited.run
    privacy = audited.result.get("privacy") or {}
    tested: dict[str, Callable[[], Sequence[AuditTrial]]] = {
        mechanism.NAME: lambda: mechanism.mechanism_trials(noise_of(audited), prior, quick),
        shared_steps.NAME: lambda: shared_steps.shared_trials(privacy, prior, quick),
        composition.NAME: lambda: composition.composition_trials(prior, quick),
        masks.NAME: lambda: masks.mask_trials(prior, quick, masked_inputs(run)),
        tampering.NAME: lambda: tampering.tampering_trials(audited.mode),
    }
    for name, trials in tested.items():
        yield name, partial(_of_code, trials)
    std = (audited.result.get("noise") or {}).get("std_guaranteed")
    yield NOISE, lambda: noise_trials(run, prior, std)
    yield from codebook_trials.steps(prior, audited.mode, audited.controls_folder)
    released = partial(codebook_trials.released_trials, prior, quick)
    yield codebook_trials.RELEASED, partial(_of_code, released)


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
    plan = plan_for_settings(
        settings,
        examples=examples,
        classes=len(audited.prior.task.labels),
        releases=releases,
        parties=len(audited.run.parties),
        threshold=audited.result["protection"]["threshold"],
    )
    return size_for_settings(settings, plan).noise


def _of_code(run: Callable[[], Sequence[AuditTrial]]) -> tuple[AuditTrial, ...]:
    """Run trials, and attribute their findings to the code, not to a role."""
    return tuple(
        replace(t, control=_at(t.control), deployed=_at(t.deployed), null=_at(t.null))
        for t in run()
    )


def _at(finding: AuditFinding | None) -> AuditFinding | None:
    return None if finding is None else finding.at(role=CODE)


# --- checks of a recorded run's own bytes ---------------------------------------------------------
#
# The defects that these find change no result: a mask used for two sums, a share of noise that was
# never added. Only the bytes show them.


def masked_inputs(run: RecordedRun) -> dict[str, list[Slots]]:
    """Collect one party's inputs to its longest sums, as another party could open them.

    The cohort's keys remove the pad and the encryption, so only the masks remain to be tested.
    """
    sent = [p for p in run.parts if not p.total and p.note.audience == "parties"]
    if run.mode == "none" or not sent or len(run.parties) < 2:
        return {}
    party = max(part.frame.party for part in sent)
    keys = keys_of(run, [name for name in run.parties if name != party])
    inputs: list[Slots] = []
    for part in sent:
        if part.frame.party == party:
            slots = slots_of(part, run.mode, keys)
            inputs += [] if slots is None else [slots[:-1]]
    return {f"the masked inputs of {party}": sorted(inputs, key=len, reverse=True)[:MOST]}


def noise_trials(run: RecordedRun, prior: Prior, std: float | None) -> tuple[AuditTrial, ...]:
    """Test opened sums of predictions for the promised noise."""
    if std is None or run.host is None:
        return ()
    noise = np.concatenate([*_noise(run), np.zeros(0)])
    rng = prior.rng(NOISE)
    drawn = rng.normal(0, std, max(noise.size, ENOUGH))
    return (
        AuditTrial(
            _noised(np.zeros(drawn.size), std, "a planted bug: no noise"),
            _noised(noise, std, "sums of predictions"),
            _noised(drawn, std, "Gaussian noise of that size"),
        ),
    )


def _noised(noise: NDArray[np.float64], std: float, target: str) -> AuditFinding:
    """Test if the noise is smaller than promised, beyond doubt: that is a success."""
    blank = AuditFinding(
        NOISE, CODE, target, "noise is missing", None, NOISE_LEVEL, 1.0, noise.size
    )
    if noise.size < ENOUGH:
        note = "too few predictions were opened to measure their noise"
        return blank.at(note=note, could_run=False)
    square = float((noise**2).sum())
    p = float(chi2.cdf(square / std**2, noise.size))  # of noise as small as this
    details = {"promised std": std, "measured std": float(np.sqrt(square / noise.size))}
    return blank.at(value=float(p < NOISE_LEVEL), details=details)


def _noise(run: RecordedRun) -> Iterator[NDArray[np.float64]]:
    """Subtract the true inputs from the sums that the host opened."""
    given = {p: {(n.session, n.number): n for n in run.notes(p)} for p in run.parties}
    for part in _host_totals(run):
        at = (part.note.session, part.note.number)
        owners = [given[p].get(at) for p in part.of]
        known = [note.given for note in owners if note is not None]
        opened = (part.note.opened or {}).get(PREDICTIONS)
        complete = len(known) == len(owners)  # otherwise a missing input would pass as noise
        if opened is not None and complete:
            true = sum(values[PREDICTIONS] for values in known)
            yield np.asarray(opened - true, dtype=np.float64)


def _host_totals(run: RecordedRun) -> Sequence[CapturedSegment]:
    return [p for p in run.parts if p.total and p.frame.party == run.host and p.note.opened]
