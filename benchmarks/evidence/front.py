"""`docs/results.md`: a page that a reader finishes; its text is `front.md.j2`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

from benchmarks.evidence.bounds import Verdict
from benchmarks.evidence.cells import Outcome
from benchmarks.evidence.chapters import Chapter, Part
from benchmarks.evidence.claims import Arm, Bench, Better, Figure
from benchmarks.evidence.markdown import grid, name
from benchmarks.evidence.sealing import change, nearest, pairs
from benchmarks.evidence.sheets import between, score
from benchmarks.evidence.sketch import distance
from benchmarks.evidence.summary import Row, models_of

TEXT = Path(__file__).with_name("front.md.j2")
NOTHING = "–"  # where nothing was run


@dataclass(frozen=True)
class Facts:
    """What the page's text says of one paper's cells."""

    chapter: Chapter

    @property
    def cells(self) -> str:
        """How many are finished, of how many."""
        evidence = self.chapter.evidence
        return f"{len(evidence.finished)} of {len(evidence.finished) + len(evidence.missing)}"

    @cached_property
    def verdicts(self) -> Counter[Verdict]:
        """How many claims came out how."""
        return self.chapter.count()

    def less(self, method: str) -> str:
        """A method's bytes as a part of what the whole model's updates take in fp32."""
        parts = self.chapter.parts
        return between([times for part in parts for times in _less(part, method)], "1/")

    def against(self, method: str, other: str) -> str:
        """A method's bytes as a part of another's, wherever both were run."""
        return between(self._ratios(other, method), "1/")

    def times(self, method: str, other: str) -> str:
        """A method's bytes as a multiple of another's."""
        return between(self._ratios(method, other))

    def gap(self, sheet: str, column: str, arms: str) -> str:
        """A difference of two scores with its bounds, as a claim's judgement has it."""
        judged = (one for part in self._parts(sheet, column) for one in part.judged)
        return _bounds((figure for one in judged for figure in one.figures), arms)

    def apart(self, sheet: str, column: str, one: str, other: str, figure: Figure = "score") -> str:
        """A difference of two scores with its bounds, whatever is claimed of it."""
        for part in self._parts(sheet, column):
            bench = Bench(part.rows, part.group, part.data, part.which)
            for said in bench.judge(Better("", Arm(one), (Arm(other),), figure=figure)).figures:
                return _bounds([said], said.partition(": ")[0])
        return NOTHING

    def matrix(self, columns: Sequence[tuple[str, str, str, bool]], *methods: str) -> str:
        """Methods by columns: our score, and in brackets the paper's.

        Of each column: its head, the sheet and the column that it shows, and whether the paper's
        figure is of such a set.
        """
        parts = [self._parts(sheet, column) for _, sheet, column, _ in columns]
        lines = []
        for method in methods:
            cells = [
                _cell(found, like, method) for found, (*_, like) in zip(parts, columns, strict=True)
            ]
            sent = between([times for part in parts[0] for times in _less(part, method)], "1/")
            lines.append([method, *cells, sent])
        heads = ["method", *(head for head, *_ in columns), f"bytes, {columns[0][0]}"]
        return "\n".join(grid(heads, lines))

    def _parts(self, sheet: str, column: str) -> list[Part]:
        """The column's part, if any of it was run."""
        return [p for p in self.chapter.parts if (p.sheet, p.column) == (sheet, column)]

    def _ratios(self, method: str, other: str) -> list[float]:
        found = []
        for part in self.chapter.parts:
            sent = {name(row): row["bytes"]["both"] for row in part.rows}
            if method in sent and other in sent:
                found.append(sent[method] / sent[other])
        return found


@dataclass(frozen=True)
class Certainty:
    """How much the runs can tell: of all intervals that scores' claims rest on."""

    chapters: Sequence[Chapter]

    @cached_property
    def halves(self) -> list[float]:
        """The half-widths of the intervals."""
        judged = [one for chapter in self.chapters for one in chapter.judged]
        return [half for one in judged for half in one.halves]

    @property
    def half(self) -> str:
        """The median half-width."""
        return f"{median(self.halves):.1f}" if self.halves else NOTHING

    @property
    def hours(self) -> float:
        """CPU hours that all cells took."""
        outcomes = [outcome for one in self.chapters for _, outcome in one.evidence.finished]
        return float(sum(o["cpu_seconds"] for o in outcomes) / 3600)


@dataclass(frozen=True)
class Sealed:
    """What protection changed, over all pairs of runs with and without it."""

    chapters: Sequence[Chapter]

    @cached_property
    def _runs(self) -> list[tuple[Outcome, Outcome]]:
        return [run for c in self.chapters for pair in pairs(c.evidence) for run in pair.runs]

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self._runs)

    @cached_property
    def changes(self) -> list[float]:
        """Sealed less clear, in points, of every model."""
        return [change(a, b, model) for a, b in self._runs for model in models_of(a)]

    @property
    def mean(self) -> str:
        """The mean change."""
        return f"{fmean(self.changes):+.1f}" if self.changes else NOTHING

    @property
    def most(self) -> str:
        """The largest change either way."""
        return f"{max(map(abs, self.changes)):.1f}" if self.changes else NOTHING

    @property
    def seeds(self) -> str:
        """How far two seeds' clear models are apart at least, in percent of their norm."""
        found = [far for c in self.chapters for pair in pairs(c.evidence) for far in nearest(pair)]
        return f"{100 * min(found):.1f}" if found else NOTHING

    @property
    def apart(self) -> str:
        """How far models are apart at most, in percent of their norm."""
        found = [distance(a.get("sketch"), b.get("sketch")) for a, b in self._runs]
        known = [far for far in found if far is not None]
        return f"{100 * max(known):.1f}" if known else NOTHING


def front(chapters: Sequence[Chapter]) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    facts = {one.paper.table: Facts(one) for one in chapters}
    told = sum((one.count() for one in chapters), Counter[Verdict]())
    return environment.from_string(TEXT.read_text()).render(
        **facts, told=told, certainty=Certainty(chapters), sealed=Sealed(chapters)
    )


def _bounds(figures: Iterable[str], arms: str) -> str:
    for figure in figures:
        if figure.startswith(f"{arms}: ") and ", from " in figure:
            mean, bounds = figure.removeprefix(f"{arms}: ").split(", ")[:2]
            return f"{mean} ({bounds})"
    return NOTHING


def _row(part: Part, method: str) -> Row | None:
    return next((row for row in part.rows if name(row) == method), None)


def _less(part: Part, method: str) -> list[float]:
    row = _row(part, method)
    return [row["bytes"]["times_less"]] if row and "times_less" in row["bytes"] else []


def _cell(parts: Sequence[Part], like: bool, method: str) -> str:
    for part in parts:
        if row := _row(part, method):
            printed = part.beside[0].figures.get(method, "") if like and part.beside else ""
            return score(part, row) + (f" ({printed.partition(' ')[0]})" if printed else "")
    return ""
