"""Questions over hospitals in one process, sealed: equal to the pooled table, under the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from secure_fl.data.examples import Tagged
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError, Disagreement, QuestionRefused, SettingsError
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.statistics.asking import Asked, ask
from secure_fl.statistics.questions import loads
from secure_fl.statistics.rules import StatisticsRules
from tests.support.raising import raises
from tests.support.tables import hospital, hospitals

OPEN = StatisticsRules(
    min_patients=1,
    kinds=("count", "categories", "histogram", "table", "vocabulary", "survival", "duplicates"),
)


def question(kind: str, name: str = "q", **fields: Any) -> str:
    where = fields.pop("where", {})
    lines = [f'name = "{name}"', f'kind = "{kind}"']
    lines += [f"{k} = {list(v) if isinstance(v, tuple) else v!r}" for k, v in fields.items()]
    lines += ["[question.where]", *(f'{k} = "{v}"' for k, v in where.items())] if where else []
    return "\n".join(["[[question]]", *lines, ""])


LABELS = question("categories", "labels", field="label", values=("a", "b", "c"))
AGES = question("histogram", "ages", field="age", low=0, high=90, bins=9)
CROSS = question(
    "table",
    "cross",
    rows="label",
    row_values=("a", "b"),
    columns="sex",
    column_values=("f", "m"),
)


def asked(text: str, tables: dict[str, pd.DataFrame], **options: Any) -> Asked:
    return ask(loads(text), tables, **({"rules": OPEN} | options))


@pytest.mark.parametrize("mode", ["he+secagg", "none"])
def test_answers_are_those_of_the_pooled_table(mode: Protection) -> None:
    tables = hospitals(4)
    pooled = pd.concat(list(tables.values()))
    women = question("count", "women", where={"sex": "f", "label": "a"})
    dates = question("histogram", "when", field="seen", low="2025-01-01", high="2025-06-30", bins=6)
    labels, ages, cross, when, n = asked(
        LABELS + AGES + CROSS + dates + women, tables, protection=ProtectionSettings(mode=mode)
    )
    expected = [int((pooled.label == label).sum()) for label in "abc"]
    assert [count for _, count in labels.counts] == [*expected, 0, 0]
    inside = pooled.age[pooled.age <= 90]
    bins, edges = np.histogram(inside, bins=9, range=(0, 90))
    assert [count for _, count in ages.counts][:9] == bins.tolist()
    assert dict(ages.counts)["above"] == int((pooled.age > 90).sum())
    figures = dict(ages.figures)
    assert figures["mean"] == pytest.approx(inside.mean(), abs=1e-6)
    assert figures["standard deviation"] == pytest.approx(inside.std(), abs=1e-6)
    for share in (25, 50, 75):
        true = np.quantile(inside, share / 100)
        assert abs(figures[f"{share}% quantile"] - true) <= edges[1] - edges[0]
    table = pd.crosstab(pooled.label, pooled.sex)
    for label, row in cross.rows[:2]:
        assert row[:2] == (table.loc[label, "f"], table.loc[label, "m"])
    assert cross.total == len(pooled) and when.total == len(pooled)
    assert n.total == int(((pooled.sex == "f") & (pooled.label == "a")).sum())


def test_large_counts_and_moments_travel_exactly() -> None:
    big = pd.DataFrame({"x": np.full(70_000, 999_983)})
    text = question("histogram", field="x", low=0, high=1_000_000, bins=10)
    (answer,) = asked(text, dict.fromkeys(("a", "b", "c"), big))
    assert answer.counts[9][1] == 210_000 and dict(answer.figures)["mean"] == 999_983
    assert dict(answer.figures)["standard deviation"] == 0


def test_words_are_estimated_and_duplicates_found() -> None:
    tables = hospitals(3)
    words = [f"w{n}" for n in range(3000)]
    for place, table in enumerate(tables.values()):
        table["text"] = [
            " ".join(words[k : k + 30]) for k in range(place * 900, len(table) + place * 900)
        ]
    tables["hospital-2"].loc[:6, "text"] = tables["hospital-1"].loc[:6, "text"].str.upper()
    vocabulary, twice = asked(question("vocabulary", "v") + question("duplicates", "d"), tables)
    true = len(
        {word for table in tables.values() for text in table.text for word in text.lower().split()}
    )
    figures = dict(vocabulary.figures)
    assert abs(figures["different words"] - true) <= 4 * figures["±"] + 2
    assert dict(twice.figures)["records that another hospital holds"] == 14  # 7 at each of two


def test_entities_are_counted_once_a_record() -> None:
    def silo(name: str) -> Silo:
        tags = (("B-Drug", "I-Drug", "O", "B-Drug"), ("O", "O", "O", "B-Harm"))
        return Silo(name, [Tagged(str(k), ("a", "b", "c", "d"), tags[k % 2]) for k in range(10)])

    text = question("categories", field="entities", values=("Drug", "Harm"))
    (answer,) = ask(loads(text), [silo(name) for name in "abc"], rules=OPEN)
    assert dict(answer.counts)["Drug"] == dict(answer.counts)["Harm"] == 15


def test_a_hospital_without_a_field_or_with_another_type_refuses_for_all() -> None:
    tables = hospitals(3)
    tables["hospital-2"] = tables["hospital-2"].drop(columns="label")
    tables["hospital-3"]["age"] = "old"
    labels, ages = asked(LABELS + AGES, tables)
    assert labels.status == ages.status == "refused"
    assert "1 of the hospitals" in labels.said[0] and "hospital-2" not in labels.said[0]


def test_a_field_that_is_empty_everywhere_is_an_answer() -> None:
    tables = hospitals(3)
    for table in tables.values():
        table["age"], table["label"] = None, ""
    labels, ages = asked(LABELS + AGES, tables)
    assert dict(labels.counts)["(none)"] == dict(ages.counts)["(none)"] == 180
    assert ages.figures == ()


def test_a_column_of_texts_is_none_of_values() -> None:
    tables = hospitals(3)
    for table in tables.values():
        table["remark"] = "a long remark about one patient that nobody may ask for word by word"
    found = asked(question("categories", field="remark", values=("x",)), tables)
    assert found[0].status == "refused"
    assert isinstance(found.refusals["hospital-1", "q"], DataError)


def test_thresholds_that_suppress_everything_say_so() -> None:
    (answer,) = asked(LABELS, hospitals(3), rules=StatisticsRules(min_patients=10_000))
    assert answer.status == "withheld" and answer.total is None and answer.counts == ()
    assert "10000" in answer.said[0]


def test_small_cells_are_withheld_and_the_strictest_site_counts() -> None:
    tables = hospitals(3)
    rules = {
        "hospital-1": StatisticsRules(min_patients=8),
        "hospital-2": StatisticsRules(rounding=5),
    }
    (answer,) = asked(LABELS, tables, rules=rules)
    counts = dict(answer.counts)
    assert counts["c"] is None and sum(count is None for count in counts.values()) == 2
    assert counts["a"] is not None and counts["a"] % 5 == 0
    assert any("fewer than 10" in said for said in answer.said)  # hospital-2's and -3's default


def test_a_rule_of_one_site_refuses_for_all() -> None:
    strict = {"hospital-2": StatisticsRules(kinds=("count",)), "hospital-3": OPEN}
    found = asked(LABELS, hospitals(3), rules=strict)
    assert found[0].status == "refused"
    error = found.refusals["hospital-2", "labels"]
    assert isinstance(error, QuestionRefused) and error.where["field"] == "site.statistics.kinds"
    fields = StatisticsRules(fields=("age",))
    assert asked(LABELS, hospitals(3), rules=fields)[0].status == "refused"
    few = StatisticsRules(questions_a_day=1, min_patients=1)
    assert [a.status for a in asked(AGES + LABELS, hospitals(3), rules=few)] == [
        "answered",
        "refused",
    ]
    duplicates = asked(question("duplicates"), hospitals(3), rules=StatisticsRules())
    assert duplicates[0].status == "refused"  # only where all name it


def test_other_hospitals_than_before_are_refused(tmp_path: Path) -> None:
    tables = hospitals(4)
    assert asked(LABELS, tables, notes=tmp_path)[0].status == "answered"
    fewer = {name: tables[name] for name in list(tables)[:3]}
    found = asked(AGES, fewer, notes=tmp_path)
    assert found[0].status == "refused"
    assert found.refusals["hospital-1", "ages"].where["field"] == "hospitals"
    assert asked(AGES, tables, notes=tmp_path)[0].status == "answered"


def test_a_condition_that_differs_in_few_patients_is_refused_later_too(tmp_path: Path) -> None:
    tables, rules = hospitals(3), StatisticsRules(min_patients=10)
    everybody = question("count", "all")
    but_few = question("count", "most", where={"label": "c"}).replace('"c"', '["a", "b"]')
    assert asked(everybody, tables, rules=rules, notes=tmp_path)[0].status == "answered"
    found = asked(but_few, tables, rules=rules, notes=tmp_path)[0]
    assert found.status == "refused" and "fewer than 10" in found.said[0]


def test_a_site_that_lost_its_note_stops_the_run(tmp_path: Path) -> None:
    tables = hospitals(3)
    asked(LABELS, tables, notes=tmp_path)
    (tmp_path / "hospital-1" / "statistics.jsonl").unlink()
    with raises(Disagreement):
        asked(AGES, tables, notes=tmp_path)


def test_patients_and_not_records_are_counted() -> None:
    tables = {f"h{k}": hospital(k, 40) for k in range(3)}
    for table in tables.values():
        table["patient"] = ["p" if label == "c" else f"p{n}" for n, label in enumerate(table.label)]
        table.loc[:14, "label"] = "c"
        table.loc[:14, "patient"] = "one"
    (answer,) = asked(LABELS, tables, rules=StatisticsRules(min_patients=10))
    assert answer.unit == "patients" and dict(answer.counts)["c"] is None  # 45 records, 6 patients


def test_an_answer_with_noise_is_in_every_ledger(tmp_path: Path) -> None:
    tables, text = hospitals(3, 400), LABELS + "epsilon = 0.4\n"
    (answer,) = asked(text, tables, notes=tmp_path)
    true = int((pd.concat(list(tables.values())).label == "a").sum())
    assert answer.counts[0][1] is not None and abs(answer.counts[0][1] - true) < 150
    assert answer.counts[0][1] != true or answer.total != 1200  # all exact: one in thousands
    assert any("ε = 0.4" in said for said in answer.said)
    assert {f.parent.name for f in tmp_path.glob("*/ledger.sqlite")} == set(tables)
    again = asked(text, tables, notes=tmp_path)[0]
    spent = asked(text.replace("0.4", "0.9"), tables, notes=tmp_path)[0]
    assert again.status == "answered" and spent.status == "refused" and "budget" in spent.said[0]


def test_fewer_hospitals_than_a_sum_needs_are_refused() -> None:
    with raises(SettingsError, field="protection.min_cohort"):
        asked(LABELS, hospitals(2))
