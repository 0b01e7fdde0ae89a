"""`python -m benchmarks words`: words, sentence lengths and table cells of hand-written pages.

Code blocks and tables that a command writes are not counted. A link counts as its text. Sentences
are those of paragraphs and lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.report import BLOCK, Columns, Grid

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")
FOLDER, ALL = "docs", "all"
LONG_PAGE, TOTAL, SENTENCE = 4000, 42_000, 18  # the limits of a page, of all, and of the mean
CODE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->|<[^>]+>", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
WORD = re.compile(r"[^\s|]*\w[^\s|]*")
END = re.compile(r"(?<=[.!?])[*)\"”]*(?:\s+|$)|:\s*$")
ITEM = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)|\n(?=\|)|(?<=\|)\n")


@dataclass(frozen=True, slots=True)
class PageWords:
    """The counts of one page."""

    name: str
    words: int
    sentences: Sequence[int]  # words of each
    cell: int  # words of the longest table cell

    @property
    def mean(self) -> float:
        """The mean length of a sentence."""
        return sum(self.sentences) / max(1, len(self.sentences))


COLUMNS: Columns = {
    "page": "{r.name}",
    "words": "{r.words:,}",
    "mean sentence": "{r.mean:.1f}",
    "longest sentence": lambda row: str(max(row.sentences, default=0)),
    "longest cell": "{r.cell}",
    "": lambda row: "LONG" if row.words > LONG_PAGE and row.name != ALL else "",
}


def count(name: str, text: str) -> PageWords:
    """Count a page."""
    text = LINK.sub(r"\1", COMMENT.sub("", BLOCK.sub("", CODE.sub("", text))))
    parts = [part.strip() for part in ITEM.split(text)]
    rows = [part for part in parts if part.startswith("|")]
    prose = [part for part in parts if part and not part.startswith(("|", "#", "!"))]
    cells = [len(WORD.findall(cell)) for row in rows for cell in row.split("|")]
    lengths = [len(WORD.findall(one)) for part in prose for one in END.split(part)]
    sentences = [length for length in lengths if length]
    return PageWords(name, len(WORD.findall(text)), sentences, max(cells, default=0))


def pages(root: Path = ROOT) -> Iterator[PageWords]:
    """Count all hand-written pages of a checkout."""
    found = sorted(path.relative_to(root).as_posix() for path in (root / FOLDER).rglob("*.md"))
    for name in (*PAGES, *found):
        yield count(name, (root / name).read_text(encoding="utf-8"))


def total(found: Sequence[PageWords]) -> PageWords:
    """Add the counts of pages."""
    sentences = [length for page in found for length in page.sentences]
    words = sum(page.words for page in found)
    return PageWords(ALL, words, sentences, max(page.cell for page in found))


@click.command()
def words() -> None:
    """Count the words of hand-written pages."""
    found = list(pages())
    every = total(found)
    Console(width=110).print(Grid.of("hand-written pages", [*found, every], COLUMNS).rich())
    click.echo(f"goals: {TOTAL:,} words in all, {LONG_PAGE:,} a page, {SENTENCE} a sentence")
