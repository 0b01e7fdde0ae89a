"""Tables lose no name and cut nothing, at any width."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from secure_fl.cli import show
from secure_fl.cli.demo import audit_table
from secure_fl.display.grid import Grid
from tests.support.screens import drawn, require_screen

words = st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=1, max_size=14)
texts = st.lists(words, min_size=1, max_size=4).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(40, 130))
def test_every_word_is_there_at_every_width(data: st.DataObject, columns: int, width: int) -> None:
    row = st.lists(texts, min_size=columns, max_size=columns)
    heads, rows = data.draw(row), data.draw(st.lists(row, min_size=1, max_size=4))
    shown = drawn(Grid("", heads, rows), width)
    assert max(map(cell_len, shown.splitlines())) <= width
    found = shown.split()
    for cell in [*heads[1:], *(cell for row in rows for cell in row)]:
        assert all(word in found for word in cell.split()), (cell, shown)


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_name_longer_than_the_terminal_is_folded_and_kept_whole(width: int) -> None:
    name = "university-hospital-of-a-very-long-name-" * 3
    shown = drawn(Grid("", ["hospital", "score"], [[name, "0.5"]]), width)
    assert name in re.sub(r"\s", "", shown)


def result() -> dict[str, Any]:
    scores = {"dev": {"accuracy": 0.69}, "test": {"accuracy": 0.755}}
    names = ("north", "st-elsewhere-university-hospital", "west")
    found = {
        "round": 8,
        "pooled": scores,
        "mean": scores,
        "party": dict.fromkeys(names, scores),
    }
    return {
        "main_metric": "accuracy",
        "parties": names,
        "metrics": {"last": found, "best": found | {"round": 5}},
        "bytes": {name: {"up": 549_700, "down": 552_500} for name in names},
        "seconds": {"party": {name: {"train": 1.82} for name in names}},
    }


def entities() -> dict[str, Any]:
    kinds = ("Disease", "Dose", "Drug", "Finding", "Procedure", "Symptom", "Test", "Treatment")
    f1 = {f"f1/{kind}": 0.1 * place for place, kind in enumerate(kinds)}
    document = result()
    for which in ("pooled", "mean"):
        document["metrics"]["last"][which] = {"test": f1}
    document["metrics"]["last"]["party"] = {name: {"test": f1} for name in document["parties"]}
    return document


def test_a_runs_result() -> None:
    require_screen("result", show.result_table(result(), "fedavg over the hospitals"))


def test_entity_types() -> None:
    table = show.entity_table(entities())
    assert table is not None
    require_screen("entities", table)


def test_runs() -> None:
    columns = ["run", "status", "algorithm", "protection", "round", "metric", "bytes", "changed"]
    rows = [
        ["runs/demo/seed-0/fedavg", "finished", "fedavg", "NONE", "3/3", "accuracy 0.867", "8.8 MB",
         "11-22 16:28"],
        ["runs/pilot", "stopped", "inclusivefl", "he+secagg", "14/400", "-", "-", "11-22 16:28"],
    ]  # fmt: skip
    require_screen("runs", show.grid("", columns, rows))


def test_predictions() -> None:
    note = "a rash developed after starting the tablets, which the patient had never taken before"
    rows = [[note, "ade", "ade 0.911, no-ade 0.089"], ["no complaints", "no-ade", "no-ade 0.970"]]
    require_screen("predictions", show.grid("", ["text", "label", "probabilities"], rows))


def test_who_can_see_what() -> None:
    roles = ["coordinator", "a party", "coordinator and a party", "the public"]
    rows = [
        ["a hospital's update", "nothing", "nothing", "inconclusive", "nothing"],
        ["the sum of all updates", "nothing", "everything", "everything", "not tested"],
    ]
    require_screen("matrix", show.grid("who can see what", ["", *roles], rows))


def test_what_the_demos_attacks_found() -> None:
    found = {"words_recovered": 1.0, "update_read": 1.0, "sum_read": 0.996}
    nothing = {"words_recovered": 0.0, "update_read": 0.03, "sum_read": -0.02}
    entries = [
        {"name": "FedAvg in the clear", "status": "beyond policy"} | found,
        {"name": "FedAvg sealed", "status": "within policy"} | nothing,
    ]
    require_screen("attacked", audit_table(entries))
