"""What a paper says, in a form that our cells can be held against: figures and claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from benchmarks.evidence.claims import Claim, Which


@dataclass(frozen=True, slots=True)
class Beside:
    """A column of a paper's table: by the names of our methods, as it is printed there."""

    head: str
    figures: Mapping[str, str]

    def within(self, other: Beside) -> bool:
        """Whether another column prints all of this one's figures, under the same head."""
        return self.head == other.head and self.figures.items() <= other.figures.items()

    def among(self, methods: Collection[str]) -> Beside:
        """The figures of some methods only."""
        return Beside(self.head, {m: v for m, v in self.figures.items() if m in methods})


@dataclass(frozen=True, slots=True)
class Section:
    """One of the paper's tables or figures, and which of our rows belong beside it."""

    group: str
    source: str  # number and caption, and what stands in for what
    data: tuple[str, ...] = ()  # of our sets; empty: all of the group
    beside: tuple[Beside, ...] = ()
    claims: tuple[Claim, ...] = ()
    which: Which = "last"  # the round whose scores the claims are about
    tier: str = ""  # whose models the paper measures, and wide tables show
    sheet: str = ""  # the wide table that shows it; empty: the group's
    column: str = ""  # its head there; empty: the set's name

    def covers(self, group: str, data: str) -> bool:
        """Whether rows of a group on a set belong here."""
        return group == self.group and (not self.data or data in self.data)


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, and the table of ours that repeats it."""

    table: str
    title: str
    sections: tuple[Section, ...]
