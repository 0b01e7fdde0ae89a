"""A paper's table of ours, judged: its parts are groups of rows on one set, with their claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evidence.bounds import Verdict
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.claims import Bench, Judgement, Which
from benchmarks.evidence.finished import Evidence, gather, place_of
from benchmarks.evidence.published import Beside, Paper, Section
from benchmarks.evidence.summary import Row, rows
from benchmarks.evidence.tables import (
    TABLES,
    adapters_claims,
    fedid_paper,
    fedkd_paper,
    inclusivefl_paper,
    whole_claims,
)

PAPERS = (
    fedid_paper.PAPER,
    fedkd_paper.PAPER,
    inclusivefl_paper.PAPER,
    whole_claims.PAPER,
    adapters_claims.PAPER,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A group of rows on one set, and what the paper says of it: a column of a wide table."""

    group: str
    data: str
    rows: Sequence[Row]
    missing: Sequence[Cell]
    section: Section | None
    judged: Sequence[Judgement]

    @property
    def sheet(self) -> str:
        """The title of the wide table that it is a column of."""
        return (self.section.sheet if self.section else "") or self.group or "All"

    @property
    def column(self) -> str:
        """Its head there."""
        return (self.section.column if self.section else "") or self.data

    @property
    def which(self) -> Which:
        """The round whose scores its claims are about."""
        return self.section.which if self.section else "last"

    @property
    def tier(self) -> str:
        """The tier whose models the paper measures; empty: all hospitals."""
        return self.section.tier if self.section else ""

    @property
    def beside(self) -> Sequence[Beside]:
        """The paper's columns."""
        return self.section.beside if self.section else ()


@dataclass(frozen=True, slots=True)
class Chapter:
    """A paper's table of ours."""

    paper: Paper
    evidence: Evidence
    parts: Sequence[Part]

    @property
    def judged(self) -> list[Judgement]:
        """All that was judged."""
        return [judgement for part in self.parts for judgement in part.judged]

    @property
    def sheets(self) -> dict[str, list[Part]]:
        """The parts that stand beside each other."""
        found: dict[str, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part.sheet, []).append(part)
        return found

    def count(self) -> Counter[Verdict]:
        """How many claims came out how."""
        return Counter(judgement.verdict for judgement in self.judged)


def chapters(folder: Path) -> list[Chapter]:
    """Judge all papers by the cells that lie in a folder."""
    return [chapter(paper, gather(TABLES[paper.table], folder)) for paper in PAPERS]


def chapter(paper: Paper, evidence: Evidence) -> Chapter:
    """Judge a paper by its cells."""
    listed = rows(evidence.finished, evidence.table.reference)
    parts = []
    for group, data in dict.fromkeys(place[:2] for place in evidence.places):
        section = next((s for s in paper.sections if s.covers(group, data)), None)
        here = [row for row in listed if (row["group"], row["data"]) == (group, data)]
        missing = [cell for cell in evidence.missing if place_of(cell)[:2] == (group, data)]
        judged: list[Judgement] = []
        if section is not None:
            bench = Bench(listed, group, data, section.which)
            judged = list(bench.judge_all(section.claims))
        parts.append(Part(group, data, here, missing, section, judged))
    return Chapter(paper, evidence, parts)
