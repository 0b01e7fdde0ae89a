"""Every broken file or row is refused by an error that names the fault and quotes no record."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from secure_fl.data.loaders import Columns, load
from secure_fl.errors import DataError
from secure_fl.settings import Kind

SECRET = "Mrs Example coughs"


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
    ("classification", {"note": SECRET}, "text", "columns found: note"),
    ("classification", {SECRET: 1}, "text", "(a name of 18 characters, withheld)"),
    ("classification", {"text": None}, "text", "found nothing (null), allowed is text"),
    ("classification", {"text": 5}, "text", "found a whole number"),
    ("classification", {"text": "  "}, "text", "empty"),
    ("classification", {"text": "\ud800"}, "text", "surrogate"),
    ("classification", {"text": "x", "text2": 3}, "pair", "found a whole number"),
    ("classification", {"text": "x", "label": 0.5}, "label", "a fraction"),
    ("classification", {"text": "x", "label": float("nan")}, "label", "NaN"),
    ("classification", {"text": "x", "label": [SECRET]}, "label", "a list"),
    ("classification", {"text": "x", "id": [1]}, "id", "a list"),
    ("pair", {"text": SECRET}, "pair", "there is no such column"),
    ("pair", {"text": SECRET, "pair": ""}, "pair", "missing"),
    ("regression", {"text": "x", "label": SECRET}, "label", "found text, no number"),
    ("regression", {"text": "x", "label": True}, "label", "found true/false"),
    ("regression", {"text": "x", "label": 10**400}, "label", "no number"),
    ("regression", {"text": "x", "label": float("nan")}, "label", "NaN"),
    ("regression", {"text": "x", "label": "inf"}, "label", "infinite"),
    ("ner", {"text": SECRET}, "tokens", "columns found: text"),
    ("ner", {"tokens": [], "tags": []}, "tokens", "empty"),
    ("ner", {"tokens": [SECRET, ""], "tags": ["O", "O"]}, "tokens", "entry 2 is text"),
    ("ner", {"tokens": {"a": 1}, "tags": ["O"]}, "tokens", "a dict"),
    ("ner", {"tokens": ["x"], "tags": ["O", "O"]}, "tags", "2 tags for 1 tokens"),
    ("ner", {"tokens": ["x", "y"], "tags": ["O", SECRET]}, "tags", "token 2"),
    ("ner", {"tokens": ["x"], "tags": ["B-"]}, "tags", "B- I- E- S- L- U-"),
    ("ner", {"tokens": ["x"], "tags": [None]}, "tags", "entry 1 is nothing"),
    ("ranking", {"history": [], "candidates": ["t"]}, "clicks", "no such column"),
    ("ranking", {"history": SECRET, "candidates": ["t"], "clicks": [1]}, "history", "titles"),
    ("ranking", {"history": [], "candidates": [], "clicks": []}, "candidates", "no title"),
    ("ranking", {"history": [], "candidates": ["t"], "clicks": [2]}, "clicks", "1/0"),
    ("ranking", {"history": [], "candidates": ["t"], "clicks": []}, "clicks", "0 clicks for 1"),
]


@pytest.mark.parametrize(("kind", "row", "field", "message"), BROKEN_ROWS)
def test_a_broken_row(tmp_path: Path, kind: Kind, row: object, field: str, message: str) -> None:
    good = {"text": "x", "pair": "y", "label": 1, "tokens": ["x"], "tags": ["O"],
            "history": [], "candidates": ["t"], "clicks": [1]}  # fmt: skip
    path = put(tmp_path, "a.jsonl", jsonl(good, row))
    error = fails(path, kind)
    assert error.where == {"file": str(path), "line": 2, "field": field}
    assert message in str(error)


BROKEN_FILES = [
    ("a.csv", f"text,label\n{SECRET}\n", "line 2: found 1 fields, the header has 2"),
    ("a.csv", f'text,label\n"{SECRET},1\n', "broken quoting"),
    ("a.csv", "text,label,text\nx,1,y\n", "line 1: the header names a column twice: text"),
    ("a.csv", "", "holds no record"),
    ("a.csv", "text,label\n", "holds no record"),
    ("a.csv", b"text,label\nx,1\n\xffy,2\n", "line 3: is not UTF-8"),
    ("a.tsv", "text\tlabel\nx\n", "line 2: found 1 fields"),
    ("a.jsonl", '{"text": "x"}\n{"text": "' + SECRET, "line 2: is not a JSON object"),
    ("a.jsonl", f'["{SECRET}"]\n', "line 1: is not a JSON object"),
    ("a.jsonl", "[" * 100_000, "line 1: is not a JSON object"),
    ("a.jsonl", "\n\n", "holds no record"),
    ("a.jsonl", gzip.compress(jsonl({"text": SECRET}).encode(), mtime=0), "with .gz at the end"),
    ("a.parquet", SECRET, "is no parquet file, or broken"),
    ("a.parquet", "", "is no parquet file, or broken"),
    ("a.docx", SECRET, "the suffix does not tell the format"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN_FILES)
def test_a_broken_file(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    error = fails(put(tmp_path, name, content), "classification")
    assert error.where["file"] == str(tmp_path / name) or error.where["file"] == tmp_path / name
    assert message in str(error)
    assert error.fix


@pytest.mark.parametrize("cut", [slice(0, 30), slice(5, None), slice(0, 0)])
def test_broken_gzip(tmp_path: Path, cut: slice) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl({"text": SECRET}).encode() * 9)[cut])
    error = fails(path, "classification")
    assert "gzip" in str(error) or "no record" in str(error)


def test_damaged_gzip_inside(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(2000), mtime=0))
    packed[-5] ^= 255  # the checksum
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    fails(path, "classification")


def test_wrong_places(tmp_path: Path) -> None:
    assert "no such file" in str(fails(tmp_path / "none.csv", "classification"))
    assert "no such file" in str(fails(tmp_path / "none", "classification", format="brat"))
    assert "is a folder" in str(fails(tmp_path, "classification", format="csv"))
    error = fails(put(tmp_path, "a.csv", "text\nx\n"), "classification", format="xls")
    assert "allowed: csv, tsv, jsonl, parquet, conll, brat, mind, datasets" in error.fix


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.csv", "text\nx\n")

    def refuse(*_: object) -> None:  # root, whom containers like to be, may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "may not be read" in str(fails(path, "classification"))


def test_a_named_column_must_be_there(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "text,label\nx,1\n")
    error = fails(path, "classification", columns=Columns(label="grade"))
    assert "columns found: text, label" in str(error)
    assert "call it grade" in error.fix
