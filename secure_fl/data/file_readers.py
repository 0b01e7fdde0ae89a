"""Readers of files and folders: csv, tsv, jsonl, parquet, CoNLL, BRAT and MIND.

BRAT: a note is a patient, and its lines are records. Only text-bound annotations (T lines) count.
Each piece of a discontinuous span is tagged as an entity, because IOB2 has no gaps. Where spans
overlap, the longest keeps its tokens.
CoNLL: if several documents start with -DOCSTART-, each is a patient, and its sentences are records.
MIND: a folder with news.tsv and behaviors.tsv, without headers.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain, groupby
from pathlib import Path

from secure_fl.data.rows import Row, shown
from secure_fl.errors import DataError

TOKEN = re.compile(r"\w+|[^\w\s]")
DOCUMENT = "-DOCSTART-"  # the first word of CoNLL's line before a document
NEWS_COLUMNS = 8  # id, category, subcategory, title, abstract, url, two lists of entities
BEHAVIOR_COLUMNS = 5  # id, user, time, history, impressions

_OTHER = re.compile(r"[REAMN]\d+\t|#|\*\t")  # relations, events, attributes, notes
_HEAD = re.compile(r"(\S+) (\d{1,12} \d{1,12}(?:;\d{1,12} \d{1,12})*)")
_OFFERED = re.compile(r"(\S+)-([01])")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn failures inside into errors that name the file and quote nothing."""
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
                # Spreadsheets start with a byte order mark.
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
            yield Row(dict(zip(header, cells, strict=True)), str(path), number, header=1)
        elif cells:
            what = f"has {len(cells)} fields, the header has {len(header)}"
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
            fix = "put one object {...} on each line; a file with one array is not JSON lines"
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
        raise DataError(
            "is not a parquet file, or is broken", fix="write it again", file=path
        ) from None


def conll_rows(source: str) -> Iterator[Row]:
    """Read one token with its tag per line; blank lines separate sentences."""
    path = Path(source)
    found = list(sentences(lines(path), path))
    several = bool(found) and found[-1][1] > 1
    for number, document, tokens, tags in found:
        record = {"id": f"{path.stem}:{document}/{number}"} if several else {}
        yield Row({**record, "tokens": tokens, "tags": tags}, str(path), number)


def sentences(
    lines: Iterable[tuple[int, str]], file: Path
) -> Iterator[tuple[int, int, list[str], list[str]]]:
    """Split CoNLL lines into (first line, document, tokens, tags).

    Documents count from 1; 0: no -DOCSTART- comes before. Tokens and tags are the first and the
    last column.
    """
    document = 0
    stripped = ((n, text.strip("\r\n ")) for n, text in lines)
    for blank, group in groupby(stripped, key=lambda line: _separates(line[1])):
        if blank:
            document += sum(text.startswith(DOCUMENT) for _, text in group)
            continue
        cells = [(n, _columns(text)) for n, text in group]
        for number, columns in cells:
            if len(columns) < 2 or not columns[0].strip():
                what = f"has {len(columns)} column(s); a token first and its tag last are needed"
                fix = "separate columns by tabs or spaces, sentences by a blank line"
                raise DataError(what, fix=fix, file=file, line=number, field="tags")
        yield cells[0][0], document, [row[0] for _, row in cells], [row[-1] for _, row in cells]


def _separates(text: str) -> bool:
    return not text.strip() or text.startswith(DOCUMENT)


def _columns(text: str) -> list[str]:
    return text.rstrip("\t").split("\t") if "\t" in text else re.split(" +", text)


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation: its type, its pieces as character offsets, and its line."""

    type: str
    pieces: tuple[tuple[int, int], ...]
    line: int

    @property
    def length(self) -> int:
        """The number of characters that it covers."""
        return sum(end - start for start, end in self.pieces)


def brat_rows(source: str) -> Iterator[Row]:
    """Read every text of the folder; texts without an annotation file are unlabelled."""
    folder = Path(source)
    with reading(folder):
        names = {path.name for path in folder.iterdir()}
    orphans = sorted(n for n in names if n.endswith(".ann") and f"{n[:-4]}.txt" not in names)
    if orphans:
        fix = f"put {orphans[0][:-4]}.txt into the same folder"
        raise DataError("annotations without their text", fix=fix, file=folder / orphans[0])
    for name in sorted(n for n in names if n.endswith(".txt")):
        text_file = folder / name
        text = "".join(line for _, line in lines(text_file))
        spans: list[Annotation] | None = None
        if f"{name[:-4]}.ann" in names:
            spans = list(_spans(text_file.with_suffix(".ann"), text))
        yield from _sentences(text_file, text, spans)


def _spans(file: Path, text: str) -> Iterator[Annotation]:
    for number, line in lines(file):
        if not line.strip() or _OTHER.match(line):
            continue
        cells = line.rstrip("\r\n").split("\t", 2)
        head = _HEAD.fullmatch(cells[1]) if len(cells) == 3 and cells[0][:1] == "T" else None
        if head is None:
            fix = "text-bound annotations read T1<tab>TYPE START END[;START END]<tab>TEXT"
            raise DataError("is not a BRAT annotation", fix=fix, file=file, line=number)
        pieces = tuple(
            (int(start), int(end))
            for start, end in (piece.split(" ") for piece in head[2].split(";"))
        )
        if any(not start < end <= len(text) for start, end in pieces):
            what = f"a span is empty or outside of the text's {len(text)} characters"
            raise DataError(what, file=file, line=number, field="span")
        covered = " ".join(text[start:end] for start, end in pieces)
        if covered.split() != cells[2].split():
            fix = "offsets count characters (not bytes) of the .txt, line ends included"
            what = "the text at these offsets differs from the annotated one"
            raise DataError(what, fix=fix, file=file, line=number, field="span")
        yield Annotation(head[1], pieces, number)


def _sentences(file: Path, text: str, spans: list[Annotation] | None) -> Iterator[Row]:
    tokens = list(TOKEN.finditer(text))
    tags = None if spans is None else _tags(tokens, spans)
    breaks = [match.start() for match in re.finditer("\n", text)]
    first = 0
    for number, end in enumerate([*breaks, len(text)], 1):
        last = first
        while last < len(tokens) and tokens[last].start() < end:
            last += 1
        if first < last:
            values: dict[str, object] = {
                "id": f"{file.stem}/{number}",
                "tokens": [token[0] for token in tokens[first:last]],
                "tags": None if tags is None else _restart(tags[first:last]),
            }
            yield Row(values, str(file), number)
        first = last


def _tags(tokens: list[re.Match[str]], spans: list[Annotation]) -> list[str]:
    tags = ["O"] * len(tokens)
    for span in sorted(spans, key=lambda s: (-s.length, s.pieces)):
        covered = [
            [k for k, token in enumerate(tokens) if token.start() < end and start < token.end()]
            for start, end in span.pieces
        ]
        if any(tags[k] != "O" for piece in covered for k in piece):
            continue
        for piece in covered:
            for k in piece:
                tags[k] = f"{'B' if k == piece[0] else 'I'}-{span.type}"
    return tags


def _restart(tags: list[str]) -> list[str]:
    # An entity that crosses a line's end restarts on the next line.
    return [f"B{tags[0][1:]}" if tags[0][0] == "I" else tags[0], *tags[1:]]


def mind_rows(source: str) -> Iterator[Row]:
    """Read each impression with titles instead of news ids."""
    titles = dict(_titles(Path(source, "news.tsv")))
    file = Path(source, "behaviors.tsv")
    for number, text in lines(file):
        cells = text.rstrip("\r\n").split("\t")
        if cells == [""]:
            continue
        if len(cells) != BEHAVIOR_COLUMNS:
            what = f"has {len(cells)} columns instead of {BEHAVIOR_COLUMNS}"
            fix = "give id, user, time, history and impressions, separated by tabs"
            raise DataError(what, fix=fix, file=file, line=number)
        offered = [_OFFERED.fullmatch(entry) for entry in cells[4].split()]
        clicked = [match for match in offered if match is not None]
        if len(clicked) != len(offered) or not offered:
            fix = "write each entry as NEWS-1 (clicked) or NEWS-0; MIND's test set has no clicks"
            what = "an entry has no click flag, or there is no entry"
            raise DataError(what, fix=fix, file=file, line=number, field="impressions")
        values: dict[str, object] = {
            "id": cells[0],
            "history": _look_up(cells[3].split(), titles, file, number, "history"),
            "candidates": _look_up(
                [match[1] for match in clicked], titles, file, number, "impressions"
            ),
            "clicks": [match[2] == "1" for match in clicked],
        }
        yield Row(values, str(file), number)


def _titles(file: Path) -> Iterator[tuple[str, str]]:
    for number, text in lines(file):
        cells = text.rstrip("\r\n").split("\t")
        if cells == [""]:
            continue
        if len(cells) < 4:
            what = f"has {len(cells)} columns instead of {NEWS_COLUMNS} (at least 4)"
            fix = "give id, category, subcategory, title and so on, separated by tabs"
            raise DataError(what, fix=fix, file=file, line=number)
        yield cells[0], cells[3]


def _look_up(
    ids: list[str], titles: Mapping[str, str], file: Path, line: int, field: str
) -> list[str]:
    for k, news in enumerate(ids):
        if news not in titles:
            what = f"news {k + 1} of this list is not in news.tsv"
            fix = "use news.tsv and behaviors.tsv of the same release"
            raise DataError(what, fix=fix, file=file, line=line, field=field)
    return [titles[news] for news in ids]
