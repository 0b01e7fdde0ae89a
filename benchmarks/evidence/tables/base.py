"""Tables as data: cells, the paper's figures beside them, and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.evidence.cells import Cell
from benchmarks.evidence.claims import Claim

CONSTANT = {"schedule": "constant"}


@dataclass(frozen=True, slots=True)
class Section:
    """The source of a group's rows, and the figures that a paper prints for them."""

    group: str
    source: str
    data: tuple[str, ...] = ()  # empty: all of the group
    printed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by column and method

    def covers(self, group: str, data: str) -> bool:
        """Return True if the rows of a group on a data set belong here."""
        return group == self.group and (not self.data or data in self.data)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of cells; `cells` makes those of one seed."""

    name: str
    title: str
    cells: Callable[[int], Iterable[Cell]]
    reference: str | None = None  # bytes are compared with this method's updates in fp32
    model: str | None = None  # default: the installed checkpoint
    sections: tuple[Section, ...] = ()
    claims: tuple[Claim, ...] = ()
    remarks: str = ""  # Markdown, printed below the claims

    def section(self, group: str, data: str) -> Section | None:
        """Find the section of a group's rows on a data set."""
        return next((s for s in self.sections if s.covers(group, data)), None)
