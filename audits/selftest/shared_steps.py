"""Self-test of noised steps: what members and readers of the model learn about records in steps.

The attacker knows everything but one bit of each canary: whether its gradient is in the steps of a
hospital. Canaries are longer than the bound, and each has a value of its own, so all coins of one
run are tested at once (Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run, arXiv
2305.08846). A member subtracts its own share of the noise, as planned colluders do. A reader of the
model knows no share. Local noise is that of one hospital, which nobody else knows. Integers are
tested without noise: one record may move the sum of a hospital by its bound at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.selftest.mechanism import (
    GAUSSIAN,
    MARGIN,
    lower_bounds,
    planted_trial,
    seeded,
)
from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon
from secure_fl.crypto.privacy.noise import Uniforms
from secure_fl.crypto.privacy.shared_noise import SharedNoise, on_grid

NAME = "shared noise self-test"
ABOUT = (
    "Puts made-up gradients into noised steps by coin flips, and guesses the coins from "
    "the opened sums; success would mean that they reveal more than the stated epsilon allows."
)
ROLE = "party"
LOCAL = {"hospitals": 1, "dropouts": 0, "colluders": 0}  # noise that no other hospital shares
INTEGERS = "integers of a hospital's sum"
CANARIES, BLOCKS = 512, 16  # values of a run, and runs
MOST_STEPS = 4000
LOUD = 10.0  # a canary's gradient, in bounds
BOUND = 0.5
CONFIDENCE = 0.99
RECORDS, VALUES, PAIRS = 32, 512, 40  # of the test of integers

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Release = Callable[["Steps", Mask, Uniforms], Floats]
"""Makes all steps of a run with these canaries, and returns the sums of its steps."""
Summed = Callable[[Floats, int], Integers]
"""Adds the gradients of a hospital in integers, at most so many for one bound."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps with shared noise, as one kind of attacker sees them."""

    noise: SharedNoise
    count: int
    colluders: int  # whose shares the attacker subtracts

    @property
    def shares(self) -> int:
        """The shares that hide a record: those of present hospitals that do not collude."""
        return self.noise.parties - self.noise.dropouts - self.colluders

    def claim(self, delta: float) -> float:
        """Return ε of the steps, as the result of a run states it for this view."""
        multiplier = self.noise.towards(self.noise.multiplier, self.colluders)
        return epsilon([DpSgdSteps(multiplier, 1.0, self.count)], delta)


def steps_of(privacy: Mapping[str, Any]) -> dict[str, Steps]:
    """Size the steps of each view by the privacy section of a result.

    As many steps are made as have a μ of about 1. That is where a defect is easiest to find.
    """
    shared = privacy["shared"]
    multiplier = min(σ for σ in privacy["noise_multiplier"].values() if σ)
    noise = SharedNoise(
        multiplier, CANARIES, CANARIES, shared["hospitals"], shared["dropouts"], shared["colluders"]
    )
    count = min(MOST_STEPS, max(1, round(multiplier**2)))
    views = {
        "a member": Steps(noise, count, max(1, noise.colluders)),
        "a reader of the model": Steps(noise, count, 0),
    }
    return {name: steps for name, steps in views.items() if steps.shares > 0}


def shared_trials(
    privacy: Mapping[str, Any], prior: Prior, quick: bool = False
) -> tuple[AuditTrial, ...]:
    """Test the noise of a run's steps towards members and readers, and the integers.

    `privacy` is the section of the run's result. Local noise is tested where each round is one
    step; where hospitals train by batches, `one_run` tests it.
    """
    if privacy and not privacy.get("shared") and prior.algorithm.step_rate is not None:
        privacy = {**privacy, "shared": LOCAL}
    if not privacy.get("shared"):
        return ()
    blocks, delta = (BLOCKS // 2 if quick else BLOCKS), float(privacy["delta"])
    views = steps_of(privacy).items()
    trials = [_trial(name, steps, prior, blocks, delta) for name, steps in views]
    return (*trials, _integers(prior))


def _trial(name: str, steps: Steps, prior: Prior, blocks: int, delta: float) -> AuditTrial:
    def test(release: Release, purpose: str, *, null: bool = False) -> AuditFinding:
        rng = prior.rng(NAME, name, purpose)
        return self_test(release, steps, rng, name, blocks=blocks, delta=delta, null=null)

    return planted_trial(PLANTED, shipped, test)


def self_test(
    release: Release,
    steps: Steps,
    rng: np.random.Generator,
    target: str,
    *,
    blocks: int = BLOCKS,
    delta: float = 1e-5,
    null: bool = False,
) -> AuditFinding:
    """Guess the coins of all canaries, and compare ε's lower bound with the claim.

    `null`: the guesses are compared with other coins, which nothing depends on.
    """
    uniforms, hits, alarms, inside = seeded(rng), 0, 0, 0
    middle = steps.count * steps.noise.grid / 2
    for _ in range(blocks):
        coins, others = (rng.integers(2, size=CANARIES).astype(bool) for _ in range(2))
        guessed = release(steps, coins, uniforms) > middle
        coins = others if null else coins
        hits, alarms = hits + int(guessed[coins].sum()), alarms + int(guessed[~coins].sum())
        inside += int(coins.sum())
    counts = hits, inside, alarms, blocks * CANARIES - inside
    value, details = lower_bounds(counts, delta, CONFIDENCE)
    claim = steps.claim(delta)
    details |= {
        "claimed epsilon of these steps": round(claim, 6),
        "steps": steps.count,
        "hospitals": steps.noise.parties,
        "shares in a sum": steps.shares,
        "canaries": blocks * CANARIES,
    }
    return AuditFinding(
        NAME, ROLE, f"steps of this run, towards {target}", "epsilon, lower bound at 99 %", value,
        0.0, claim * (1 + MARGIN), blocks * CANARIES, details=details, note=GAUSSIAN,
    )  # fmt: skip


# --- steps: the program's, and ones with defects --------------------------------------------------


def shipped(steps: Steps, coins: Mask, uniforms: Uniforms) -> Floats:
    """Clip, truncate and add by the program, with the shares that this attacker does not know."""
    total = on_grid(_gradients(coins), BOUND, steps.noise.grid).sum(axis=0)
    return _summed(steps, steps.noise, total, steps.shares, uniforms)


def weak(steps: Steps, coins: Mask, uniforms: Uniforms) -> Floats:
    """Plant a defect: the noise of every hospital is too small by a third."""
    less = replace(steps.noise, multiplier=2 / 3 * steps.noise.multiplier)
    total = on_grid(_gradients(coins), BOUND, steps.noise.grid).sum(axis=0)
    return _summed(steps, less, total, steps.shares, uniforms)


def share_missing(steps: Steps, coins: Mask, uniforms: Uniforms) -> Floats:
    """Plant a defect: one hospital adds no noise."""
    total = on_grid(_gradients(coins), BOUND, steps.noise.grid).sum(axis=0)
    return _summed(steps, steps.noise, total, steps.shares - 1, uniforms)


def not_clipped(steps: Steps, coins: Mask, uniforms: Uniforms) -> Floats:
    """Plant a defect: gradients keep their length."""
    grid, noise = steps.noise.grid, replace(steps.noise, units=round(LOUD) * CANARIES)
    total = on_grid(_gradients(coins), LOUD * BOUND, round(LOUD) * grid).sum(axis=0)
    return _summed(steps, noise, total, steps.shares, uniforms)


PLANTED: dict[str, Release] = {  # the first is the control
    "noise too small by a third": weak,
    "one missing share": share_missing,
    "no clip": not_clipped,
}


def _gradients(coins: Mask) -> Floats:
    """Make the gradients of the canaries that are in, each in a value of its own."""
    rows = np.zeros((int(coins.sum()), coins.size))
    rows[np.arange(len(rows)), np.flatnonzero(coins)] = LOUD * BOUND
    return rows


def _summed(
    steps: Steps, noise: SharedNoise, total: Integers, shares: int, uniforms: Uniforms
) -> Floats:
    """Add the steps up: the canaries are at one hospital, and the others add their shares."""
    every = np.tile(np.clip(total, -noise.limit, noise.limit), steps.count)
    for _ in range(shares):
        every = noise.noised(every, noise.multiplier, uniforms)
    summed: Floats = every.reshape(steps.count, -1).sum(axis=0).astype(np.float64)
    return summed


# --- integers ------------------------------------------------------------------------------------


def truncated(gradients: Floats, grid: int) -> Integers:
    """Add the integers of single records, as the program does."""
    total: Integers = on_grid(gradients, BOUND, grid).sum(axis=0)
    return total


def rounded(gradients: Floats, grid: int) -> Integers:
    """Plant a defect: the sum of a hospital is rounded, and not each record truncated."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * (BOUND / np.maximum(norms, BOUND))
    total: Integers = np.rint(clipped.sum(axis=0) * (grid / BOUND)).astype(np.int64)
    return total


def unclipped(gradients: Floats, grid: int) -> Integers:
    """Plant a defect: records keep their length."""
    total: Integers = np.trunc(gradients * (grid / BOUND)).astype(np.int64).sum(axis=0)
    return total


def moved(summed: Summed, rng: np.random.Generator, *, null: bool = False) -> float:
    """Return how far one record moves a hospital's sum at most, in bounds."""
    return max(_moves(summed, rng, null))


def _moves(summed: Summed, rng: np.random.Generator, null: bool) -> Iterator[float]:
    grid = SharedNoise(1.0, VALUES, RECORDS, 2, 0, 1).grid
    for pair in range(PAIRS):
        size = BOUND * 10.0 ** rng.integers(-1, 3) / math.sqrt(VALUES)
        rows = rng.normal(0, size, (RECORDS, VALUES))
        rows[0] = 0.0
        rows[0, : 1 << pair % 9] = LOUD  # one long value, or some equal ones
        apart = summed(rows, grid) - summed(rows if null else rows[1:], grid)
        yield math.sqrt(int((apart**2).sum())) / grid


def _integers(prior: Prior) -> AuditTrial:
    def test(summed: Summed, purpose: str, *, null: bool = False) -> AuditFinding:
        value = moved(summed, prior.rng(NAME, INTEGERS, purpose), null=null)
        return AuditFinding(
            NAME, ROLE, INTEGERS, "movement by one record, in units of its bound", value, 1.0,
            1 + 1e-9, PAIRS,
        )  # fmt: skip

    control, longer = test(rounded, "rounded"), test(unclipped, "unclipped")
    details = {"planted": {"rounded sum": control.value, "no clip": longer.value}}
    deployed, null = test(truncated, "deployed"), test(truncated, "null", null=True)
    return AuditTrial(control.at(details=details), deployed, null)
