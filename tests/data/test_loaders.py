"""Every table format gives the same examples, whatever their spelling.

All examples are made up here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fl.data.examples import Impression, Tagged, Text
from secure_fl.data.loaders import Columns, load
from secure_fl.settings import Kind
from tests.support.record_files import SECRET, fails, jsonl, put

RECORDS = (
    Text("7", SECRET, "no, she does not", "1"),
    Text("8", 'a line\nbreak, a comma; a "quote" and ü', None, None),
)


JSONL = jsonl(
    {"idx": 7, "text1": SECRET, "text2": "no, she does not", "label": 1},
    {"idx": 8, "text1": RECORDS[1].text, "text2": None, "label": None},
)
CSV = (
    f'idx,text1,text2,label\n7,{SECRET},"no, she does not",1\n'
    '8,"a line\nbreak, a comma; a ""quote"" and ü",,\n'
)
SEMICOLONS = (
    f'idx;text1;text2;label\n7;{SECRET};"no, she does not";1\n'
    '8;"a line\nbreak, a comma; a ""quote"" and ü";;\n'
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.jsonl.gz", JSONL),
        ("a.json.gz", JSONL),
        ("a.NDJSON", JSONL.replace("\n", "\r\n\r\n")),
        ("a.csv", CSV),
        ("a.csv.gz", CSV),
        ("marked.csv", "\ufeff" + CSV),
        ("semicolons.csv", SEMICOLONS),
    ],
)
def test_the_same_records_in_every_spelling(tmp_path: Path, name: str, content: str) -> None:
    assert load(put(tmp_path, name, content), "classification") == RECORDS


def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [json.loads(line) for line in JSONL.splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", "classification") == RECORDS


def test_tab_separated_quotes_are_ordinary_characters(tmp_path: Path) -> None:
    path = put(tmp_path, "a.tsv", 'sentence\tlabel\n"so it begins\tyes\n\nit ends" \t\n')
    first, second = load(path, "classification")
    assert first == Text("0", '"so it begins', None, "yes")
    assert second == Text("1", 'it ends" ', None, None)


@pytest.mark.parametrize(
    ("kind", "found", "label"),
    [
        ("classification", 3, "3"),
        ("classification", True, "true"),
        ("classification", False, "false"),
        ("classification", 2.0, "2"),
        ("classification", " mild ", "mild"),
        ("classification", "", None),
        ("regression", 3, 3.0),
        ("regression", "-2.5e0", -2.5),
        ("regression", " ", None),
        ("regression", None, None),
    ],
)
def test_labels(tmp_path: Path, kind: Kind, found: object, label: object) -> None:
    path = put(tmp_path, "a.jsonl", jsonl({"text": "x", "label": found}))
    (example,) = load(path, kind)
    assert isinstance(example, Text)
    assert example.label == label
    assert type(example.label) is type(label)


@pytest.mark.parametrize(
    ("found", "labels"),
    [
        ("True False True", "true false true"),
        ("TRUE TRUE", "true true"),
        ("1.0 0.0 -2", "1 0 -2"),
        ("True False Perhaps", "True False Perhaps"),
        ("1.0 1.5", "1.0 1.5"),
        ("A a", "A a"),
    ],
)
def test_a_table_spells_classes_as_typed_formats_do(
    tmp_path: Path, found: str, labels: str
) -> None:
    path = put(tmp_path, "a.csv", "text,label\n" + "".join(f"x,{one}\n" for one in found.split()))
    every = [example.label for example in load(path, "classification") if isinstance(example, Text)]
    assert every == labels.split()


def test_a_file_without_labels_is_unlabelled(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", jsonl({"text": "x"}))
    assert load(path, "classification") == (Text("0", "x"),)


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "nr,q,a,grade,text\nn1,why,so,2,other\n")
    columns = Columns(id="nr", text="q", pair="a", label="grade")
    assert load(path, "pair", columns=columns) == (Text("n1", "why", "so", "2"),)


def test_the_format_can_be_forced(tmp_path: Path) -> None:
    path = put(tmp_path, "export.txt", jsonl({"text": "x"}))
    assert load(path, "classification", format="jsonl") == (Text("0", "x"),)


def test_tagged_sentences_and_impressions(tmp_path: Path) -> None:
    lists = put(tmp_path, "a.jsonl", jsonl({"tokens": ["x", "y"], "tags": ["O", "B-D"]}))
    words = put(tmp_path, "a.csv", "tokens,tags\nx y,O B-D\n")
    assert load(lists, "ner") == load(words, "ner") == (Tagged("0", ("x", "y"), ("O", "B-D")),)
    shown = put(
        tmp_path, "b.jsonl", jsonl({"history": [], "candidates": ["t", "u"], "clicks": [1, False]})
    )
    assert load(shown, "ranking") == (Impression("0", (), ("t", "u"), (True, False)),)


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys, secure_fl.data.splits, secure_fl.data.partition; "
        "sys.exit(bool({'torch', 'datasets', 'pyarrow', 'transformers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- data sets of the `datasets` library, saved in folders or named on the hub, which no test asks


def saved(folder: Path, *splits: str) -> Path:
    import datasets

    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B-D"])),
        }
    )
    rows = [
        {"text": "x", "label": 1, "tokens": ["x", "y"], "ner_tags": [0, 1]},
        {"text": "y", "label": -1, "tokens": ["y"], "ner_tags": [1]},
    ]
    one = datasets.Dataset.from_list(rows, features=features)
    (datasets.DatasetDict(dict.fromkeys(splits, one)) if splits else one).save_to_disk(folder)
    return folder


def test_a_saved_data_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "one")
    assert load(folder, "classification") == (Text("0", "x", None, "yes"), Text("1", "y"))
    tagged = (Tagged("0", ("x", "y"), ("O", "B-D")), Tagged("1", ("y",), ("B-D",)))
    assert load(folder, "ner") == tagged
    assert fails(f"{folder}:train", "ner").where == {"file": str(folder)}
    both = saved(tmp_path / "both", "train", "dev")
    assert load(f"{both}:dev", "ner") == tagged
    assert "train, dev" in fails(both, "ner").what
    assert fails(f"{both}:test", "ner").where["split"] == "test"


def test_classes_that_are_listed_in_another_order_are_the_same_labels(tmp_path: Path) -> None:
    """Each hospital's data set numbers its classes by its own list of names."""
    import datasets

    found = []
    for number, names in enumerate((["ja", "nein"], ["nein", "ja"])):
        rows = datasets.Dataset.from_dict({"text": ["x", "y"], "label": ["ja", "nein"]})
        rows = rows.cast_column("label", datasets.ClassLabel(names=names))
        rows.save_to_disk(tmp_path / str(number))
        found.append(load(tmp_path / str(number), "classification"))
    assert found[0] == found[1] == (Text("0", "x", None, "ja"), Text("1", "y", None, "nein"))


def test_a_folder_of_plain_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nx,1\n")
    assert load(tmp_path, "classification") == (Text("0", "x", None, "1"),)


def test_a_missing_column_is_a_fault_of_the_header(tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    file.write_text('"Text","Label"\n"x\ny","ade"\n')
    error = fails(file, "classification")
    assert error.where["line"] == 1 and "Text" in error.fix.partition(";")[0]


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    assert fails(tmp_path, "ner").where == {"file": tmp_path}


@pytest.mark.parametrize(
    ("name", "error", "tries"),
    [
        ("notes", FileNotFoundError, [("notes", None)]),
        ("someone/notes", FileNotFoundError, [("someone/notes", None), ("someone", "notes")]),
        ("someone/notes", ConnectionError, [("someone/notes", None)]),
        ("someone/notes/small:train", FileNotFoundError, [("someone/notes", "small")]),
    ],
)
def test_the_hub_does_not_have_it(
    name: str,
    error: type[Exception],
    tries: list[tuple[str, str | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets

    asked: list[tuple[str, str | None]] = []

    def refuse(path: str, config: str | None) -> None:
        asked.append((path, config))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    failure = fails(f"hub:{name}", "ner")
    assert f"hub:{name}".startswith(str(failure.where["source"]))
    assert asked == tries


def test_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    held = datasets.DatasetDict({"test": datasets.Dataset.from_list([{"text": "x"}])})
    monkeypatch.setattr(datasets, "load_dataset", lambda path, config: held)
    assert load("hub:someone/notes:test", "classification") == (Text("0", "x"),)
    assert fails("hub:someone/notes:train", "ner").where["split"] == "train"
    assert fails("hub:", "ner").where == {"source": ""}


# --- several labels -------------------------------------------------------------------------------

CODED = (Text("1", "a", label=("I10", "E11.9")), Text("2", "b", label=()), Text("3", "c"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text,label\n1,a,I10; E11.9\n2,b,\n"),
        ("a.csv", "id;text;labels\n1;a;I10|E11.9\n2;b;\n"),
        ("a.tsv", "id\ttext\tlabel\n1\ta\tI10;E11.9;\n2\tb\t\n"),
        ("a.jsonl", jsonl({"id": 1, "text": "a", "label": ["I10", "E11.9"]},
                          {"id": 2, "text": "b", "label": []},
                          {"id": 3, "text": "c", "label": None})),
    ],
)  # fmt: skip
def test_several_labels_in_every_format(tmp_path: Path, name: str, content: str) -> None:
    found = load(put(tmp_path, name, content), "multilabel")
    assert found == CODED[: len(found)] and len(found) >= 2


def test_several_labels_of_other_libraries(tmp_path: Path) -> None:
    import datasets
    import pandas

    from secure_fl.data.silo import Silo
    from secure_fl.data.splits import write

    columns = {"id": ["1", "2"], "text": ["a", "b"], "label": [["I10", "E11.9"], []]}
    plain = datasets.Dataset.from_dict(columns)
    names = datasets.Sequence(datasets.ClassLabel(names=["E11.9", "I10"]))
    named = plain.cast_column("label", names)
    assert named[0]["label"] == [1, 0]
    for given in (plain, named):
        assert Silo.from_dataset("h", given, kind="multilabel").train == CODED[:2]
    named.save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved", "multilabel") == CODED[:2]
    frame = pandas.DataFrame(columns)
    assert Silo.from_pandas("h", frame, kind="multilabel").train == CODED[:2]
    frame.to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", "multilabel") == CODED[:2]
    write(CODED, tmp_path / "again.jsonl")
    assert load(tmp_path / "again.jsonl", "multilabel") == CODED


@pytest.mark.parametrize(
    ("label", "what"),
    [
        (["I10", "I10"], "named twice"),
        ("I10;I10", "named twice"),
        (["I10", None], "is empty"),
        (["I10", ""], "is empty"),
        ([{"code": SECRET}], "instead of a class"),
        (10, "instead of labels"),
        (f"['I10', '{SECRET}']", "written as text"),
    ],
)
def test_wrong_lists_of_labels_are_refused(tmp_path: Path, label: object, what: str) -> None:
    path = put(tmp_path, "a.jsonl", jsonl({"text": SECRET, "label": label}))
    error = fails(path, "multilabel")
    assert what in error.what
    assert error.where == {"file": str(path), "line": 1, "field": "label"}
