"""Storms of kills and lies, and guarded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import jsonl
from benchmarks.federations import guard
from benchmarks.federations.guard import GuardRow
from benchmarks.storms import process_storms
from benchmarks.storms.lies import Liar
from benchmarks.storms.outcomes import FINISHED, NAMED, Storm, read, table


def ended(seed: int, **changes: Any) -> Storm:
    calm: dict[str, Any] = {"within": 30, "private": False, "kills": 0, "seconds": 1.0}
    harm = {"rounds_lost": 0, "overspent": 0, "keys_lost": 0}
    lie: dict[str, Any] = {"lie": "failed", "liar": "east", "told": 1, "end": FINISHED}
    return Storm(**{"seed": seed, **calm, **harm, **lie, **changes})


def test_a_liar_that_is_killed_continues(tmp_path: Path) -> None:
    note = tmp_path / "lies"
    first = Liar("east", "failed", 2, once=True, note=note)
    assert [first.lies("east", "failed") for _ in range(3)] == [False, True, False]
    again = Liar("east", "failed", 2, once=True, note=note)
    assert again.told == 1 and not any(again.lies("east", "failed") for _ in range(3))


def test_harm_at_an_honest_hospital_counts_as_bad() -> None:
    harm = ("rounds_lost", "overspent", "keys_lost")
    ends = [{"end": "did not end"}, {"end": "models differ"}]
    bad: list[dict[str, Any]] = [*({what: 1} for what in harm), *ends]
    found = [ended(k, **one) for k, one in enumerate([{}, {"end": NAMED}, *bad])]
    assert [one.bad for one in found] == [False, False, *[True] * 5]
    assert table(found).lines == [("failed", "1", "1", "–", "5", "7", "–")]
    assert not ended(1, keys_lost=3, liar="coordinator", lie="changed total").bad  # rightly
    assert ended(1, rounds_lost=1, liar="coordinator", lie="changed total").bad


def test_storms_in_a_file_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, file = list[int](), tmp_path / "cells" / "storms.jsonl"

    def storm(folder: Path, seed: int, within: int) -> Storm:
        asked.append(seed)
        return ended(seed)

    monkeypatch.setattr(process_storms, "storm", storm)
    first = process_storms.measure(storms=2, cells=file).results
    assert process_storms.measure(storms=2, cells=file).results == first
    process_storms.measure(storms=3, cells=file)
    assert asked == [0, 1, 2] and [found.seed for found in read(file)] == asked


def test_a_line_that_was_cut_short_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    jsonl.append(file, {"a": 1})
    with file.open("a") as half:
        half.write('{"a": 2')
    jsonl.append(file, {"a": 3})
    assert jsonl.read(file) == [{"a": 1}, {"a": 3}]


def test_guarded_runs_are_compared_in_points() -> None:
    rows = [
        GuardRow("sst2", 0, "sign", False, 0.5, 0.25, 0, 12),
        GuardRow("sst2", 0, "sign", True, None, 0.25, 1, 12),
    ]
    assert guard.table(rows).lines == [
        ("sst2", "sign", "1", "50.0", "0.0", "25.0", "25.0", "1 of 12")
    ]


def test_the_page_has_the_table_of_the_stored_storms() -> None:
    results = Path(__file__).parents[1] / "results"
    text, storms = (results / "measurements.md").read_text(), results / "storms"
    assert all(line in text for line in table(read(storms / "processes.jsonl")).markdown())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 11, 13])
def test_a_storm_ends_with_one_model_or_with_the_liar_named(tmp_path: Path, seed: int) -> None:
    found = process_storms.storm(tmp_path, seed)
    assert found.told and not found.bad
