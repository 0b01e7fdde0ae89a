"""A table that loses nothing, however narrow the terminal is.

Three shapes, of which the first that fits is drawn: a line per row; the row's name above its
figures; and a block per row, in which every figure stands beside its column's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

TOGETHER = "all records"  # the row over the hospitals' records together
STRONG = frozenset({"mean", TOGETHER})
GAP, INDENT, BETWEEN = 2, 2, " · "
SHORTEST = 20  # a name of several words may be broken between them, into lines no shorter


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under named columns, of which the first names the row; nothing is ever cut off."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in the first shape that fits."""
        room = options.max_width
        if self.title:
            yield Text(self.title, style="bold")
        name, *slim = (self._narrowest(column) for column in range(len(self.columns)))
        figures = sum(slim) + GAP * len(slim)
        if self._broken(name) + figures <= room:
            yield self._table([min(name, room - figures), *self._widths(room - name, slim)])
        elif INDENT + figures - GAP <= room:
            yield from self._named_above(self._widths(room, slim))
        else:
            yield from self._blocks(room)

    def _repr_html_(self) -> str:
        """For notebooks."""
        heads = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"

    def _narrowest(self, column: int) -> int:
        """The width that keeps a column's cells whole; its heading may be broken between words."""
        words = self.columns[column].split()
        cells = [line for row in self.rows for line in row[column].splitlines()]
        return max(map(cell_len, [*words, *cells]), default=0)

    def _broken(self, name: int) -> int:
        """The width of the first column with its names broken between words."""
        longest = max((cell_len(word) for row in self.rows for word in row[0].split()), default=0)
        return max(longest, min(name, SHORTEST))

    def _widths(self, room: int, slim: Sequence[int]) -> Sequence[int]:
        """Widths with headings on as few lines as there is room for."""
        heads = self.columns[1:]
        for lines in range(1, max((len(head.split()) for head in heads), default=0)):
            wide = [_breaking(head, lines, w) for head, w in zip(heads, slim, strict=True)]
            if sum(wide) + GAP * len(wide) <= room:
                return wide
        return slim

    def _table(self, widths: Sequence[int]) -> Table:
        table = _plain_table(self.columns, widths)
        for row in self.rows:
            table.add_row(*map(Text, row), style=_style(row))
        return table

    def _named_above(self, widths: Sequence[int]) -> Iterator[RenderableType]:
        if self.columns[0]:
            yield Text(self.columns[0], style="bold")
        yield _indented(_plain_table(self.columns, [0, *widths], first=1))
        for name, *figures in self.rows:
            yield Text(name, style="bold", overflow="fold")
            table = _plain_table(self.columns, [0, *widths], first=1, heads=False)
            table.add_row(*map(Text, figures))
            yield _indented(table)

    def _blocks(self, room: int) -> Iterator[RenderableType]:
        for name, *figures in self.rows:
            yield Text(name, style="bold", overflow="fold")
            line = ""
            for column, figure in zip(self.columns[1:], figures, strict=True):
                if not figure:
                    continue
                said = f"{column} {figure}".strip()
                if line and cell_len(line) + len(BETWEEN) + cell_len(said) > room - INDENT:
                    yield _indented(Text(line, overflow="fold"))
                    line = ""
                line = f"{line}{BETWEEN}{said}" if line else said
            yield _indented(Text(line, overflow="fold"))


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Lay out a table: names to the left, figures to the right; the first column names the row."""
    return Grid(title, columns, rows)


def _plain_table(
    columns: Sequence[str], widths: Sequence[int], *, first: int = 0, heads: bool = True
) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=heads)
    for place in range(first, len(columns)):
        table.add_column(
            Text(columns[place]),
            justify="right" if place else "left",
            width=widths[place],
            overflow="fold",
        )
    return table


def _breaking(head: str, lines: int, least: int) -> int:
    """The narrowest column in which a heading takes so many lines at most."""
    text, measure = Text(head), Console(width=1000)
    widths = range(least, max(least, cell_len(head)))
    return next(
        (w for w in widths if len(text.wrap(measure, w)) <= lines), max(least, cell_len(head))
    )


def _indented(thing: RenderableType) -> Padding:
    return Padding(thing, (0, 0, 0, INDENT))


def _style(row: Sequence[str]) -> str:
    return "bold" if row[0] in STRONG else ""
