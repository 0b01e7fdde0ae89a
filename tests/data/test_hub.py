"""Data sets of the `datasets` library, saved in folders or named on the hub, which no test asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.data.examples import Tagged, Text
from secure_fl.data.loaders import load
from secure_fl.errors import DataError
from secure_fl.settings import Kind


def fails(source: Path | str, kind: Kind = "ner") -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, kind)
    assert caught.value.fix
    return caught.value


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
    assert load(folder, "classification") == (Text("0", "x", None, "1"), Text("1", "y"))
    tagged = (Tagged("0", ("x", "y"), ("O", "B-D")), Tagged("1", ("y",), ("B-D",)))
    assert load(folder, "ner") == tagged
    assert fails(f"{folder}:train").where == {"file": str(folder)}
    both = saved(tmp_path / "both", "train", "dev")
    assert load(f"{both}:dev", "ner") == tagged
    assert "train, dev" in fails(both).what
    assert fails(f"{both}:test").where["split"] == "test"


def test_a_folder_of_plain_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nx,1\n")
    assert load(tmp_path, "classification") == (Text("0", "x", None, "1"),)


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    assert fails(tmp_path).where == {"file": tmp_path}


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
    failure = fails(f"hub:{name}")
    assert f"hub:{name}".startswith(str(failure.where["source"])) and failure.fix
    assert asked == tries


def test_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    held = datasets.DatasetDict({"test": datasets.Dataset.from_list([{"text": "x"}])})
    monkeypatch.setattr(datasets, "load_dataset", lambda path, config: held)
    assert load("hub:someone/notes:test", "classification") == (Text("0", "x"),)
    assert fails("hub:someone/notes:train").where["split"] == "train"
    assert fails("hub:").where == {"source": ""}
