"""The library is as careful as the command line: what it takes, refuses and returns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pytest
import torch
import transformers
from matplotlib.figure import Figure

from secure_fl import Columns, FedAvg, Federation, FedKD, Local, Result, Silo, Text
from secure_fl.config.build import RunSettings
from secure_fl.config.load import loads
from secure_fl.display.sinks import to_csv
from secure_fl.errors import DataError, RunError, SecureFLError, SettingsError
from secure_fl.features import FEATURES
from secure_fl.learning.tasks.classification import Classification
from secure_fl.settings import ModelSettings, TrainingSettings
from secure_fl.testing.hospitals import silos, small
from tests.support.raising import raises
from tests.support.saved_models import save_family

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
FRAME = pandas.DataFrame(
    {"note": [f"a rash after dose {k}" for k in range(40)], "code": ["ade", "no-ade"] * 20}
)
NAMES = Columns(text="note", label="code")
POOLED = pytest.mark.skipif("pooled_scores" not in FEATURES, reason="no scores of all records")


@pytest.fixture(scope="module")
def hospitals() -> list[Silo]:
    return silos(size=24)


@pytest.fixture(scope="module")
def done(hospitals: list[Silo]) -> Result:
    return small(FedAvg(rounds=1), silos=hospitals).run()


# --- what it takes -----------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FedAvg(rounds=10), FedAvg, "fedavg"])
def test_an_algorithm_by_settings_class_or_name(algorithm: Any, hospitals: list[Silo]) -> None:
    assert Federation(hospitals, algorithm).spec.algorithm == FedAvg(rounds=10)


def test_a_model_by_name_dictionary_or_settings(hospitals: list[Silo]) -> None:
    wanted = ModelSettings(name="somebody/bert")
    for given in ("somebody/bert", {"name": "somebody/bert"}, wanted):
        assert Federation(hospitals, "fedavg", model=given).spec.model == wanted


def test_a_model_in_memory_keeps_its_weights(hospitals: list[Silo], tmp_path: Path) -> None:
    saved = save_family(tmp_path / "bert", "bert")
    model = transformers.AutoModel.from_pretrained(saved.name)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias.fill_(0.25)
    still = {"learning_rate": 1e-30, "weight_decay": 0.0, "device": "cpu"}
    result = Federation(
        hospitals,
        FedAvg(rounds=1),
        task={"max_length": 24},
        model=model,
        training=still,
        protection={"mode": "none"},
    ).run()
    trained = result.model.state_dict()
    (bias,) = [v for k, v in trained.items() if k.endswith("layer.0.output.dense.bias")]
    assert torch.allclose(bias, torch.full_like(bias, 0.25))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": 3}, ("found int", "ModelSettings(name=", "transformers")),
        ({"training": [1]}, ("found list", "TrainingSettings(...)", "dictionary")),
        ({"protection": "none"}, ("found str", "ProtectionSettings(...)")),
        ({"training": {"batch": 4}}, ("no such field", "batch_size")),
    ],
)
def test_other_types_are_refused_with_the_advice_of_a_program(
    given: dict[str, Any], told: tuple[str, ...], hospitals: list[Silo]
) -> None:
    with raises(SettingsError, *told):
        Federation(hospitals, "fedavg", **given)


def test_a_program_is_not_told_of_tables() -> None:
    with raises(SettingsError, "AdapterSettings(...) or a dictionary"):
        ModelSettings(adapter=5)  # type: ignore[arg-type]


def test_a_data_frame_becomes_a_silo() -> None:
    silo = Silo.from_pandas("north", FRAME, dev=0.2, test=FRAME[:4], columns=NAMES)
    assert len(silo.train) + len(silo.dev) == 40 and silo.dev and len(silo.test) == 4
    assert silo.test[1] == Text("1", "a rash after dose 1", None, "no-ade")


def test_missing_cells_are_no_labels_and_lists_stay_lists() -> None:
    gaps = pandas.DataFrame({"text": ["a", "b"], "label": ["yes", None]})
    assert [r.label for r in Silo.from_pandas("n", gaps).train] == ["yes", None]  # type: ignore[union-attr]
    tagged = pandas.DataFrame({"tokens": [["a", "rash"]], "tags": [["O", "B-Symptom"]]})
    (record,) = Silo.from_pandas("n", tagged, kind="ner").train
    assert (record.tokens, record.tags) == (("a", "rash"), ("O", "B-Symptom"))  # type: ignore[union-attr]


def test_a_data_set_and_files_become_the_same_silo(tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    FRAME.to_csv(file, index=False)
    frame = Silo.from_pandas("n", FRAME, dev=0.1, columns=NAMES)
    assert Silo.from_files("n", file, dev=0.1, columns=NAMES) == frame
    records = datasets.Dataset.from_pandas(FRAME)
    assert Silo.from_dataset("n", records, dev=0.1, columns=NAMES) == frame


def test_no_records_for_dev_and_test_are_needed(hospitals: list[Silo]) -> None:
    bare = [replace(silo, dev=(), test=()) for silo in hospitals]
    result = small(FedAvg(rounds=1), silos=bare).run()
    assert result.predict(["a rash developed"])[0]["label"] in ("ade", "no-ade")
    assert "nothing measured" in repr(result) and "hospital-1" in result._repr_html_()
    for ask in (result.mean, result.pooled):
        with raises(DataError, split="test"):
            ask("test")


# --- what it refuses ---------------------------------------------------------


WRONG: list[Callable[[Any], object]] = [
    lambda s: Federation(s, "fedavgg"),
    lambda s: Federation(s, TrainingSettings()),  # type: ignore[arg-type]
    lambda s: Federation(s, 3),  # type: ignore[arg-type]
    lambda s: Federation(s[0], FedAvg()),
    lambda s: Federation([*s, FRAME], FedAvg()),
    lambda s: Federation([*s, s[0]], FedAvg()),
    lambda s: Federation(s[:1], FedAvg()),
    lambda s: Silo("h", FRAME),
    lambda s: Silo("h", "notes.csv"),  # type: ignore[arg-type]
    lambda s: Silo("h", [{"text": "a", "label": "b"}]),  # type: ignore[list-item]
    lambda s: Silo("h", s[0].train, test=FRAME),
    lambda s: Silo.from_pandas("h", [{"text": "a"}]),
    lambda s: Silo.from_pandas("h", FRAME),
    lambda s: Silo.from_dataset("h", FRAME),
    lambda s: FedAvg(rouns=3),  # type: ignore[call-arg]
    lambda s: FedAvg(rounds="one", epochs=0),  # type: ignore[arg-type]
    lambda s: FedKD(student_layers=0),
    lambda s: TrainingSettings(learning_rate=-1),
    lambda s: TrainingSettings(learning_rate="fast", batch_size="x"),  # type: ignore[arg-type]
    lambda s: RunSettings(record="maybe"),  # type: ignore[arg-type]
    lambda s: TrainingSettings(dp={"epsilom": 3}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_explained(wrong: Callable[[Any], object], hospitals: list[Silo]) -> None:
    with pytest.raises(SecureFLError) as caught:
        wrong(hospitals)
    assert caught.value.fix
    assert not re.search("pydantic|[Ii]nput should", str(caught.value))


def test_python_says_what_files_say() -> None:
    file = '[data]\ncorpus = "ade"\n[algorithm]\nname = "fedavg"\nrouns = 3\n'
    with pytest.raises(SettingsError) as by_file:
        loads(file)
    with pytest.raises(SettingsError) as by_class:
        FedAvg(rouns=3)  # type: ignore[call-arg]
    found, wanted = by_class.value, by_file.value
    assert (found.what, found.fix) == (wanted.what, wanted.fix)
    assert "did you mean rounds?" in found.fix and found.where == {
        "section": "FedAvg",
        "field": "rouns",
    }


def test_wrong_values_of_all_sections_are_told_at_once() -> None:
    text = '[data]\ncorpus = "ade"\n[training]\nlearning_rate = -1\nbatch_size = "x"\n'
    with pytest.raises(SettingsError) as caught:
        loads(f'{text}[protection]\nbits = 7\n[algorithm]\nname = "fedavgg"\n')
    for field in ("training.learning_rate", "training.batch_size", "protection.bits"):
        assert field in caught.value.what
    assert "did you mean fedavg?" in caught.value.what


# --- what it returns ---------------------------------------------------------


def test_a_result_is_short_and_tells_what_it_came_to(done: Result) -> None:
    assert re.fullmatch(
        r"<Result of fedavg over 3 hospitals, 1 round, .* test accuracy 0\.\d+>", repr(done)
    )
    assert "<table>" in done._repr_html_() and len(done._repr_html_()) < 2000


def test_a_silo_is_short_and_quotes_no_record(hospitals: list[Silo]) -> None:
    silo = replace(hospitals[0], public=hospitals[1].test)
    counts = [f"{len(getattr(silo, part))} {part}" for part in ("train", "dev", "test", "public")]
    assert repr(silo) == f"<Silo {silo.name}, party: {', '.join(counts)}>"


@pytest.mark.parametrize(
    ("texts", "pairs", "found"),
    [("one", None, "one text"), ([1], None, "int"), (["a"], [], "0 pairs"), (["a"], [2], "int")],
)
def test_others_are_not_predicted(texts: Any, pairs: Any, found: str, done: Result) -> None:
    with raises(DataError, found):
        done.predict(texts, pairs=pairs)


def chances(result: Result, model: str = "model") -> dict[str, float]:
    (found,) = result.predict(["a rash developed after the tablets"], model)
    return found["probabilities"]


def test_a_result_is_saved_and_loaded(done: Result, tmp_path: Path) -> None:
    loaded = Result.load(done.save(tmp_path / "kept"))
    assert chances(loaded) == pytest.approx(chances(done))
    assert loaded.document == done.document
    with raises(RunError, reason="exists"):
        done.save(tmp_path / "kept")
    with raises(RunError, reason="missing"):
        Result.load(tmp_path)


def test_own_models_are_saved_and_loaded(hospitals: list[Silo], tmp_path: Path) -> None:
    alone = small(Local(rounds=1), silos=hospitals).run()
    loaded = Result.load(alone.save(tmp_path / "kept"))
    assert set(loaded.models) == {f"{silo.name}/model" for silo in hospitals}
    own = "hospital-2/model"
    assert chances(loaded, own) == pytest.approx(chances(alone, own))
    with raises(RunError, reason="missing"):
        alone.predict(["a rash developed"])


def test_a_frame_of_the_history(done: Result) -> None:
    frame = done.to_frame()
    assert list(frame.columns[:4]) == ["party", "round", "split", "pooled"]
    assert set(map(type, frame["pooled"].tolist())) == {bool}
    assert {"party", "round", "split", "accuracy", "loss"} <= set(frame.columns)
    assert len(frame[frame.split == "test"]) >= 3 and "counts" not in frame.columns


@POOLED
def test_a_plot_is_shown_and_saved(done: Result, tmp_path: Path) -> None:
    drawn = done.plot()
    assert isinstance(drawn, Figure)
    lines = {line.get_label(): line for line in drawn.axes[0].lines}
    assert {"hospital-2, dev", "hospital-2, test"} < set(lines)
    values = numpy.asarray(lines["all records, test"].get_ydata()).tolist()
    assert values == [done.pooled("test")["accuracy"]]
    drawn.savefig(tmp_path / "plot.png")
    image = b"\x89PNG"
    assert (tmp_path / "plot.png").read_bytes().startswith(image)
    assert drawn._repr_png_().startswith(image)  # type: ignore[attr-defined]  # for notebooks
    with pytest.raises(DataError):
        done.plot("nothing")


def test_scores_go_to_a_table_if_asked_for(hospitals: list[Silo], tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    result = small(FedAvg(rounds=2), silos=hospitals, listener=to_csv(file, hospitals=True)).run()
    table = pandas.read_csv(file)
    assert set(table.who) - {"all records"} == {silo.name for silo in hospitals}
    last = table[(table.who == "hospital-2") & (table["round"] == 2) & (table.split == "test")]
    own = result.document["metrics"]["last"]["party"]["hospital-2"]["test"]
    assert last.set_index("name").value["accuracy"] == pytest.approx(own["accuracy"])


@POOLED
def test_a_model_is_evaluated_on_other_records(done: Result, hospitals: list[Silo]) -> None:
    everybody = [record for silo in hospitals for record in silo.test]
    assert done.evaluate(everybody)["accuracy"] == pytest.approx(done.pooled("test")["accuracy"])


# --- metrics and tasks of one's own ------------------------------------------


def block(title: str) -> str:
    (code,) = re.findall(rf'```python title="{title}"\n(.*?)```', PAGE, re.S)
    return str(code)


@POOLED
def test_a_metric_of_ones_own_is_as_documented(hospitals: list[Silo]) -> None:
    code = block("a metric of your own")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {"silos": hospitals}
    exec(code, names)  # noqa: S102 - our own page
    mean = names["result"].mean("test")["specificity"]
    own = names["result"].document["metrics"]["last"]["party"]
    assert mean == pytest.approx(sum(own[s.name]["test"]["specificity"] for s in hospitals) / 3)
    assert "specificity" not in names["result"].pooled("test")


def test_a_task_of_ones_own_is_as_documented(hospitals: list[Silo]) -> None:
    code = block("a task of your own")
    names: dict[str, Any] = {"silos": hospitals}
    names["FedAvg"] = FedAvg
    exec(code.replace('"fedavg"', "FedAvg(rounds=1)"), names)  # noqa: S102 - our own page
    task = Classification("classification", ("ade", "no-ade"), 64)
    plain = Federation(hospitals, FedAvg(rounds=1), task=task).run()
    assert names["result"].mean("test")["loss"] != plain.mean("test")["loss"]
