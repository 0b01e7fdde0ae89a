"""Adversarial sums: a fixed set of seeds, those that found faults, and controls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.adversary import adversary, read
from tests.support.adversary import Scenario, attack, shrink
from tests.support.mutations import Target, targets

FOUND: list[tuple[int, Target]] = [
    (101, ("Complaint", "total")),  # a message of no run crashed the coordinator
    (105, ("Complaint", "(bulk)")),  # other bytes in a complaint convicted the coordinator
    (2, ("SumInput", "(bulk)")),  # after a false complaint, an honest upload counted as hidden
    (27, ("Segment", "size")),  # parties of a host sum showed their next upload
    (65, ("Relayed", "senders")),  # more senders than values
]


@pytest.mark.parametrize(("seed", "target"), FOUND)
def test_a_change_that_found_a_fault_breaks_no_promise(seed: int, target: Target) -> None:
    assert attack(Scenario.of(seed, target)).violations == []


@pytest.mark.parametrize("seed", range(60))
def test_no_change_of_any_message_breaks_a_promise(seed: int) -> None:
    assert attack(Scenario.of(seed)).violations == []


def test_without_the_coordinators_check_the_adversary_finds_a_framed_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: the check of an upload's number is off, so an honest coordinator is framed."""
    from secure_fl.crypto.sealing.blind_sum import ProtectedTotal

    monkeypatch.setattr(ProtectedTotal, "admit", lambda *_: None)
    scenarios = (Scenario.of(seed, ("SumInput", "bound")) for seed in range(200))
    failing = next(one for one in scenarios if attack(one).violations)
    least = shrink(failing)
    assert least.only is not None and attack(least).violations
    monkeypatch.undo()
    assert attack(least).violations == []


def test_the_command_prints_coverage_continues_and_ends_with_zero(tmp_path: Path) -> None:
    out = tmp_path / "sums.jsonl"
    for sums in ("20", "40"):
        done = CliRunner().invoke(adversary, ["--sums", sums, "--out", str(out)])
        assert done.exit_code == 0, done.output
    assert "SumInput." in done.output and "violations: 0" in done.output
    parts = out.read_text().splitlines()
    assert len(parts) == 2 and read(out, 0).sums >= 40


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in targets()}))
def test_every_field_of_a_message_is_changed(kind: str) -> None:
    """A field that no scenario reaches would be counted with zero changes for ever."""
    for target in (target for target in targets() if target[0] == kind):
        coverage, seeds = Counter[str](), iter(range(300))
        while not coverage[".".join(target)]:
            attack(Scenario.of(next(seeds), target), coverage)
