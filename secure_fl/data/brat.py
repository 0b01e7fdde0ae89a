"""BRAT folders: texts beside standoff annotations, read as one tagged sentence a line.

Only text-bound annotations (T lines) count. A discontinuous span tags each of its pieces as an
entity of its type, because IOB2 has no gaps; where spans overlap, the longest keeps its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from secure_fl.data.rows import Row
from secure_fl.data.tables import lines, reading
from secure_fl.errors import DataError

TOKEN = re.compile(r"\w+|[^\w\s]")

_OTHER = re.compile(r"[REAMN]\d+\t|#|\*\t")  # relations, events, attributes, notes
_HEAD = re.compile(r"(\S+) (\d{1,12} \d{1,12}(?:;\d{1,12} \d{1,12})*)")


@dataclass(frozen=True, slots=True)
class Span:
    """One annotation: its type, its pieces as character offsets, and the line that states it."""

    type: str
    pieces: tuple[tuple[int, int], ...]
    line: int

    @property
    def length(self) -> int:
        """How many characters it covers."""
        return sum(end - start for start, end in self.pieces)


def brat_rows(source: str) -> Iterator[Row]:
    """Read every text of the folder; a text without an annotation file is unlabelled."""
    folder = Path(source)
    with reading(folder):
        names = {path.name for path in folder.iterdir()}
    orphans = sorted(n for n in names if n.endswith(".ann") and f"{n[:-4]}.txt" not in names)
    if orphans:
        fix = f"put {orphans[0][:-4]}.txt beside it"
        raise DataError("annotations without their text", fix=fix, file=folder / orphans[0])
    for name in sorted(n for n in names if n.endswith(".txt")):
        text_file = folder / name
        text = "".join(line for _, line in lines(text_file))
        spans: list[Span] | None = None
        if f"{name[:-4]}.ann" in names:
            spans = list(_spans(text_file.with_suffix(".ann"), text))
        yield from _sentences(text_file, text, spans)


def _spans(file: Path, text: str) -> Iterator[Span]:
    for number, line in lines(file):
        if not line.strip() or _OTHER.match(line):
            continue
        cells = line.rstrip("\r\n").split("\t", 2)
        head = _HEAD.fullmatch(cells[1]) if len(cells) == 3 and cells[0][:1] == "T" else None
        if head is None:
            fix = "text-bound annotations read T1<tab>TYPE START END[;START END]<tab>TEXT"
            raise DataError("is no BRAT annotation", fix=fix, file=file, line=number)
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
        yield Span(head[1], pieces, number)


def _sentences(file: Path, text: str, spans: list[Span] | None) -> Iterator[Row]:
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
                "id": f"{file.stem}:{number}",
                "tokens": [token[0] for token in tokens[first:last]],
                "tags": None if tags is None else _restart(tags[first:last]),
            }
            yield Row(values, str(file), number)
        first = last


def _tags(tokens: list[re.Match[str]], spans: list[Span]) -> list[str]:
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
    # An entity that crosses a line's end begins anew on the next line.
    return [f"B{tags[0][1:]}" if tags[0][0] == "I" else tags[0], *tags[1:]]
