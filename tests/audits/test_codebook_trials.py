"""Codebooks and evaluations under attack: read in the clear, and by nobody when sealed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from msgspec.structs import replace

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.audits import codebook_trials
from secure_fl.audits.attacks.reading import ONE_COUNTED, SUM_COUNTED
from secure_fl.audits.build_document import trial_part
from secure_fl.audits.conclusions import ROWS, promised
from secure_fl.audits.findings import AuditTrial, Prior, Verdict
from secure_fl.audits.report.report_tables import counts
from secure_fl.audits.run import ABOUT
from secure_fl.settings import Protection
from tests.support.documents import document

COORDINATOR, HOSPITAL, BOTH = "coordinator", "one hospital", "coordinator + 1 hospital"
MODES: tuple[Protection, ...] = ("none", "secagg", "he+secagg")


class Seeded:
    """Of what an attacker knows, the randomness."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def rng(self, *names: object) -> np.random.Generator:
        return np.random.default_rng([self.seed, len(str(names))])


PRIOR = cast(Prior, Seeded(0))


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[AuditTrial, ...]]:
    """All trials under each protection; what is made for one serves the next."""
    place = tmp_path_factory.mktemp("counted")
    finding: dict[str, tuple[AuditTrial, ...]] = {mode: all_of(mode, place) for mode in MODES}
    assert all_of("he+secagg", place) == finding["he+secagg"]  # what lies there is attacked again
    return finding


def all_of(mode: Protection, place: Path) -> tuple[AuditTrial, ...]:
    steps = codebook_trials.steps(PRIOR, mode, place)
    return tuple(trial for _, step in steps for trial in step())


@pytest.mark.parametrize("subject", codebook_trials.subjects())
def test_in_the_clear_counts_are_read_and_sealed_they_are_not(
    subject: str, tried: dict[str, tuple[AuditTrial, ...]]
) -> None:
    def of(mode: str, what: str) -> dict[str, str]:
        name = f"{subject}: {what}"
        return {t.role: t.verdict.value for t in tried[mode] if t.attack == name}

    assert of("none", ONE_COUNTED) == {COORDINATOR: "leaks", HOSPITAL: "holds", BOTH: "leaks"}
    for mode in ("secagg", "he+secagg"):
        assert of(mode, ONE_COUNTED) == {COORDINATOR: "holds", HOSPITAL: "holds", BOTH: "holds"}
        # Hospitals are meant to read sums, and with their keys so does the coordinator.
        assert of(mode, SUM_COUNTED) == {COORDINATOR: "holds", HOSPITAL: "leaks", BOTH: "leaks"}


def test_sums_are_no_breach_and_single_counts_are(tried: dict[str, tuple[AuditTrial, ...]]) -> None:
    for trial in tried["none"]:
        assert promised(trial, {}) == trial.attack.endswith(ONE_COUNTED)
    assert {a for row in ROWS for a in row.attacks} >= {trial.attack for trial in tried["none"]}


@pytest.mark.skipif(codebook_trials.STATISTICS not in ALGORITHMS, reason="the feature is removed")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_tables_reveal_few_patients_only_where_the_rules_are_off(seed: int) -> None:
    (trial,) = codebook_trials.released_trials(cast(Prior, Seeded(seed)), quick=True)
    control = trial.control
    assert control is not None and control.value is not None and control.value >= 1
    assert seed or control.details["single patients"] >= 1  # few codebooks: not by every seed
    assert trial.verdict is Verdict.HOLDS and trial.null is not None and trial.null.value == 0


def test_the_report_has_a_table_of_them(tried: dict[str, tuple[AuditTrial, ...]]) -> None:
    parts = tuple(trial_part(trial, ABOUT) for trial in tried["he+secagg"])
    assert all(part.about for part in parts)
    rows = counts(replace(document(), trials=(*document().trials, *parts))).rows
    assert [row[:2] for row in rows] == [(part.attack, part.role) for part in parts]
