"""Read a file, a folder, a data frame or a data set of `datasets` into examples.

    load("notes.csv", "classification")
    load("corpus/", "ner")                                     # BRAT: .txt beside .ann
    load("pairs.tsv", "pair", columns=Columns(text="question", pair="answer"))
    load("hub:owner/name:train", "classification")

Records without an id are numbered by position. Give an id column if the file may grow later, so
that each record stays in its split.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
from secure_fl.data.records import build
from secure_fl.data.rows import DEFAULT_NAMES, Columns, Row, shown
from secure_fl.errors import DataError
from secure_fl.settings import Kind

__all__ = ["FORMATS", "SUFFIXES", "Columns", "load"]

PREFIX = "hub:"


def hub_rows(source: str) -> Iterator[Row]:
    """Read "hub:NAME[/config][:split]" or "FOLDER[:split]"."""
    if source.startswith(PREFIX):
        name, _, split = source.removeprefix(PREFIX).partition(":")
        yield from _rows(_fetch(name), source, split)
        return
    folder, split = folder_and_split(source)
    # By default, the library leaves a copy of a hospital's records in its cache.
    with tempfile.TemporaryDirectory() as cache:
        yield from _rows(_open(folder, cache), str(folder), split)


def folder_and_split(source: str) -> tuple[Path, str]:
    """Split "FOLDER:split", unless it is the path of an existing file or folder."""
    folder, mark, split = source.rpartition(":")
    if mark and not Path(source).exists() and Path(folder).is_dir():
        return Path(folder), split
    return Path(source), ""


def _fetch(name: str) -> Any:
    import datasets

    parts = [part for part in name.split("/") if part]
    if not 1 <= len(parts) <= 3:
        raise DataError(
            "is not the name of a data set", fix="write hub:NAME[/config][:split]", source=name
        )
    config = parts[2] if len(parts) == 3 else None
    tries = [("/".join(parts[:2]), config)]
    if len(parts) == 2:  # an owner and a name, or for old data sets a name and a configuration
        tries.append((parts[0], parts[1]))
    failures = []
    for path, chosen in tries:
        try:
            return datasets.load_dataset(path, chosen)
        except Exception as error:  # the hub's clients raise errors of many libraries
            failures.append(type(error).__name__)
            if isinstance(error, ConnectionError):
                break  # the library has retried for half a minute
    what = f"{name} is not available offline or on the hub ({', '.join(failures)})"
    fix = (
        "with a network, check the name, or add /CONFIG; without one, run "
        "datasets.load_dataset(NAME).save_to_disk(FOLDER) elsewhere and give the copied folder"
    )
    raise DataError(what, fix=fix, source=PREFIX + name)


def _open(folder: Path, cache: str) -> Any:
    import datasets

    saved = any((folder / name).exists() for name in ("dataset_dict.json", "state.json"))
    try:
        if saved:
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder), cache_dir=cache)
    except Exception as error:  # as above; its text may quote a record
        what = f"no data set can be loaded from this folder ({type(error).__name__})"
        fix = (
            "give a folder of save_to_disk, of parquet, csv or json files, of BRAT's .txt and "
            ".ann, or MIND's news.tsv and behaviors.tsv; or name a single file"
        )
        raise DataError(what, fix=fix, file=folder) from None


def _rows(loaded: Any, source: str, split: str) -> Iterator[Row]:
    import datasets

    if isinstance(loaded, datasets.DatasetDict):
        names = list(loaded)
        chosen = split or (names[0] if len(names) == 1 else "")
        if chosen not in names:
            what = f"there is no such split; splits: {', '.join(map(shown, names))}"
            raise DataError(what, fix=f"add :SPLIT to {source}", file=source, split=chosen or None)
        loaded = loaded[chosen]
    elif split:
        what = "this folder holds one data set without splits"
        raise DataError(what, fix=f"remove :{split}", file=source)
    yield from loaded_rows(loaded, source)


def loaded_rows(loaded: Any, source: str) -> Iterator[Row]:
    """The rows of one split."""
    decoders = {name: _decoder(feature) for name, feature in loaded.features.items()}
    for number, values in enumerate(loaded, 1):
        decoded = {name: decoders[name](value) for name, value in values.items()}
        yield Row(decoded, source, number, "row")


def _decoder(feature: Any) -> Callable[[Any], object]:
    # Classes and tags become names: another hospital may number the same names in another order.
    import datasets

    inner = getattr(feature, "feature", None)
    classes = next((one for one in (feature, inner) if isinstance(one, datasets.ClassLabel)), None)
    if classes is None:
        return lambda value: value
    names: Mapping[int, str] = dict(enumerate(classes.names))
    if classes is feature:
        return names.get  # None is unlabelled; the library writes -1
    return lambda value: None if value is None else [names.get(k) for k in value]


def frame_rows(frame: Any) -> Iterator[Row]:
    """The rows of a data frame; missing values become None."""
    if not (hasattr(frame, "to_dict") and hasattr(frame, "columns")):
        raise DataError(
            f"is a {type(frame).__name__} instead of a data frame of pandas",
            fix="convert a dict or a list of dicts by pandas.DataFrame(...)",
        )
    missing = frame.isna().to_dict("records")
    for number, (values, gone) in enumerate(zip(frame.to_dict("records"), missing, strict=True), 1):
        # For a cell with a list, pandas answers for each entry; the cell is not missing.
        plain = {
            str(name): None if gone[name] is True else _plain(value)
            for name, value in values.items()
        }
        yield Row(plain, "the data frame", number, "row")


def dataset_rows(dataset: Any) -> Iterator[Row]:
    """The rows of a data set's split."""
    if not hasattr(dataset, "features"):
        raise DataError(
            f"is a {type(dataset).__name__} instead of a datasets.Dataset",
            fix='give one split, as in datasets.load_from_disk(FOLDER)["train"]',
        )
    yield from loaded_rows(dataset, "the data set")


def _plain(value: Any) -> object:
    """Convert a numpy value to Python's type."""
    return value.tolist() if hasattr(value, "tolist") else value


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
        **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
        ".parquet": "parquet",
        **dict.fromkeys((".conll", ".iob", ".iob2", ".bio", ".bioes"), "conll"),
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
