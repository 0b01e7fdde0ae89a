"""Tables for terminals and notebooks: names left, numbers right, no text cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

TOGETHER = "all records"  # the row over the hospitals' records together
STRONG = frozenset({"mean", TOGETHER})
GAP = 2  # columns between two columns of a table
SHORTEST = 12  # width of names below which the other columns must give way


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under named columns. The first column names the row; long cells take several lines."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for a terminal; number columns wrap only if there is no room."""
        title = Text(self.title, style="bold") if self.title else None
        table = Table(title=title, title_justify="left", box=None, padding=(0, GAP, 0, 0))
        table.pad_edge = False
        for place, column in enumerate(self.columns):
            table.add_column(
                Text(column),
                justify="right" if place else "left",
                overflow="fold",
                width=self._widths(options.max_width)[place],
            )
        for row in self.rows:
            table.add_row(*map(Text, row), style="bold" if row[0] in STRONG else "")
        yield table

    def _widths(self, room: int) -> Sequence[int | None]:
        """Return widths that keep cells, or at least words, whole; None: Rich's own."""
        columns = list(zip(self.columns, *self.rows, strict=True))
        full = [[head, *cells] for head, *cells in columns]
        broken_heads = [[*head.split(), *cells] for head, *cells in columns]
        words = [[word for cell in column for word in cell.split()] for column in columns]
        for pieces in (full, broken_heads, words):
            first, *figures = (max(map(cell_len, column), default=0) for column in pieces)
            left = room - sum(figures) - GAP * len(figures)
            if left >= min(first, SHORTEST):
                return [min(left, max(map(cell_len, full[0]))), *figures]
        return [None] * len(columns)

    def _repr_html_(self) -> str:
        """Render for notebooks."""
        heads = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Make a table; the first column names the row."""
    return Grid(title, columns, rows)
