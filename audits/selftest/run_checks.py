"""Checks of a recorded run's own bytes: its masks, and the noise on its predictions.

The defects that these find change no result: a mask used for two sums, a share of noise that was
never added. Only the bytes show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from secure_fl.algorithms.ensembles import PREDICTIONS
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.roles import CODE
from secure_fl.capture.opening import CapturedSegment, Keys, RecordedRun, slots_of
from secure_fl.crypto.blind_sum import MASKED
from secure_fl.crypto.masking import Slots

Floats = NDArray[np.float64]

NOISE = "un-noised predictions"
ABOUT_NOISE = (
    "Compares every opened sum of predictions with the true sum. Success: the difference is "
    "smaller than the noise that the run promises."
)
LEVEL = 1e-6  # of a false alarm
ENOUGH = 64  # values of opened predictions
MOST = 4  # sums whose masks are compared with each other


def masked_inputs(run: RecordedRun) -> dict[str, list[Slots]]:
    """Collect one party's inputs to its longest sums, as another party could open them.

    The cohort's key removes the encryption, so only the masks remain to be tested.
    """
    sent = [p for p in run.parts if not p.total and p.note.audience == "parties"]
    if run.mode not in MASKED or not sent or len(run.parties) < 2:
        return {}
    party = max(part.frame.party for part in sent)
    keys = Keys.of(run, [name for name in run.parties if name != party])
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


def _noised(noise: Floats, std: float, target: str) -> AuditFinding:
    """Test if the noise is smaller than promised, beyond doubt: that is a success."""
    blank = AuditFinding(NOISE, CODE, target, "noise is missing", None, LEVEL, 1.0, noise.size)
    if noise.size < ENOUGH:
        return blank.at(note="too few predictions were opened to measure their noise")
    square = float((noise**2).sum())
    p = float(chi2.cdf(square / std**2, noise.size))  # of noise as small as this
    details = {"promised std": std, "measured std": float(np.sqrt(square / noise.size))}
    return blank.at(value=float(p < LEVEL), details=details)


def _noise(run: RecordedRun) -> Iterator[Floats]:
    """Subtract the true inputs from the sums that the host opened."""
    given = {p: {(n.session, n.number): n for n in run.notes(p)} for p in run.parties}
    for part in _host_totals(run):
        at = (part.note.session, part.note.number)
        owners = [given[p].get(at) for p in part.of]
        known = [note.given for note in owners if note is not None]
        opened = (part.note.opened or {}).get(PREDICTIONS)
        if opened is not None and len(known) == len(
            owners
        ):  # else a missing input would pass as noise
            true = sum(values[PREDICTIONS] for values in known)
            yield np.asarray(opened - true, dtype=np.float64)


def _host_totals(run: RecordedRun) -> Sequence[CapturedSegment]:
    return [p for p in run.parts if p.total and p.frame.party == run.host and p.note.opened]
