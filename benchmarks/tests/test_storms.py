"""Who spoils a sum is found at a bounded cost, and storms of kills and lies end as they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.federations import process_storms, storms
from benchmarks.federations.guard_cells import Cells, Row
from benchmarks.federations.guard_cells import markdown as table_of
from benchmarks.federations.lies import LIES, Liar
from benchmarks.federations.storm_cells import (
    CELLS,
    FINISHED,
    NAMED,
    ROOT,
    Storm,
    markdown,
    read,
    rows,
    run,
)
from benchmarks.micro import inquiry


def ended(seed: int, **changes: Any) -> Storm:
    harm = {"rounds_lost": 0, "overspent": 0, "keys_lost": 0}
    told: dict[str, Any] = {"lie": "failed", "liar": "east", "told": 1, "end": FINISHED}
    whole = {
        "seed": seed,
        "within": 30,
        "private": False,
        "kills": 0,
        "seconds": 1.0,
        **told,
        **harm,
    }
    return Storm(**{**whole, **changes})


def test_keys_that_a_coordinator_attacks_are_given_up_rightly() -> None:
    assert ended(1, keys_lost=3).bad
    assert not ended(1, keys_lost=3, liar="coordinator", lie="changed total").bad
    assert ended(1, rounds_lost=1, liar="coordinator", lie="changed total").bad


def test_an_inquiry_finds_the_liar_at_a_few_times_the_cost_of_a_sum() -> None:
    found = inquiry.measure(parties=4, values=20_000, repeats=1)
    assert found.results["wrong"] == 0 and found.results["ratio"] > 0


def test_a_liar_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    note = tmp_path / "lies"
    first = Liar("east", "failed", 2, once=True, note=note)
    assert [first.lies("east", "failed") for _ in range(3)] == [False, True, False]
    again = Liar("east", "failed", 2, once=True, note=note)
    assert again.told == 1 and not any(again.lies("east", "failed") for _ in range(3))


def test_storms_that_are_written_down_are_not_run_again(tmp_path: Path) -> None:
    asked, file = list[int](), tmp_path / "cells" / "storms.jsonl"

    def one(folder: Path, seed: int, within: int) -> Storm:
        asked.append(seed)
        return ended(seed)

    assert run(one, range(2), 30, file) == run(one, range(2), 30, file) == read(file)
    run(one, range(3), 30, file)
    assert asked == [0, 1, 2]


def test_guarded_runs_that_are_written_down_are_not_run_again(tmp_path: Path) -> None:
    asked, file = list[bool](), tmp_path / "cells" / "guard.jsonl"

    def one(guarded: bool, metric: float | None) -> Row:
        row = Row("sst2", 0, "sign", guarded, metric, 0.25, int(guarded), 12)

        def run() -> Row:
            asked.append(guarded)
            return row

        return Cells(file).row(row.key, run)

    rows = [one(False, 0.5), one(True, None)]
    assert [one(False, 0.9), one(True, 0.9)] == rows and asked == [False, True]
    assert table_of(rows).splitlines()[-1] == (
        "| sst2 | sign | 1 | 50.0 | 0.0 | 25.0 | 25.0 | 1 of 12 |"
    )


def test_what_harms_an_honest_hospital_counts_as_bad() -> None:
    harm = ("rounds_lost", "overspent", "keys_lost")
    ends = [{"end": "did not end"}, {"end": "models differ"}]
    bad: list[dict[str, Any]] = [*({what: 1} for what in harm), *ends]
    found = [ended(k, **one) for k, one in enumerate([{}, {"end": NAMED}, *bad])]
    assert [one.bad for one in found] == [False, False, *[True] * 5]
    assert rows(found) == [("failed", "1", "1", "–", "5", "7", "–")]


@pytest.mark.parametrize("place", ["processes", "one-process"])
def test_the_page_has_what_the_cells_say(place: str) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert markdown(read(CELLS / f"{place}.jsonl")) in page


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(LIES)))
def test_a_storm_ends_with_one_model_or_with_the_liar_named(tmp_path: Path, seed: int) -> None:
    assert not storms.storm(tmp_path, seed).bad


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 11, 13])
def test_a_storm_over_processes_ends_so_too(tmp_path: Path, seed: int) -> None:
    found = process_storms.storm(tmp_path, seed)
    assert found.told and not found.bad
