"""The self-test of shared noise: planted bugs exceed the claim, the shipped steps do not."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import nn

from secure_fl import FedAvg, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.settings import FedSGD, Probe
from secure_fl.audits.audit_statistics import gdp_epsilon
from secure_fl.audits.findings import AuditTrial, PublicView, Verdict
from secure_fl.audits.roles import CODE
from secure_fl.audits.run import ABOUT
from secure_fl.audits.selftest import shared_steps
from secure_fl.audits.selftest.composition import composition_trials
from secure_fl.audits.selftest.one_run import one_run
from secure_fl.audits.selftest.shared_steps import (
    PLANTED,
    Steps,
    moved,
    rounded,
    self_test,
    shared_trials,
    shipped,
    steps_of,
    truncated,
    unclipped,
)
from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon
from secure_fl.crypto.privacy.shared_noise import SharedNoise, on_grid
from secure_fl.settings import DPSettings
from tests.support.readings import ADE, seeded

DELTA = 1e-5
DP = DPSettings(epsilon=1.0, noise_multiplier=4.0)


def privacy(**shared: Any) -> dict[str, Any]:
    given = {"hospitals": 4, "dropouts": 0, "colluders": 1} | shared
    return {"delta": DELTA, "noise_multiplier": {"north": 4.0, "south": 4.5}, "shared": given}


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


@cache
def trials(seed: int = 3) -> tuple[AuditTrial, ...]:
    return shared_trials(privacy(), seeded(seed))


def test_members_and_readers_learn_less_than_is_claimed() -> None:
    member, reader, integers = trials()
    assert [t.verdict for t in trials()] == [Verdict.HOLDS] * 3
    assert member.deployed is not None and reader.deployed is not None
    claims = [t.deployed.details["claimed epsilon of these steps"] for t in (member, reader)]  # type: ignore[union-attr]
    assert claims[0] == pytest.approx(epsilon([DpSgdSteps(4.0, 1.0, 16)], DELTA), abs=1e-5)
    outside = 4.0 * math.sqrt(4 / 3)
    assert claims[1] == pytest.approx(epsilon([DpSgdSteps(outside, 1.0, 16)], DELTA), abs=1e-4)
    for trial, claim in zip((member, reader), claims, strict=True):
        assert trial.deployed is not None and trial.deployed.value is not None
        assert 0.7 * claim < trial.deployed.value < claim  # and it is sharp
    assert integers.deployed is not None and integers.deployed.value is not None
    assert 0.95 < integers.deployed.value <= 1.0


@pytest.mark.parametrize("bug", PLANTED)
def test_each_planted_bug_is_found(bug: str) -> None:
    """With three shares, also one missing share; each in both views."""
    for trial in trials()[:2]:
        assert trial.control is not None
        assert trial.control.details["planted"][bug] > trial.control.threshold


def test_planted_bugs_are_as_bad_as_computed() -> None:
    steps = steps_of(privacy())["a member"]
    expected = {"noise too small by a third": 1.5, "one missing share": math.sqrt(3 / 2)}
    for bug, factor in expected.items():
        finding = self_test(PLANTED[bug], steps, rng(), "a member")
        μ = factor * math.sqrt(steps.count) / 4.0
        assert 0.8 * gdp_epsilon(μ, DELTA) < (finding.value or 0) < gdp_epsilon(μ, DELTA)


def test_a_sum_that_is_rounded_moves_further_than_its_bound() -> None:
    assert moved(truncated, rng()) <= 1.0 < moved(rounded, rng()) < 1.01
    assert moved(unclipped, rng()) > 100
    assert moved(rounded, rng(), null=True) == 0.0


def test_a_bug_in_the_shipped_code_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted code takes the place of the program's own."""
    weak = property(lambda noise: (2 / 3 * noise.multiplier * noise.grid) ** 2 / noise.honest)
    less = lambda noise, σ: noise.share_variance  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(SharedNoise, "share_variance", weak)
        patch.setattr(SharedNoise, "own", less)
        member, reader, integers = shared_trials(privacy(), seeded(3), quick=True)
    assert member.deployed is not None and member.deployed.succeeded
    assert reader.deployed is not None and reader.deployed.succeeded
    assert integers.verdict is Verdict.HOLDS
    with monkeypatch.context() as patch:
        twice = lambda rows, bound, grid: on_grid(rows, 2 * bound, 2 * grid)  # noqa: E731
        patch.setattr(shared_steps, "on_grid", twice)
        assert all(t.deployed and t.deployed.succeeded for t in shared_trials(privacy(), seeded(3)))


@pytest.mark.parametrize("algorithm", [FedSGD(), Probe()])
def test_local_noise_of_single_steps_is_tested(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These algorithms never call the DP-SGD of batches, which the one-run audit tests."""
    local = privacy() | {"shared": None}
    training = TrainingSettings(dp=DP)
    prior = replace(seeded(3), algorithm=algorithm, training=training, task=ADE)
    sound = shared_trials(local, prior, quick=True)
    assert [t.verdict for t in sound] == [Verdict.HOLDS] * 2
    assert one_run(PublicView(CODE, nn.Identity()), prior).value is None
    assert [t.verdict for t in composition_trials(prior)] == [Verdict.UNTESTED]
    monkeypatch.setattr(SharedNoise, "noised", lambda self, total, *_: total)
    assert shared_trials(local, prior, quick=True)[0].verdict is Verdict.LEAKS


def test_nothing_is_found_where_there_is_nothing() -> None:
    steps = Steps(SharedNoise(1.0, 512, 512, 4, 0, 1), 1, 1)
    options: dict[str, Any] = {"blocks": 1, "null": True}
    found = [self_test(shipped, steps, rng(k), "a member", **options).value for k in range(40)]
    assert sum(value != 0 for value in found) <= 2


def test_equal_seeds_give_equal_figures() -> None:
    assert shared_trials(privacy(), seeded(3)) == trials()
    assert trials(4) != trials()


def test_views_are_those_of_the_plan() -> None:
    views = steps_of(privacy(hospitals=7, dropouts=2, colluders=3))
    shares = {name: steps.shares for name, steps in views.items()}
    assert shares == {"a member": 2, "a reader of the model": 5}
    assert {steps.noise.multiplier for steps in views.values()} == {4.0}
    nobody = steps_of(privacy(colluders=0))["a member"]
    assert nobody.shares == 3 and nobody.claim(DELTA) > epsilon([DpSgdSteps(4.0, 1.0, 16)], DELTA)
    two = privacy(hospitals=2, dropouts=1, colluders=0)
    assert list(steps_of(two)) == ["a reader of the model"]
    many = privacy() | {"noise_multiplier": {"north": 1000.0}}
    assert steps_of(many)["a member"].count == shared_steps.MOST_STEPS


@pytest.mark.parametrize("given", [{}, privacy() | {"shared": None}])
def test_a_run_without_shared_noise_is_not_tested(given: Any) -> None:
    by_batches = replace(seeded(3), algorithm=FedAvg())
    assert shared_trials(given, by_batches) == ()
    assert shared_steps.NAME in ABOUT
