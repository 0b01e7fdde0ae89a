"""Codebooks opened over hospitals in one process: exact counts, hidden counts, noise, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from secure_fl import Codebook, Silo, Tables, open_codebook
from secure_fl.cli.main import main
from secure_fl.corpora import make
from secure_fl.errors import CohortError, Disagreement, SecureFLError, SettingsError
from secure_fl.features.statistics.counting import counts_of
from secure_fl.features.statistics.feature import StatisticsRules
from secure_fl.features.statistics.note import Note
from secure_fl.features.statistics.tables import table_of
from secure_fl.policy.violations import PolicyRefusal
from secure_fl.settings import ProtectionSettings
from tests.support.raising import raises
from tests.support.tables import hospitals

CLEAR = ProtectionSettings(mode="none")
SECAGG = ProtectionSettings(mode="secagg")
VARIABLES = {
    "label": {"values": ("a", "b", "c")},
    "sex": {"values": ("f", "m")},
    "age": {"low": 0, "high": 100, "bins": 10},
}
TABLES = {"labels": ("label",), "ages": ("age",), "both": ("label", "sex")}


def opened(at: Any = None, protection: Any = CLEAR, **changes: Any) -> Tables:
    options = {k: changes.pop(k) for k in ("notes", "rules", "folder") if k in changes}
    given = {"variables": VARIABLES, "tables": TABLES} | changes
    return open_codebook(Codebook(**given), at or hospitals(), protection=protection, **options)


@pytest.mark.parametrize("mode", ["none", "secagg", "he+secagg"])
def test_counts_are_those_of_the_pooled_tables(mode: Any) -> None:
    found = opened(protection=ProtectionSettings(mode=mode), min_patients=1)
    pooled = pd.concat(list(hospitals().values()))
    both = pd.crosstab(pooled.label, pooled.sex)
    assert found.to_frame("both").iloc[:3].to_numpy().tolist() == both.to_numpy().tolist()
    labels = found.to_frame("labels")["records"]
    assert labels["b"] == (pooled.label == "b").sum()
    assert found.to_json()["records"] == len(pooled) == sum(found.tables["ages"]["counts"])
    mean = found.tables["ages"]["figures"]["mean"]
    assert mean == pytest.approx(pooled.age.mean() + 0.5, abs=2)  # ages are in their bins


def test_each_of_several_labels_is_a_variable_of_its_own() -> None:
    notes = make("codes", parties=3, seed=0, size=60)
    silos = {f"h{k}": Silo(f"h{k}", s.train) for k, s in enumerate(notes)}
    codes = {"e11": "E11", "none": "Z99"}  # nobody has the second
    found = opened(
        silos,
        variables={
            n: {"column": f"label:{c}", "values": ("true", "false")} for n, c in codes.items()
        },
        tables={name: (name,) for name in codes},
        min_patients=1,
        rules=StatisticsRules(columns=("label",), min_patients=1),
    )
    has = sum("E11" in r.label for s in notes for r in s.train)  # type: ignore[union-attr, operator]
    assert found.to_frame("e11")["records"]["true"] == has > 0
    assert found.to_frame("none")["records"].sum() == 180


def test_labels_are_counted_in_one_way(tmp_path: Path) -> None:
    """The 4 of C follow from those without A and those with B, if a record has one label."""
    both = {
        "label": {"values": ("A", "B", "C")},
        "b": {"column": "label:B", "values": ("true", "false")},
    }
    single = pd.DataFrame({"label": ["A"] * 30 + ["B", "B;"] * 10 + ["C"] * 4})
    several = pd.DataFrame({"label": ["A"] * 30 + ["B"] * 20 + ["A; B"] * 12})

    def asked(frame: pd.DataFrame, *names: str, **options: Any) -> Tables:
        return opened(
            {f"h{k}": frame for k in range(3)},
            variables={name: both[name] for name in names},
            tables={name: (name,) for name in names},
            **options,
        )

    alone = asked(single, "b")
    assert alone.to_json()["status"] == "refused" and len(alone.refusals) == 3
    assert "field label:B: fewer than 10 records have two labels" in alone.refusals[0]
    noised = asked(single, "b", epsilon=0.5, protection=SECAGG)
    assert noised.to_json()["status"] == "answered"
    mixed = asked(several, "b", "label")
    assert "the values of label are counted as well" in mixed.refusals[0]
    assert asked(several, "b", notes=tmp_path).to_json()["status"] == "answered"
    later = asked(several, "label", notes=tmp_path)
    assert "the values of label are counted as well" in later.refusals[0]


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_no_refusal_depends_on_one_patient(epsilon: float | None) -> None:
    """A refusal is an exact answer, and nobody pays for it."""
    frame = pd.DataFrame({"label": ["a", "b"] * 20, "ward": [f"w{k % 9}" for k in range(40)]})
    frame["grade"], frame["remark"], frame["day"] = 1.0, "", None
    if epsilon is None:  # 10 values of 20 patients are identifiers
        frame["id"] = range(40)
    variables = {
        "label": {"values": ("rare",)},
        "ward": {"values": ("w0", "w1")},
        "grade": {"values": ("1",)},
        "remark": {"values": ("x",)},
        "day": {"edges": ("2025-01-01",)},
    }
    other = frame.copy()
    other.loc[3, list(variables)] = [
        "rare",
        "w9",
        2.5,
        "one two three four five six seven eight",
        "2025-03-01",
    ]
    asked = Codebook(
        variables=variables, tables={name: (name,) for name in variables}, epsilon=epsilon
    )
    near = [counts_of(asked, table_of(one))[0] for one in (frame, other)]
    assert np.abs(near[0] - near[1]).sum() <= 2 * len(variables)  # one patient changes two cells
    few = opened(dict.fromkeys("abc", frame), SECAGG, variables=variables, tables=asked.tables,
                 epsilon=epsilon)  # fmt: skip
    assert few.to_json()["status"] == "answered"


def test_small_categories_are_merged_and_small_counts_hidden() -> None:
    found = opened()
    pooled = pd.concat(list(hospitals().values()))
    rare = int((pooled.label == "c").sum())
    assert 0 < rare < 10
    labels = found.to_frame("labels")["records"]
    assert "c" not in labels.index and labels.sum() == len(pooled)
    assert labels["b or c"] == (pooled.label != "a").sum()
    shown = [c for row in found.tables["both"]["counts"] for c in row if c is not None]
    assert all(count >= 10 for count in shown)
    assert any("if there are any" in note for note in found.tables["labels"]["notes"])


def test_a_codebook_with_noise_hides_nothing_and_spends_the_budget(tmp_path: Path) -> None:
    found = opened(protection=SECAGG, epsilon=0.5, notes=tmp_path)
    exact = opened(min_patients=1).to_json()
    both = [np.array(one.to_json()["tables"][2]["counts"])[:3, :2] for one in (found,)]
    true = np.array(exact["tables"][2]["counts"])[:3, :2]
    assert not (both[0] == true).all() and np.abs(both[0] - true).max() < 300
    assert found.to_json()["epsilon"] == 0.5
    rules = StatisticsRules(max_epsilon=0.5)
    with raises(PolicyRefusal, "max_epsilon"):
        opened(protection=SECAGG, epsilon=0.6, notes=tmp_path, rules=rules)
    again = opened(protection=SECAGG, epsilon=0.5, notes=tmp_path, rules=rules)  # 0.5 is spent
    assert again.to_json()["status"] == "refused" and len(again.refusals) == 3
    assert "the limit is 0.5" in again.refusals[0]


def test_records_have_one_budget_with_and_without_patients(tmp_path: Path) -> None:
    frames = {name: frame.assign(patient=range(len(frame))) for name, frame in hospitals().items()}
    options: dict[str, Any] = {"protection": SECAGG, "epsilon": 0.5, "notes": tmp_path}
    assert opened(frames, **options).to_json()["status"] == "answered"
    bare = {name: frame.drop(columns="patient") for name, frame in frames.items()}
    found = opened(bare, **options)
    assert found.to_json()["status"] == "refused" and "second budget" in found.refusals[0]


def test_one_refusal_refuses_all_and_spends_nothing(tmp_path: Path) -> None:
    """Finding 9: the refusal of one hospital spent the budget of all others."""
    tables = hospitals()
    tables["hospital-2"] = tables["hospital-2"].drop(columns="label")
    rules = StatisticsRules(max_epsilon=0.5)
    found = opened(tables, protection=SECAGG, epsilon=0.5, notes=tmp_path, rules=rules)
    assert found.to_json() == {
        "status": "refused",
        "reason": "at least one hospital refused; its own log has the reason",
    }
    (why,) = found.refusals
    assert "hospital-2" in why and "field label" in why and "sex, age" in why
    assert (
        opened(protection=SECAGG, epsilon=0.5, notes=tmp_path, rules=rules).to_json()["status"]
        == "answered"
    )


def test_the_same_codebook_is_released_alike_again(tmp_path: Path) -> None:
    first = opened(notes=tmp_path).to_json()
    other = opened(notes=tmp_path, tables={"by age": ("age", "sex"), "labels": ("label",)})
    assert other.to_json()["status"] == "answered"
    assert opened(notes=tmp_path).to_json() == first
    lines = (tmp_path / "hospital-1" / "statistics.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["records", "codebook", "codebook"]


def test_changed_records_and_other_hospitals_are_refused(tmp_path: Path) -> None:
    opened(notes=tmp_path)
    tables = hospitals()
    tables["hospital-1"].loc[0, "age"] = 99
    for name in tables:
        tables[name]["patient"] = [f"{name}-{k}" for k in range(60)]
    keyed = hospitals()
    for name in keyed:
        keyed[name]["patient"] = tables[name]["patient"]
    opened(keyed, notes=tmp_path / "keyed")
    changed = opened(tables, notes=tmp_path / "keyed")
    assert changed.to_json()["status"] == "refused"
    assert "the records have changed since" in changed.refusals[0]
    more = hospitals(4)
    other = opened({n: more[n] for n in more if n != "hospital-3"}, notes=tmp_path)
    assert other.to_json()["status"] == "refused"
    assert all("an earlier codebook over these records had" in why for why in other.refusals)


def test_counts_that_no_audit_can_compare_are_refused(tmp_path: Path) -> None:
    """Counting two records of each patient tells of patients with two by subtraction."""
    tables = hospitals()
    for name, table in tables.items():
        table["patient"] = [f"{name} {k // 2}" for k in range(len(table))]
    assert opened(tables, notes=tmp_path).to_json()["status"] == "answered"
    more = opened(tables, notes=tmp_path, records_per_patient=2)
    assert more.to_json()["status"] == "refused"
    assert "write records_per_patient = 1" in more.refusals[0]
    for form, status in (({"edges": (0.5,)}, "answered"), ({"values": ("0", "1")}, "refused")):
        asked = {"variables": {"died": form}, "tables": {"t": ("died",)}}
        other = opened(tables, notes=tmp_path, **asked)
        assert other.to_json()["status"] == status
    assert "field died: an earlier codebook counted this column as numbers" in other.refusals[0]


def test_a_hospital_that_lost_its_note_stops_another_codebook(tmp_path: Path) -> None:
    opened(notes=tmp_path)
    (tmp_path / "hospital-2" / "statistics.jsonl").unlink()
    with raises(Disagreement, "hospital-2"):
        opened(notes=tmp_path, tables={"by age": ("age", "sex"), "labels": ("label",)})


def test_a_codebook_that_one_hospital_did_not_finish_is_repeated(tmp_path: Path) -> None:
    """It stopped between the sum and the note; no other codebook may be opened before."""
    opened(notes=tmp_path, tables={"by age": ("age", "label"), "sexes": ("sex",)})
    first = opened(notes=tmp_path)
    note = tmp_path / "hospital-2" / "statistics.jsonl"
    whole = note.read_text()
    note.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    other = {"by age": ("age", "sex"), "labels": ("label",)}
    with raises(Disagreement, "hospital-2"):
        opened(notes=tmp_path, tables=other)
    assert opened(notes=tmp_path).to_json() == first.to_json()
    assert note.read_text() == whole
    assert opened(notes=tmp_path, tables=other).to_json()["status"] == "answered"


def test_two_codebooks_are_not_open_at_once(tmp_path: Path) -> None:
    """Neither would be audited with the other; the second reads the note after the first."""
    table = table_of(hospitals()["hospital-1"])
    asked = Codebook(variables={"sex": {"values": ("f", "m")}}, tables={"sexes": ("sex",)})
    first, second = Note(tmp_path), Note(tmp_path)
    first.lock()
    with raises(CohortError, "another codebook"):
        second.lock()
    first.begin(table)
    first.opened(asked.model_dump(mode="json"), ["a"], table, [])
    assert not second.earlier(table)  # the control: it was read before the first wrote
    first.unlock()
    second.lock()
    assert len(second.earlier(table)) == 1
    second.unlock()


def test_a_hospital_whose_note_is_in_use_refuses(tmp_path: Path) -> None:
    other = Note(tmp_path / "hospital-2")
    other.lock()
    (why,) = opened(notes=tmp_path).refusals
    assert "hospital-2" in why and "one after the other" in why
    other.unlock()
    for _ in range(2):
        assert opened(notes=tmp_path).to_json()["status"] == "answered"


def test_few_patients_in_all_give_nothing() -> None:
    found = opened(hospitals(size=3))
    assert found.to_json()["records"] is None
    assert all(c is None for c in found.tables["labels"]["counts"])


def test_the_run_has_a_result_and_a_page(tmp_path: Path) -> None:
    found = opened(folder=tmp_path / "run")
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document["statistics"] == found.to_json() and document["algorithm"] == "statistics"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "b or c" in page and "<svg" in page and "hidden" in page
    main(["report", str(tmp_path / "run"), "--shared"], standalone_mode=False)
    assert (tmp_path / "run" / "report.html").read_text() == page


@pytest.mark.parametrize("bits", [4, 6])
def test_sums_of_few_bits_are_refused(bits: Any) -> None:
    with raises(SecureFLError, "counts need 8 bits", field="protection.bits"):
        opened(protection=ProtectionSettings(mode="none", bits=bits))


def test_noise_of_which_the_coordinator_sees_the_shares_is_refused() -> None:
    with raises(SettingsError, "a share of the noise", field="algorithm.epsilon"):
        opened(epsilon=0.5)
