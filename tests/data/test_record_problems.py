"""What is wrong with records is found and counted; patients are in one split."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from secure_fl.cli.main import main
from secure_fl.config.load import loads, silos
from secure_fl.data.examples import Text
from secure_fl.data.loaders import FORMATS, Columns
from secure_fl.data.record_problems import (
    MANY,
    alike,
    counted_labels,
    problems,
    reversed_class,
    weighed,
)
from secure_fl.data.splits import Splits, describe
from secure_fl.errors import DataError
from secure_fl.settings import DPSettings, Kind, TaskSettings, TrainingSettings
from tests.support.raising import raises
from tests.support.record_files import SECRET, fails, jsonl, put

LABELS = ("a", "b")
CLASSES = TaskSettings(labels=LABELS)


def notes(*ids: str, label: str = "a") -> tuple[Text, ...]:
    return tuple(Text(id, f"the note {id}", label=label) for id in ids)


GOOD = Splits((*notes("1", "2"), *notes("3", label="b")))
LATER = Splits(
    (*notes("p/1"), *notes("q/2", label="b")), test=(*notes("p/3"), *notes("r/4", label="b"))
)
CASES = [
    (LATER, "1 patients are in both train and test"),
    (Splits((*GOOD.train, *notes("1"))), "1 texts of train are repeated"),
    (Splits(GOOD.train, dev=(*notes("1"), *notes("9", label="b"))), "in both train and dev"),
    (Splits(notes("1", "2")), "no record of train has the label b"),
    (Splits((*GOOD.train, *notes("4", label="c"))), "1 labels of train are not in the plan"),
    (Splits((*GOOD.train, Text("5", "unlabelled"))), "1 records of train have no label"),
    (Splits(GOOD.train, test=(*LATER.train, Text("5", "x"))), "1 records of test have no label"),
    (Splits((*GOOD.train, Text("6", "long " * 9, label="a"))), "1 of 4 texts of train are cut"),
]  # fmt: skip


@pytest.mark.parametrize(("splits", "said"), CASES, ids=[said for _, said in CASES])
def test_a_fault_is_found_alone(splits: Splits, said: str) -> None:
    def lengths(texts: object) -> list[int]:
        return [len(text.split()) for text in texts]  # type: ignore[attr-defined]

    found = list(
        problems(
            "north", splits, CLASSES,
            lengths=lengths, longest=5,
        )
    )  # fmt: skip
    assert [one.party for one in found] == ["north"] and said in found[0].what and found[0].fix
    assert not list(problems("n", GOOD, CLASSES, lengths=lengths, longest=5))


def test_labels_outside_the_plan_are_compared_with_those_of_the_plan() -> None:
    (found,) = problems("north", Splits((*GOOD.train, *notes("4", label="c"))), CLASSES)
    assert "task.labels: a, b" in found.fix and "data describe" in found.fix


def test_hospitals_with_other_labels_are_a_problem_before_training(tmp_path: Path) -> None:
    spelled = {"nord": ("ade", "no-ade"), "ost": ("ade", "no-ade"), "sued": ("ADE", "NO-ADE")}
    text = '[model]\nname = "tiny"\n[algorithm]\nname = "fedavg"\n'
    for name, labels in spelled.items():
        rows = [f"{name} {n},{labels[n % 2]}" for n in range(9)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows, ""]))
        text += f'[[data.party]]\nname = "{name}"\ntrain = "{name}.csv"\n'
    (tmp_path / "study.toml").write_text(text)
    found = CliRunner().invoke(main, ["preflight", str(tmp_path / "study.toml")])
    assert "different label sets" in found.output and "sued lacks ade, no-ade" in found.output


def test_a_rare_class_is_worth_a_word_unless_somebody_said_what_it_counts() -> None:
    few = Splits((*notes(*"12345678"), *notes("9", label="b")))
    (found,) = problems("north", few, CLASSES)
    assert "1 of 9 training records have the label b" in found.what
    assert "task.positive" in found.fix
    assert not list(problems("north", few, CLASSES, weighed=True))
    task, training = TaskSettings(labels=LABELS), TrainingSettings()
    private = TrainingSettings(dp=DPSettings(epsilon=8.0, delta=1e-3))
    assert not weighed(task, training) and weighed(task, private)
    assert weighed(TaskSettings(labels=LABELS, positive="b"), training)
    assert weighed(task, TrainingSettings(class_weights="none"))


def test_a_column_of_many_values_is_no_column_of_classes() -> None:
    names = tuple(f"value {n}" for n in range(MANY))
    many = Splits(tuple(Text(name, name, label=name) for name in names))
    for labels in (None, names):
        (found,) = problems("north", many, TaskSettings(labels=labels), weighed=True)
        assert f"there are {MANY} labels" in found.what and "regression" in found.fix
    fewer = Splits(many.train[1:])
    assert not list(problems("north", fewer, TaskSettings(), weighed=True))


def test_texts_to_complete_are_not_without_a_label() -> None:
    found = describe(Splits((Text("1", "a prompt", "its completion"),)), "completion")
    assert found["train"]["labels"] == {}  # type: ignore[index]


def test_sites_with_the_same_file_are_named() -> None:
    other = Splits(notes("7", "8"))
    (found,) = alike({"north": GOOD, "south": GOOD, "west": other})
    assert found.party == "north" and "south" in found.what
    assert "of its texts" in next(iter(alike({"a": GOOD, "b": Splits(GOOD.train[:2])}))).what


def study(folder: Path, patients: list[str]) -> str:
    lines = [
        json.dumps({"id": n, "who": who, "text": f"note {n} of them", "label": "ab"[n % 2]})
        for n, who in enumerate(patients)
    ]
    (folder / "notes.jsonl").write_text("\n".join(lines))
    party = 'train = "notes.jsonl"\ndev = 0.3\ntest = 0.3\n'
    return (
        'task = {labels = ["a", "b"]}\nalgorithm = {name = "fedavg"}\nmodel = {layers = 1}\n'
        '[data]\ncolumns = {patient = "who"}\n'
        + "".join(f'[[data.party]]\nname = "{name}"\n{party}' for name in ("n", "s", "w"))
    )


def ids_of_patients(match: re.Match[str]) -> str:
    return f'"id": "p{int(match[1]) % 20}/{match[1]}"'


def test_no_patient_is_in_two_splits(tmp_path: Path) -> None:
    text = study(tmp_path, [f"patient {n % 20}" for n in range(100)])
    for silo in silos(loads(text, tmp_path)):
        parts = [{e.id.split("/")[0] for e in part} for part in (silo.train, silo.dev, silo.test)]
        assert all(parts) and sum(map(len, parts)) == 20
        splits = Splits(tuple(silo.train), tuple(silo.dev), tuple(silo.test))
        shared = describe(splits)["shared_patients"]
        assert shared == {"train/dev": 0, "train/test": 0, "dev/test": 0}
    with_ids = text.replace('columns = {patient = "who"}\n', "")
    rows = (tmp_path / "notes.jsonl").read_text()
    (tmp_path / "notes.jsonl").write_text(re.sub(r'"id": (\d+)', ids_of_patients, rows))
    for silo in silos(loads(with_ids, tmp_path)):
        found = [{e.id.split("/")[0] for e in part} for part in (silo.train, silo.dev, silo.test)]
        assert all(found) and sum(map(len, found)) == 20
    (tmp_path / "notes.jsonl").write_text(rows)
    apart = text.replace('columns = {patient = "who"}\n', "")  # without the column they are
    (silo, *_) = silos(loads(apart, tmp_path))
    of = [{int(e.id) % 20 for e in part} for part in (silo.train, silo.test)]
    assert of[0] & of[1]


def test_a_record_that_says_not_whose_it_is_is_refused(tmp_path: Path) -> None:
    with raises(DataError, field="patient"):
        silos(loads(study(tmp_path, ["p", "", "q"]), tmp_path))


def test_the_command_says_what_to_do(tmp_path: Path) -> None:
    plan = tmp_path / "study.toml"
    plan.write_text(study(tmp_path, [f"p{n}" for n in range(100)]))
    found = CliRunner().invoke(main, ["preflight", str(plan), "--json"])
    said = [one["what"] for one in json.loads(found.output)["problems"]]
    assert found.exit_code == 2 and any("equal those of" in what for what in said)
    one = CliRunner().invoke(main, ["preflight", str(plan), "--party", "n"])
    assert one.exit_code == 0 and "no problems" in one.output


# --- a warning names the class of F1 where it looks like the negative one -----------------------


@pytest.mark.parametrize(
    ("wanted", "last"),
    [("ade", "no-ade"), ("yes", "no"), ("1", "0"), ("fit", "not fit"), ("ill", "Healthy")],
)
def test_a_negative_last_label_is_named_with_two_ways_to_score_the_other(
    wanted: str, last: str
) -> None:
    labels = (wanted, last)
    what, fix = reversed_class(TaskSettings(labels=labels), labels) or ("", "")
    assert f"scores of {last!r}" in what
    assert f'task.positive = "{wanted}"' in fix and f'labels = ["{last}", "{wanted}"]' in fix
    assert reversed_class(TaskSettings(labels=labels, positive=wanted), labels) is None
    assert reversed_class(TaskSettings(labels=labels, positive=last), labels) is None  # a choice
    assert reversed_class(TaskSettings(labels=labels[::-1]), labels[::-1]) is None


def test_the_larger_class_is_named_with_its_share() -> None:
    labels = ("fracture", "sprain")
    task = TaskSettings(labels=labels)
    what, _ = reversed_class(task, labels, {"fracture": 20, "sprain": 80}) or ("", "")
    assert "80 % of the records" in what
    assert reversed_class(task, labels, {"fracture": 45, "sprain": 55}) is None
    assert reversed_class(task, labels) is None


def test_tasks_without_one_scored_class_have_no_such_problem() -> None:
    assert reversed_class(TaskSettings(kind="ner", labels=("Drug", "No")), ("Drug", "No")) is None
    three = ("a", "b", "none")
    assert reversed_class(TaskSettings(labels=three), three) is None


def test_preflight_counts_the_labels_of_records_without_declared_ones() -> None:
    train = tuple(Text(str(n), f"note {n}", label="ade" if n % 4 else "no-ade") for n in range(8))
    assert counted_labels(train) == {"ade": 6, "no-ade": 2}
    found = problems("north", Splits(train), TaskSettings(), weighed=True)
    assert ["scores of 'no-ade'" in one.what for one in found] == [True]


# --- every broken file or row is refused by an error that names the fault and quotes no record --


NAN = float("nan")


BROKEN_ROWS = [
    ("classification", {"note": SECRET}, "text"),
    ("classification", {SECRET: 1}, "text"),
    *(("classification", {"text": text}, "text") for text in (None, 5, "  ", "\ud800")),
    ("classification", {"text": "x", "text2": 3}, "pair"),
    *(("classification", {"text": "x", "label": y}, "label") for y in (0.5, NAN, [SECRET])),
    ("classification", {"text": "x", "id": [1]}, "id"),
    ("pair", {"text": SECRET}, "pair"),
    ("pair", {"text": SECRET, "pair": ""}, "pair"),
    *(
        ("regression", {"text": "x", "label": y}, "label")
        for y in (SECRET, True, 10**400, NAN, "inf")
    ),
    ("ner", {"text": SECRET}, "tokens"),
    ("ner", {"tokens": [], "tags": []}, "tokens"),
    ("ner", {"tokens": [SECRET, ""], "tags": ["O", "O"]}, "tokens"),
    ("ner", {"tokens": {"a": 1}, "tags": ["O"]}, "tokens"),
    ("ner", {"tokens": ["x"], "tags": ["O", "O"]}, "tags"),
    ("ner", {"tokens": ["x", "y"], "tags": ["O", SECRET]}, "tags"),
    *(("ner", {"tokens": ["x"], "tags": [tag]}, "tags") for tag in ("B-", None)),
    ("ranking", {"history": [], "candidates": ["t"]}, "clicks"),
    ("ranking", {"history": SECRET, "candidates": ["t"], "clicks": [1]}, "history"),
    ("ranking", {"history": [], "candidates": [], "clicks": []}, "candidates"),
    *(
        ("ranking", {"history": [], "candidates": ["t"], "clicks": clicks}, "clicks")
        for clicks in ([2], [])
    ),
]


@pytest.mark.parametrize(("kind", "row", "field"), BROKEN_ROWS)
def test_a_broken_row(tmp_path: Path, kind: Kind, row: object, field: str) -> None:
    good = {"text": "x", "pair": "y", "label": 1, "tokens": ["x"], "tags": ["O"],
            "history": [], "candidates": ["t"], "clicks": [1]}  # fmt: skip
    path = put(tmp_path, "a.jsonl", jsonl(good, row))
    assert fails(path, kind, fix=False).where == {"file": str(path), "line": 2, "field": field}


def test_an_error_shows_the_value_and_how_to_name_a_column(tmp_path: Path) -> None:
    error = fails(put(tmp_path, "a.jsonl", jsonl({"text": "x", "label": 0.5})), "classification")
    assert "a fraction" in error.what
    path = put(tmp_path, "a.csv", f"text,label,{SECRET}\nx,1,y\n")
    error = fails(path, "classification", columns=Columns(label="grade"))
    assert "text, label, (a name of 18 characters, withheld)" in error.what
    assert "grade" in error.fix


BROKEN_FILES = [
    ("a.csv", f"text,label\n{SECRET}\n", 2),
    ("a.csv", f'text,label\n"{SECRET},1\n', 2),
    ("a.csv", "text,label,text\nx,1,y\n", 1),
    ("a.csv", b"text,label\nx,1\n\xffy,2\n", 3),
    ("a.tsv", "text\tlabel\nx\n", 2),
    ("a.jsonl", '{"text": "x"}\n{"text": "' + SECRET, 2),
    ("a.jsonl", f'["{SECRET}"]\n', 1),
    ("a.jsonl", "[" * 100_000, 1),
    ("a.jsonl", gzip.compress(jsonl({"text": SECRET}).encode(), mtime=0), 1),
    *((name, text, None) for name, text in (
        ("a.csv", ""), ("a.csv", "text,label\n"), ("a.jsonl", "\n\n"), ("a.conll", "\n\n"),
        ("a.parquet", SECRET), ("a.parquet", ""), ("a.docx", SECRET),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "line"), BROKEN_FILES)
def test_a_broken_file(tmp_path: Path, name: str, content: str | bytes, line: int | None) -> None:
    kind: Kind = "ner" if name.endswith("conll") else "classification"
    error = fails(put(tmp_path, name, content), kind)
    assert str(error.where["file"]) == str(tmp_path / name)
    assert error.where.get("line") == line


@pytest.mark.parametrize("cut", [slice(0, 30), slice(5, None), slice(0, 0)])
def test_broken_gzip(tmp_path: Path, cut: slice) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl({"text": SECRET}).encode() * 9)[cut])
    assert str(fails(path, "classification").where["file"]) == str(path)


def test_damaged_gzip_inside(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(2000), mtime=0))
    packed[-5] ^= 255  # the checksum
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    fails(path, "classification")


def test_wrong_places(tmp_path: Path) -> None:
    for path, form in (("none.csv", None), ("none", "brat"), ("", "csv")):
        error = fails(tmp_path / path, "classification", format=form)
        assert str(error.where["file"]) == str(tmp_path / path)
    error = fails(put(tmp_path, "a.csv", "text\nx\n"), "classification", format="xls")
    assert error.where["field"] == "format" and all(name in error.fix for name in FORMATS)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.csv", "text\nx\n")

    def refuse(*_: object) -> None:  # root, the usual user in containers, may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert fails(path, "classification").where["file"] == path
