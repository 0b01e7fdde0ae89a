"""Sinks: what they tell, what they keep back, and that a broken one ends no run."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from secure_fl.display.sinks import KINDS, scores_of, sink, to_csv
from secure_fl.errors import SettingsError
from secure_fl.events import Listener, Scored, Warned

OWN = Scored(party="north", round=1, split="dev", values={"accuracy": 0.25})
POOLED = Scored(party="north", round=1, split="dev", values={"accuracy": 0.5}, pooled=True)
LATER = replace(POOLED, round=2, values={"accuracy": 0.75}, model="student")


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


def tell(listener: Listener) -> None:
    for event in (POOLED, OWN, LATER):
        listener(event)


@pytest.mark.parametrize("hospitals", [False, True])
def test_a_table_holds_what_all_learn_and_each_hospitals_own_on_wish(
    hospitals: bool, tmp_path: Path
) -> None:
    file = tmp_path / "scores.csv"
    tell(to_csv(file, hospitals=hospitals))
    with file.open() as stream:
        lines = list(csv.reader(stream))
    assert lines[0] == ["who", "round", "split", "model", "name", "value"]
    assert {line[0] for line in lines[1:]} == {"all records"} | ({"north"} if hospitals else set())
    assert ["all records", "2", "dev", "student", "accuracy", "0.75"] in lines


def test_names_where_scores_lie_in_one_list() -> None:
    (one,) = scores_of(replace(OWN, model="student"), hospitals=True)
    assert one.key == "north/student/dev/accuracy"
    assert scores_of(POOLED)[0].key == "dev/accuracy"
    assert not scores_of(OWN) and not scores_of(Warned(code="x", text="y"))


@pytest.mark.parametrize("text", ["csv", "csv=", "excel=scores.xls", "=x"])
def test_what_names_no_sink_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        sink(text)
    assert "csv=FILE" in str(caught.value)


def test_a_target_that_fails_is_given_up_once(tmp_path: Path) -> None:
    listener = sink(f"csv={tmp_path / 'no' / 'scores.csv'}")
    with pytest.warns(RuntimeWarning, match="no more scores are written to csv="):
        listener(POOLED)
    listener(POOLED)  # silent


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_sink_that_is_not_installed_says_what_to_install(kind: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(kind) is not None:
        pytest.skip(f"{kind} is installed")
    with pytest.raises(SettingsError) as caught:
        KINDS[kind](str(tmp_path))
    assert f"'.[{kind}]'" in str(caught.value)


@needs("tensorboard")
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-not-found, unused-ignore]
        EventAccumulator,
    )

    tell(sink(f"tensorboard={tmp_path}"))
    read: Any = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"dev/accuracy", "student/dev/accuracy"}
    (point,) = read.Scalars("dev/accuracy")
    assert (point.step, point.value) == (1, 0.5)


@needs("mlflow")
def test_mlflow_says_at_once_that_it_takes_no_plain_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import environment_variables

    if not hasattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE"):
        pytest.skip("this MLflow still takes folders")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    for uri in (str(tmp_path / "runs"), (tmp_path / "runs").as_uri()):
        with pytest.raises(SettingsError, match="MLFLOW_ALLOW_FILE_STORE=true"):
            sink(f"mlflow={uri}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    sink(f"mlflow={tmp_path / 'runs'}")


@needs("mlflow")
def test_mlflow_keeps_scores_and_nothing_of_who_ran_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "runs").as_uri()
    tell(sink(f"mlflow={uri}"))
    client = MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("secure_fl")
    (run,) = client.search_runs([place.experiment_id])
    assert run.data.metrics == {"dev/accuracy": 0.5, "student/dev/accuracy": 0.75}
    told = {name: value for name, value in run.data.tags.items() if name != "mlflow.runName"}
    assert not told and not run.data.params
