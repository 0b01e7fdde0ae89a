"""Readers of files with one record a line or row: csv, tsv, jsonl, parquet and CoNLL."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path

from secure_fl.data.rows import Row, shown
from secure_fl.data.tagging import sentences
from secure_fl.errors import DataError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the failures of a file's reading into errors that name it and quote nothing."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(
            "there is no such file or folder", fix="check the path", file=path
        ) from None
    except PermissionError:
        raise DataError("may not be read", fix="ask for its read permission", file=path) from None
    except IsADirectoryError:
        raise DataError("is a folder, not a file", fix="name the file in it", file=path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        fix = "compress it again with gzip, or drop the .gz of a file that is not compressed"
        raise DataError("broken or cut gzip", fix=fix, file=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or 'broken file'}", file=path) from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines of a UTF-8 text, gzipped or not, numbered from 1."""
    with reading(path), _open(path) as stream:
        for number, raw in enumerate(stream, 1):
            try:
                # Spreadsheets put a byte order mark first.
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                fix = "save it as UTF-8 (and with .gz at the end if it is compressed)"
                raise DataError("is not UTF-8", fix=fix, file=path, line=number) from None
            yield number, text


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def csv_rows(source: str) -> Iterator[Row]:
    """Read comma- (or semicolon-) separated values with quotes and a header."""
    path = Path(source)
    text = (line for _, line in lines(path))
    header = next(text, "")
    mark = ";" if header.count(";") > header.count(",") else ","
    return _cells(path, csv.reader(chain([header], text), delimiter=mark, strict=True))


def tsv_rows(source: str) -> Iterator[Row]:
    """Read tab-separated values with a header; quotes are ordinary characters, as in GLUE."""
    path = Path(source)
    text = (line for _, line in lines(path))
    return _cells(path, csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE))


def _cells(path: Path, reader: Iterator[list[str]]) -> Iterator[Row]:
    header: list[str] | None = None
    for number, cells in _numbered(path, reader):
        if header is None:
            header = _header(path, cells)
        elif len(cells) == len(header):
            yield Row(dict(zip(header, cells, strict=True)), str(path), number)
        elif cells:
            what = f"found {len(cells)} fields, the header has {len(header)}"
            fix = "quote fields that hold the separator or a line break (csv), or use jsonl"
            raise DataError(what, fix=fix, file=path, line=number)


def _numbered(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    try:
        for cells in reader:
            yield reader.line_num, cells  # type: ignore[attr-defined]
    except csv.Error:
        what = "broken quoting, a stray line break, or a field above 131072 characters"
        fix = "write the file again with a csv library, or use jsonl"
        number = reader.line_num  # type: ignore[attr-defined]
        raise DataError(what, fix=fix, file=path, line=number) from None


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = f"the header names a column twice: {', '.join(map(shown, twice))}"
        raise DataError(what, fix="the first line names each column once", file=path, line=1)
    return names


def json_rows(source: str) -> Iterator[Row]:
    """Read one JSON object a line."""
    path = Path(source)
    for number, text in lines(path):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            fix = "put one whole object {...} on each line; a file that is one array will not do"
            raise DataError("is not a JSON object", fix=fix, file=path, line=number)
        yield Row(values, str(path), number)


def parquet_rows(source: str) -> Iterator[Row]:
    """Read a parquet file, batch by batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(source)
    try:
        with reading(path), path.open("rb") as stream:
            number = 0
            for batch in pq.ParquetFile(stream).iter_batches(4096):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, str(path), number, "row")
    except pa.ArrowException:
        raise DataError("is no parquet file, or broken", fix="write it again", file=path) from None


def conll_rows(source: str) -> Iterator[Row]:
    """Read a token and its tag a line, sentences parted by blank lines."""
    path = Path(source)
    for number, tokens, tags in sentences(lines(path), path):
        yield Row({"tokens": tokens, "tags": tags}, str(path), number)
