"""Adversarial sums: fixed seeds, and controls in which single checks are off.

Faults that the adversary found are tests in `tests/security/test_found_by_adversary.py`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.adversary import adversary, read
from secure_fl.coordinator import run_steps, sum_steps
from secure_fl.coordinator.blame import Inquest, SentSum
from secure_fl.coordinator.sum_steps import SumStep
from secure_fl.crypto.blame.evidence import FalseShare
from secure_fl.crypto.blame.inquiry import Inquiry
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.sealing import blind_sum, tags
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.features.statistics.program import OwnCounts
from tests.support.adversary import Scenario, attack, shrink
from tests.support.mutations import rarest, targets

MOST_SUMS = 6000  # until a fault must be found


@pytest.mark.parametrize("seed", range(40))
def test_no_change_of_any_message_breaks_a_promise(seed: int) -> None:
    assert attack(Scenario.of(seed)).violations == []


def test_without_the_coordinators_check_the_adversary_finds_a_framed_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: the check of an upload's number is off, so an honest coordinator is framed."""
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({kind for kind, _ in targets()}))
def test_every_field_of_a_message_is_changed(kind: str) -> None:
    """A field that no scenario reaches would be counted with zero changes for ever."""
    for target in (target for target in targets() if target[0] == kind):
        coverage, seeds = Counter[str](), iter(range(300))
        while not coverage[".".join(target)]:
            attack(Scenario.of(next(seeds), target), coverage)


# --- checks that are off: the strategies find the faults that they prevent ------------------------


@dataclass(frozen=True)
class Edit:
    """A line of one function that is replaced."""

    owner: Any
    name: str
    old: str
    new: str = "if False:"

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        source = textwrap.dedent(inspect.getsource(getattr(self.owner, self.name)))
        assert source.count(self.old) == 1, self.old
        scope = dict(vars(inspect.getmodule(self.owner) or self.owner))
        exec(compile(source.replace(self.old, self.new), str(self.owner), "exec"), scope)  # noqa: S102
        patch.setattr(self.owner, self.name, scope[self.name])


NUMBER = Edit(Inquiry, "_input", "if message.sum != self._index:")
SEED = Edit(Inquiry, "_upload", "if commit(shown.seed, *about) != sent.bound[-32:]:")
MUTANTS = {
    "finding 1: an upload of another sum": [NUMBER, SEED],
    "finding 2: an upload with another number": [
        Edit(ProtectedTotal, "admit", "if upload.sum != number:")
    ],
    "finding 3: salts are not compared": [
        Edit(ProtectedTotal, "require_consistent", "if pair := unlike_salts(salted):")
    ],
    "salts of masks that nobody shares": [
        Edit(
            blind_sum,
            "check_salts",
            "if len(set(peers)) < len(peers) or not sharing.issuperset(peers):",
        )
    ],
    "finding 4: the holder's digest is not compared": [
        Edit(FalseShare, "check", "or given.taken != digest_taken(", "or None is digest_taken(")
    ],
    "finding 8: offers are not checked": [
        Edit(
            module,
            "check_offer",
            "if set(offer.shares) != set(members) - {party} or set(offer.deals) != holders:",
        )
        for module in (sum_steps, run_steps)
    ],
    "finding 10: all members see the uploads": [
        Edit(
            Inquest,
            "__post_init__",
            "frozenset(party for party, keys in sizes.items() if self.key in keys)",
            "frozenset(of.inputs)",
        )
    ],
    "a complaint with other bytes": [
        Edit(SentSum, "disputed", "if len(digests) <= place or digest(part) != digests[place]:")
    ],
    "a total with seeds of parties that are not lost": [
        Edit(StepKeys, "left", "if not left.complete(self.dropped, alive):")
    ],
    "a part that some of its owners omit": [
        Edit(
            ProtectedTotal,
            "require_consistent",
            "if salted and (lacking := owners - salted.keys()):",
        )
    ],
    "the host's upload is not compared with the others'": [
        Edit(
            SumStep,
            "receive",
            "self.total.add(party, message.segments, bulk)",
            "party == self.context.rules.host or self.total.add(party, message.segments, bulk)",
        )
    ],
    "totals are not compared with their tags": [
        Edit(tags, "check", "if tag != make(key, slots, contributors, modulus, stream):")
    ],
    "the noise of a codebook is not in the ledger": [
        Edit(OwnCounts, "record_and_get_counts", "self._budget.reserve()", "pass")
    ],
    "a noised sum is not in the ledger": [
        Edit(NoiseLedger, "enter", "if self.ledger is not None:")
    ],
}
FAST = ("finding 4: the holder's digest is not compared",)


@pytest.mark.parametrize(
    "mutant", [pytest.param(one, marks=[pytest.mark.slow] * (one not in FAST)) for one in MUTANTS]
)
def test_with_one_check_off_the_adversary_finds_a_violation(
    mutant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not told where: the scenarios are those of the command, from the first seed on."""
    for edit in MUTANTS[mutant]:
        edit.apply(monkeypatch)
    sums, seed, found, coverage = 0, 0, list[str](), Counter[str]()
    while not found and sums < MOST_SUMS:
        outcome = attack(Scenario.of(seed, rarest(coverage)), coverage)
        sums, seed, found = sums + outcome.adversary.sums, seed + 1, outcome.violations
    with capsys.disabled():
        print(f"\n{mutant}: {sums} sums: {found[:1]}")
    assert found
