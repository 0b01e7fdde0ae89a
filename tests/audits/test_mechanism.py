"""The self-test of the shipped noise: planted bugs exceed the claim, the shipped code does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_fl.audits.audit_statistics import gdp_epsilon
from secure_fl.audits.findings import AuditFinding, Verdict
from secure_fl.audits.selftest import mechanism
from secure_fl.audits.selftest.mechanism import (
    DELTA,
    PLANTED,
    Release,
    mechanism_trials,
    promised,
    reference,
    repeats,
    seeded,
    self_test,
    shipped,
)
from secure_fl.crypto.privacy.noise import SkellamNoise
from tests.support.readings import seeded as knowing

NOISE = reference()
MU = "mu, lower bound"


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def measured(release: Release, noise: SkellamNoise = NOISE, **options: Any) -> AuditFinding:
    return self_test(release, noise, rng(options.pop("seed", 7)), "a noise", **options)


def test_the_reference_claims_three_and_meets_its_sensitivity() -> None:
    assert 2.999 < NOISE.epsilon(DELTA) <= 3.0
    # 64.5 grid steps and a little: rounding makes 65 of it, which is all that Δ₂ allows for
    assert np.rint(NOISE.scale * NOISE.clip) == 65
    assert NOISE.l2 == pytest.approx(65, abs=1e-3)


@pytest.mark.parametrize(("name", "release"), PLANTED.items())
def test_each_planted_bug_shows_more_than_is_claimed(name: str, release: Release) -> None:
    releases = 300_000 if name == "one missing share" else 50_000
    assert measured(release, releases=releases).succeeded


def test_the_shipped_noise_shows_what_it_should_and_not_more() -> None:
    n = 200_000
    finding = measured(shipped, releases=n)
    μ = 65 / math.sqrt(NOISE.mu)  # Δ over the std of the promised noise
    p = 0.5 * math.erfc(μ / 2 / math.sqrt(2))  # of an error of either kind, at the midpoint
    density = math.exp(-(μ**2) / 8) / math.sqrt(2 * math.pi)
    std = math.sqrt(p * (1 - p) / n) / density  # of Φ⁻¹ of one rate
    assert finding.details[MU] == pytest.approx(μ - 2 * 1.96 * std, abs=5 * math.sqrt(2) * std)
    assert finding.value is not None
    assert finding.value < gdp_epsilon(μ, DELTA) < NOISE.epsilon(DELTA)
    assert finding.details["epsilon, lower bound of any shape"] < finding.value


def test_planted_bugs_are_as_bad_as_computed() -> None:
    μ = 65 / math.sqrt(NOISE.mu)
    expected = {
        "one missing share": μ * math.sqrt(5 / 4),
        "noise/N": μ * 5,
        "no clip": μ * np.rint(64.5 * 4) / 65,
    }
    for name, value in expected.items():
        finding = measured(PLANTED[name], releases=100_000)
        assert finding.details[MU] == pytest.approx(value, rel=0.05)
    # noise that cancels hides nothing: only the number of releases limits what is shown
    reused = measured(PLANTED["reused noise"], releases=1000).details
    assert (reused["recognised with the client"], reused["alarms without it"]) == (1000, 0)


def test_nothing_is_found_where_there_is_nothing() -> None:
    """Two limits of 97.5 % each: at most one seed in twenty may show any μ at all."""
    shown = [measured(shipped, seed=s, releases=500, null=True).details[MU] for s in range(100)]
    assert sum(mu > 0 for mu in shown) <= 12  # P < 0.01 if it were one in twenty


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_dropouts_and_colluders_are_taken_off(adjacency: Any) -> None:
    """The worst that is planned for: only then the noise is exactly what was promised."""
    noise = replace(NOISE, parties=8, dropouts=2, colluders=1, adjacency=adjacency)
    assert promised(noise) == 5
    finding = measured(shipped, noise, releases=50_000)
    apart = 65 if adjacency == "add-remove" else 130  # the client's opposite takes its place
    assert finding.details[MU] == pytest.approx(apart / math.sqrt(noise.mu), rel=0.06)
    assert not finding.succeeded


def test_fresh_noise_is_told_from_noise_that_repeats_or_is_too_small() -> None:
    noise = SkellamNoise(10_000.0, 64.0, 1.0, 1 << 12, 5, 0, 0)
    zeros, variance = np.zeros(1 << 12), noise.share_variance
    assert not repeats(lambda: noise.share(zeros), variance).succeeded
    assert repeats(lambda: noise.share(zeros, seeded(rng())), variance).succeeded
    weak = replace(noise, mu=noise.mu / 2)
    assert repeats(lambda: weak.share(zeros), variance).succeeded


def test_the_trials_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "QUICK", 200_000)
    trials = mechanism_trials(None, knowing(7), quick=True)
    assert [t.verdict for t in trials] == [Verdict.HOLDS] * 2
    assert trials[0].control is not None
    assert set(trials[0].control.details["planted"]) == set(PLANTED)


def test_the_runs_own_noise_is_tested_and_equal_seeds_give_equal_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mechanism, "QUICK", 20_000)
    noise = SkellamNoise(160_000.0, 64.0, 5.0, 4000, 4, 1, 0)
    first, again = (mechanism_trials(noise, knowing(7), quick=True) for _ in range(2))
    assert first == again and len(first) == 3
    assert first[1].verdict is Verdict.HOLDS and first[1].deployed is not None
    assert first[1].deployed.details["claimed epsilon"] == round(noise.epsilon(DELTA), 6)
    other = mechanism_trials(noise, knowing(8), quick=True)
    assert first[1] != other[1] and first[2] == other[2]


def test_a_bug_in_the_shipped_noise_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted code takes the place of the program's own."""
    monkeypatch.setattr(mechanism, "QUICK", 50_000)
    monkeypatch.setattr(mechanism, "reference", lambda: NOISE)
    wrong = property(lambda noise: noise.mu / noise.parties**2)
    monkeypatch.setattr(SkellamNoise, "share_variance", wrong)
    for trial in mechanism_trials(None, knowing(7), quick=True):
        assert trial.deployed is not None and trial.deployed.succeeded


def test_a_source_of_noise_that_repeats_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "QUICK", 1000)
    monkeypatch.setattr("secure_fl.crypto.privacy.noise.secure_uniforms", lambda: seeded(rng(1)))
    assert mechanism_trials(None, knowing(7), quick=True)[-1].verdict is Verdict.LEAKS
