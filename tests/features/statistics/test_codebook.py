"""Codebooks: errors in a file, errors at a site, and the form in which they travel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from secure_fl.errors import DataError, SecureFLError, SettingsError
from secure_fl.features.statistics.codebook import Codebook
from secure_fl.features.statistics.counting import counts_of
from secure_fl.features.statistics.feature import StatisticsRules, broken_rules
from secure_fl.features.statistics.opening import load_codebook, loads_codebook
from secure_fl.features.statistics.tables import table_of
from secure_fl.pilot.plan import load_plan, read_plan, write_plan
from tests.support.raising import raises

TEXT = """
dataset = "notes"
[run]
name = "what-is-there"
[algorithm]
name = "statistics"
[algorithm.variables]
label = {values = ["a", "b", "c"]}
age = {low = 0, high = 100, bins = 10}
decade = {column = "age", edges = [20, 40, 60, 80]}
seen = {edges = ["2025-01-01", "2025-07-01"]}
days = {edges = [0, 10, 20, 30]}
died = {values = ["1", "0"]}
[algorithm.tables]
labels = ["label"]
"ages by label" = ["age", "label"]
decades = ["decade"]
seen = ["seen"]
[algorithm.survival]
curves = {time = "days", event = "died", happened = "1", group = "label"}
"""


def codebook(**changes: Any) -> Codebook:
    given: dict[str, Any] = {
        "variables": {"label": {"values": ("a", "b")}},
        "tables": {"labels": ("label",)},
    }
    return Codebook(**(given | changes))


def test_a_codebook_is_a_plan_and_travels_as_one(tmp_path: Path) -> None:
    file = tmp_path / "codebook.toml"
    file.write_text(TEXT)
    plan = load_plan(file)
    assert read_plan(write_plan(plan)) == plan
    assert plan.algorithm == load_codebook(file) == loads_codebook(TEXT)
    found = plan.algorithm
    assert isinstance(found, Codebook)
    assert found.variables["age"].points == tuple(range(0, 101, 10))
    assert found.shape(("age", "label")) == (13, 4)
    assert found.scopes["curves"] == ("label", "days", "died")
    assert found.cells == 4 + 13 * 4 + 6 + 4 + 4 * 6 * 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["a", "b", "c"]', '["a", "b", "a"]', "categories overlap"),
        ("[20, 40, 60, 80]", "[20, 60, 40, 80]", "bins overlap: 40 follows 60"),
        ("[20, 40, 60, 80]", '[20, "2025-01-01"]', "all numbers or all days"),
        ('"2025-07-01"', '"July"', "write it as 2026-01-31"),
        ("bins = 10", "bins = 10, edges = [1]", "write exactly one"),
        ("[0, 10, 20, 30]", "[5, 10, 20, 30]", "do not cover the time from 0"),
        ('happened = "1"', 'happened = "2"', "no category of 'died'"),
        ('labels = ["label"]', 'labels = ["labels"]', "there is no variable 'labels'"),
        ('["age", "label"]', '["age", "decade"]', "one column twice"),
        ('["age", "label"]', '["age", "label", "seen"]', "2"),
        ('{low = 0, high = 100, bins = 10}', '{values = ["old"]}', "categories and numbers"),
        ('decades = ["decade"]', "", "no table uses 'decade'"),
        ("curves = {", "labels = {", "two tables are called 'labels'"),
        ('name = "statistics"', 'name = "statistics"\nwhere = 1', "there is no such field"),
        ('name = "statistics"', 'name = "fedavg"', "no codebook"),
        ("[algorithm.tables]", "[tables]", "no such section"),
    ],
)  # fmt: skip
def test_a_wrong_codebook_is_refused_with_the_field_and_the_value(
    old: str, new: str, words: str
) -> None:
    assert old in TEXT
    with raises(SettingsError, words):
        loads_codebook(TEXT.replace(old, new, 1), "codebook.toml")


def site(**columns: Any) -> pd.DataFrame:
    size = 40
    given = {
        "id": [f"r{k}" for k in range(size)],
        "text": ["a note with some words"] * size,
        "label": ["a", "b"] * (size // 2),
        "age": range(size),
    }
    return pd.DataFrame(given | columns)


@pytest.mark.parametrize(
    ("column", "values", "frame", "words"),
    [
        ("text", ("x",), site(), "texts or identifiers"),
        ("patient", ("p1",), site(patient=["p1"] * 40), "texts or identifiers"),
        ("id", ("r1",), site(), "texts or identifiers"),
        ("ward", ("x",), site(), "no such column"),
        ("person", ("anna 1",), site(person=[f"anna {k}" for k in range(40)]), "identifiers"),
        ("remark", ("x",), site(remark=["he had a long and winding story to tell"] * 40), "texts"),
    ],
)
def test_a_site_refuses_columns_that_no_codebook_counts(
    column: str, values: tuple[str, ...], frame: pd.DataFrame, words: str
) -> None:
    asked = codebook(variables={column: {"values": values}}, tables={"t": (column,)})
    with raises(DataError, words, field=column):
        counts_of(asked, table_of(frame))


def test_no_usual_column_of_texts_or_ids_is_counted() -> None:
    more = {name: ["short"] * 40 for name in ("idx", "sentence", "prompt", "premise")}
    assert set(table_of(site(**more)).frame) == {"label", "age", "words", "characters"}


def test_records_without_an_id_are_not_one_person() -> None:
    bare = site(id=[None, "", float("nan"), *(f"r{k}" for k in range(37))])
    assert len(set(table_of(bare).patients)) == 40
    whole, floats = site(id=list(range(40))), site(id=[*map(float, range(39)), None])
    shared = set(table_of(whole).patients) & set(table_of(floats).patients)
    assert len(shared) == 39  # "1" and 1.0 are one id
    with raises(DataError, "1 records name no patient"):
        table_of(site(patient=["", *(f"p{k}" for k in range(39))]))


@pytest.mark.parametrize("columns", ['{id = "id"}', '{id = "id", patient = "pid"}'])
def test_ids_of_a_source_may_hold_slashes_and_floats_and_be_blank(
    tmp_path: Path, columns: str
) -> None:
    from secure_fl.config.load import loads
    from secure_fl.features.statistics.tables import silos_of

    ids = [f"{k}/17" for k in range(20)] + [20.0, None, "", *range(23, 40)]
    rows = site(id=ids, pid=[f"p/{k}" for k in range(40)]).to_dict("records")
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = 'algorithm = {name = "fedavg"}\n[data]\nparties = 3\ndev = 0.3\n'
    source = f'source = "{tmp_path / "all.jsonl"}"\ncolumns = {columns}\n'
    settings = loads(head + source)
    tables = [one.table for one in silos_of(settings.data, settings.task, 0)]
    assert sorted(age for table in tables for age in table.frame["age"]) == list(range(40))
    assert len({key for table in tables for key in table.patients}) == 40


def test_a_column_mapped_to_an_identifier_is_gone_under_its_own_name(tmp_path: Path) -> None:
    """Finding 7: `columns = {patient = "pid"}` left "pid" as a column to ask for."""
    from secure_fl.config.load import loads
    from secure_fl.features.statistics.tables import silos_of

    for name in "xyz":
        frame = site(pid=[f"p{k}" for k in range(40)], note=["short"] * 40).drop(columns="text")
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    parties = "\n".join(
        f'[[data.party]]\nname = "{n}"\ntrain = "{tmp_path / n}.csv"' for n in "xyz"
    )
    head = 'algorithm = {name = "fedavg"}\n[data]\ncolumns = {patient = "pid", text = "note"}\n'
    settings = loads(head + parties)
    (first, *_) = silos_of(settings.data, settings.task, 0)
    assert set(first.table.frame) == {"label", "age", "words", "characters"}
    assert first.table.grouped and len(set(first.table.patients)) == 40


def test_a_site_compares_a_codebook_with_its_rules() -> None:
    asked = codebook(min_patients=5, records_per_patient=3)
    rules = {one.rule for one in broken_rules(StatisticsRules(), asked)}
    assert rules == {"site.statistics.min_patients", "site.statistics.records_per_patient"}
    rules = {one.rule for one in broken_rules(StatisticsRules(columns=("age",)), codebook())}
    assert rules == {"site.statistics.columns"}
    needs = StatisticsRules(noise_required=True, max_tables=1, max_epsilon=0.5)
    asked = codebook(epsilon=1.0, delta=1e-4, tables={"x": ("label",), "y": ("label",)})
    assert {one.rule for one in broken_rules(needs, asked)} == {
        "site.statistics.max_tables",
        "site.statistics.max_epsilon",
        "site.statistics.max_delta",
    }
    assert {one.rule for one in broken_rules(needs, codebook())} == {
        "site.statistics.noise_required"
    }


def test_first_records_of_each_patient_count() -> None:
    frame = site(patient=[f"p{k // 4}" for k in range(40)], label=["a", "b", "b", "b"] * 10)
    table = table_of(frame)
    for records, counts in ((1, [10, 0, 0]), (2, [10, 10, 0]), (9, [10, 30, 0])):
        assert counts_of(codebook(records_per_patient=records), table)[0].tolist() == counts


def test_values_are_read_as_they_are_written() -> None:
    frame = site(
        flag=[True, False] * 20,
        smoker=[True, False, None, False] * 10,
        day=pd.to_datetime(["2025-03-01", None, None, None] * 10),
        grade=[1.0, 2.0, None, 7.5] * 10,
        seen=["2025-03-01", "2025-09-01T10:00:00", "", "no day"] * 10,
        age=["5", "15", "x", None] * 10,
    )
    variables = {
        "flag": {"values": ("true", "false")},
        "smoker": {"values": ("true", "false")},
        "day": {"edges": (0, 10)},
        "grade": {"values": ("1", "2")},
        "seen": {"edges": ("2025-01-01", "2025-06-01")},
        "age": {"edges": (0, 10, 20)},
    }
    asked = codebook(variables=variables, tables={name: (name,) for name in variables})
    counts = counts_of(asked, table_of(frame))[0].tolist()
    assert counts[:7] == [20, 20, 0, 10, 20, 10, 0] and counts[7:10] == [0, 10, 30]
    assert counts[10:] == [10, 10, 20, 0, 10, 10, 20, 0, 10, 10, 0, 20]


def test_tables_of_more_counts_than_the_limit_are_refused() -> None:
    wide = {name: {"low": 0, "high": 150, "bins": 150} for name in ("x", "y")}
    with raises(SecureFLError, "more than 10000"):
        codebook(variables=wide, tables={"xy": ("x", "y")})
