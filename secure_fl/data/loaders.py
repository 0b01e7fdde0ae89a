"""Read a file, a folder or a data set of the hub into examples.

    load("notes.csv", "classification")
    load("corpus/", "ner")                                     # BRAT: .txt beside .ann
    load("pairs.tsv", "pair", columns=Columns(text="question", pair="answer"))
    load("hub:owner/name:train", "classification")

Records without an id are numbered by position. Give an id column if the file may grow later, so
that each record stays in its split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from secure_fl.data.examples import Example
from secure_fl.data.file_readers import (
    brat_rows,
    conll_rows,
    csv_rows,
    json_rows,
    mind_rows,
    parquet_rows,
    reading,
    tsv_rows,
)
from secure_fl.data.library_rows import PREFIX, folder_and_split, hub_rows
from secure_fl.data.records import build
from secure_fl.data.rows import DEFAULT_NAMES, Columns, Row
from secure_fl.errors import DataError
from secure_fl.settings import Kind

__all__ = ["FORMATS", "SUFFIXES", "Columns", "load"]

FORMATS: Mapping[str, Callable[[str], Iterator[Row]]] = MappingProxyType(
    {
        "csv": csv_rows,
        "tsv": tsv_rows,
        "jsonl": json_rows,
        "parquet": parquet_rows,
        "conll": conll_rows,
        "brat": brat_rows,
        "mind": mind_rows,
        "datasets": hub_rows,
    }
)

SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        ".csv": "csv",
        ".tsv": "tsv",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".json": "jsonl",
        ".parquet": "parquet",
        ".conll": "conll",
        ".iob": "conll",
        ".iob2": "conll",
        ".bio": "conll",
        ".bioes": "conll",
    }
)


def load(
    source: str | Path,
    kind: Kind,
    *,
    format: str | None = None,
    columns: Columns | None = None,
    labelled: bool = True,
) -> tuple[Example, ...]:
    """Read all examples of a source; `format` overrides the suffix or content.

    `labelled=False` ignores labels and tags.
    """
    rows, columns = rows_of(source, format), columns or Columns()
    if not labelled:
        rows = _unlabelled(rows, columns)
        columns = columns.model_copy(update={"label": None, "tags": None})
    examples = build(rows, kind, columns)
    if not examples:
        raise DataError(
            "contains no record", fix="check that the export is complete", file=_located(source)
        )
    return examples


def rows_of(source: str | Path, format: str | None = None) -> Iterator[Row]:
    """The unconverted rows of a source; `format` overrides the suffix or content."""
    name = _located(source)
    chosen = format or _detect(name)
    if chosen not in FORMATS:
        allowed = f"allowed: {', '.join(FORMATS)}"
        raise DataError("the format is unknown", fix=allowed, file=name, field="format")
    return FORMATS[chosen](name)


def _located(source: str | Path) -> str:
    name = str(source)
    return name if name.startswith(PREFIX) else str(Path(name).expanduser())


def _unlabelled(rows: Iterator[Row], columns: Columns) -> Iterator[Row]:
    hidden = {*DEFAULT_NAMES["label"], *DEFAULT_NAMES["tags"], columns.label, columns.tags}
    hidden -= {columns.id, columns.text, columns.pair, columns.tokens}
    for row in rows:
        yield replace(row, values={k: v for k, v in row.values.items() if k not in hidden})


def _detect(source: str) -> str:
    if source.startswith(PREFIX):
        return "datasets"
    path, _ = folder_and_split(source)
    with reading(path):
        path.stat()
        if path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            return _folder_format(names)
    bare = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    suffix = bare.suffix.lower()
    if suffix not in SUFFIXES:
        what = "the suffix is unknown"
        fix = f"use one of {', '.join(SUFFIXES)}, or set the format: {', '.join(FORMATS)}"
        raise DataError(what, fix=fix, file=source)
    return SUFFIXES[suffix]


def _folder_format(names: set[str]) -> str:
    if {"news.tsv", "behaviors.tsv"} <= names:
        return "mind"
    if any(name.endswith(".ann") for name in names):
        return "brat"
    return "datasets"
