"""Results at default settings: one-class models are found, and cells are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.evidence import defaults
from benchmarks.evidence.one_class import answers, one_class
from benchmarks.evidence.store import FILE, Store
from secure_fl import Local
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.errors import SettingsError
from secure_fl.testing.hospitals import silos, small


def counts(square: list[list[int]], **more: Any) -> dict[str, Any]:
    rows = {f"truly {name}": row for name, row in zip("ab", square, strict=True)}
    return {"round": 1, "split": "test", "counts": rows, **more}


def result(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"metrics": {"last": {"round": 1}}, "history": list(entries)}


def test_a_model_that_answers_one_class_is_found() -> None:
    found = answers(result(counts([[30, 0], [20, 0]]), counts([[25, 0], [25, 0]])))[""]
    assert found == {"answers": 1.0, "majority": 0.55, "sided": 1.0} and one_class(found)


def test_models_that_prefer_different_classes_are_found() -> None:
    found = answers(result(counts([[30, 0], [20, 0]]), counts([[0, 25], [0, 25]])))[""]
    assert found["answers"] == 0.5 and found["sided"] == 1.0 and one_class(found)


def test_records_of_one_class_do_not_count() -> None:
    found = answers(result(counts([[98, 0], [2, 0]])))[""]
    assert found["majority"] == 0.98 and not one_class(found)


def test_one_hospital_of_four_is_noise() -> None:
    mixed = counts([[20, 5], [5, 20]])
    assert not one_class(answers(result(mixed, mixed, mixed, counts([[5, 0], [5, 0]])))[""])


def test_sums_over_hospitals_and_earlier_rounds_are_not_counted_twice() -> None:
    own, before = counts([[4, 1], [1, 4]]), counts([[9, 0], [9, 0]]) | {"round": 0}
    alone = answers(result(own))
    assert answers(result(own, counts([[8, 0], [8, 0]], pooled=True), before)) == alone


def test_a_model_without_entities_is_found() -> None:
    entry = {"round": 1, "split": "test", "counts": {"of Drug": [0, 0, 7]}}
    assert one_class(answers(result(entry))[""])
    entry["counts"] = {"of Drug": [2, 1, 5]}
    assert answers(result(entry))[""] == {"found": 0.4286}
    entry["counts"] = {"all": [2, 1, 5]}  # hospitals that mark unlike kinds sum this alone
    assert answers(result(entry))[""] == {"found": 0.4286}


def test_answers_are_those_of_the_models_themselves() -> None:
    run, hospitals = small(Local(rounds=1)).run(), silos()
    said = [
        guess["label"]
        for silo in hospitals
        for guess in run.predict([r.text for r in silo.test], f"{silo.name}/model")  # type: ignore[union-attr]
    ]
    most = max(np.unique(said, return_counts=True)[1]) / len(said)
    assert answers(run.document)[""]["answers"] == pytest.approx(most, abs=1e-4)


def test_every_algorithm_has_a_cell_with_records_only() -> None:
    found = defaults.cells(defaults.SIZES)
    trained = {name for name, entry in ALGORITHMS.items() if not entry.trains_nothing}
    assert {cell.method for cell in found if cell.data == "sst2"} == trained
    assert all(cell.model in ({}, {"name": "tiny"}) and not cell.training for cell in found)
    assert all(list(cell.algorithm) == ["name"] and cell.seed == 7 for cell in found)


def test_cells_are_stored_and_not_run_again(tmp_path: Path) -> None:
    def measured(only: str) -> tuple[dict[str, Any], str]:
        told: list[str] = []
        found = defaults.measure(("built-in ade",), only, 24, tmp_path, told.append)
        return json.loads(json.dumps(found.document())), "\n".join(told)

    first, _ = measured("fedprox")
    (row,) = first["rows"]
    assert {**row, "set": "built-in ade", "algorithm": "fedprox", "metric": "accuracy"} == row
    assert row["one_class"] is (row["answers"]["answers"] > 0.95 > row["answers"]["majority"])
    again, told = measured("fedprox")
    assert again["rows"] == first["rows"] and "0 to run" in told
    measured("gong")
    assert len(Store(tmp_path).outcomes) == 2


def test_the_page_shows_current_defaults_only(tmp_path: Path) -> None:
    stored = Store(defaults.WORK).outcomes.values()
    outcome = next(o for o in stored if o["title"].startswith("sst2 · mhat"))
    work = tmp_path / defaults.NAME / FILE
    work.parent.mkdir()

    def written() -> str:
        work.write_text(json.dumps({"key": "made up", "outcome": outcome}) + "\n")
        return "\n".join(defaults.page(tmp_path))

    assert "| mhat | 60.0 (86%) |" in written()
    outcome["answers"][""]["answers"] = 0.96
    assert "| mhat | **60.0 (96%)** |" in written()
    outcome["settings"]["training"]["batch_size"] += 1
    assert "mhat" not in written()


def test_a_set_without_sizes_is_refused() -> None:
    with pytest.raises(SettingsError) as found:
        defaults.measure(["sst3"])
    assert "sst2" in str(found.value.fix)
