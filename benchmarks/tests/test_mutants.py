"""Mutants: their sites, and a small core whose tests kill some."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutants.mutant_runs import Mutant, Trial, continued, drawn, known, summary
from benchmarks.mutants.mutation_sites import mutated, original, sites

SOURCE = '''"""A module."""

from secure_fl.errors import WireError

LIMIT: int = 3


def left(values: list[int], limit: int = LIMIT) -> int:
    """Return the rest, "at most 7"."""
    assert limit < 9
    if len(values) > limit or not values:
        raise WireError("too many: 12", field="values", reason="many")
    return limit - len(values)
'''
WEAK = """
import pytest
from core.rest import left

def test_the_rest():
    assert left([1]) == 2

def test_too_many():
    with pytest.raises(Exception, match="too many"):
        left([1] * 5)
"""
STRONG = """
import pytest
from core.rest import left

def test_the_limit_is_allowed():
    assert left([1, 2, 3]) == 0
"""


def test_sites_are_what_can_change_behaviour() -> None:
    found = [(site.kind, original(SOURCE, site)) for site in sites(SOURCE)]
    assert found == [
        ("constant", "3"),
        ("comparison", "len(values) > limit"),
        ("and/or", "len(values) > limit or not values"),
        ("condition", "len(values) > limit or not values"),
        ("not", "not values"),
        ("raise", 'raise WireError("too many: 12", field="values", reason="many")'),
        ("constant", '"many"'),
    ]


def test_a_mutant_differs_at_its_site_only() -> None:
    site = next(site for site in sites(SOURCE) if site.kind == "and/or")
    assert site.texts[:2] == ("(len(values) > limit and (not values))", "(not values)")
    changed = mutated(SOURCE, site, site.texts[1])
    assert changed == SOURCE.replace("len(values) > limit or not values", "(not values)")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    for folder in ("core", "tests"):
        (tmp_path / "copy" / folder).mkdir(parents=True)
    (tmp_path / "copy" / "core" / "rest.py").write_text(SOURCE)
    (tmp_path / "copy" / "tests" / "test_rest.py").write_text(WEAK)
    return Trial(tmp_path / "copy", tmp_path, ("core",), ("tests",), ())


def test_a_new_test_kills_a_survivor(trial: Trial) -> None:
    mutants = drawn(trial, 100, 1)
    assert len(mutants) == 7 and mutants == drawn(trial, 100, 1)
    site = next(m.site for m in mutants if m.site.kind == "comparison")
    boundary, beyond = (Mutant("core/rest.py", site, text, "") for text in site.texts)
    results, shown = trial.work / "results.jsonl", list[str]()
    trial.record_lines()
    rows = continued(trial, [boundary, beyond], results, 9.0, False, shown.append)
    assert [bool(row["failed"]) for row in rows] == [False, True]  # >= passes, <= does not
    assert (trial.copy / "core" / "rest.py").read_text() == SOURCE
    (trial.copy / "tests" / "test_limit.py").write_text(STRONG)
    again = Trial(trial.copy, trial.work, trial.core, trial.tests, ())
    again.record_lines()
    assert continued(again, [boundary], results, 9.0, False, shown.append) == rows[:1]
    (row,) = continued(again, [boundary], results, 9.0, True, shown.append)
    assert row["failed"] and set(known(results)) == {boundary.name, beyond.name}
    assert summary([row]).startswith("1 of 1 mutants killed (100.0 %)")
