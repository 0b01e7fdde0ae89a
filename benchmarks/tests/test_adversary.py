"""Adversarial sums: a fixed set of seeds, among them those that found faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks.adversary import adversary
from tests.support.adversary import Scenario, attack, shrink

FOUND = (429, 1248)  # an inquiry that a wrong answer ended; parts of an upload in another order


@pytest.mark.parametrize("seed", [*FOUND, *range(60)])
def test_no_change_of_any_message_breaks_a_promise(seed: int) -> None:
    assert attack(Scenario.of(seed)).violations == []


def test_without_the_coordinators_check_the_adversary_finds_a_framed_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: the check of an upload's number is off, so an honest coordinator is framed."""
    from secure_fl.crypto.sealing.blind_sum import ProtectedTotal

    monkeypatch.setattr(ProtectedTotal, "admit", lambda *_: None)
    failing = next(
        scenario for scenario in map(Scenario.of, range(2000)) if attack(scenario).violations
    )
    least = shrink(failing)
    assert least.only is not None and attack(least).violations
    monkeypatch.undo()
    assert attack(replace(least)).violations == []


def test_the_command_prints_coverage_and_ends_with_zero() -> None:
    done = CliRunner().invoke(adversary, ["--sums", "60"])
    assert done.exit_code == 0, done.output
    assert "SumInput." in done.output and "violations: 0" in done.output


def test_changes_are_counted_by_field() -> None:
    coverage = Counter[str]()
    for seed in range(30):
        attack(Scenario.of(seed), coverage)
    assert len(coverage) > 20 and all(count > 0 for count in coverage.values())
