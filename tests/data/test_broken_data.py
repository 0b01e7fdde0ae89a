"""Every broken file or row is refused by an error that names the fault and quotes no record."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from secure_fl.data.loaders import FORMATS, Columns, load
from secure_fl.errors import DataError
from secure_fl.settings import Kind

SECRET = "Mrs Example coughs"
NAN = float("nan")


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return path


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def fails(
    source: Path | str, kind: Kind, format: str | None = None, columns: Columns | None = None
) -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, kind, format=format, columns=columns)
    assert SECRET not in str(caught.value)
    # A traceback must not quote the record either.
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return caught.value


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
    assert fails(path, kind).where == {"file": str(path), "line": 2, "field": field}


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
    assert error.where.get("line") == line and error.fix


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
