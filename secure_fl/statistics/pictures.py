"""Answers for people: tables for any terminal, and a page with a picture of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from secure_fl.display.charts import Bar, Curve, bar_chart, chart, figure
from secure_fl.display.grid import Grid, grid
from secure_fl.display.html import page, paragraph, section, table
from secure_fl.statistics.answers import Answer

HIDDEN = "withheld"
BAR = 24  # characters of the longest bar


def tables(answer: Answer) -> Iterator[Grid]:
    """Return the tables of an answer for a terminal; none if it was refused or withheld."""
    if answer.rows:
        heads = ["", *answer.heads, "shown"]
        yield grid("", heads, [[label, *map(_said, row), _sum(row)] for label, row in answer.rows])
    if answer.counts:
        most = max((count or 0 for _, count in answer.counts), default=0)
        rows = [
            [label, _said(count), _share(count, answer.total), _bar(count, most)]
            for label, count in answer.counts
            if count or count is None or len(answer.counts) == 1
        ]
        yield grid("", ["", "records", "share", ""], rows)
    if answer.figures:
        yield grid("", ["", "value"], [[name, f"{value:.6g}"] for name, value in answer.figures])


def headline(answer: Answer) -> str:
    """An answer in a line."""
    if answer.status != "answered":
        return f"{answer.name}: {answer.status}"
    return f"{answer.name}: {answer.total} records at {answer.hospitals} hospitals"


def answers_page(answers: Sequence[Answer], protection: str) -> str:
    """One page that loads nothing from anywhere."""
    parts = [_section(answer) for answer in answers]
    links = {_anchor(answer): answer.name for answer in answers}
    lead = paragraph(
        "Answers by sums over hospitals. The hospitals see these sums, also where cells are "
        "withheld here; the coordinator sees none.",
        "lead",
    )
    return page("Statistics", protection, links, lead + "".join(parts))


def _section(answer: Answer) -> str:
    figures = [[name, f"{value:.6g}"] for name, value in answer.figures]
    counts = [[label, _said(count), _share(count, answer.total)] for label, count in answer.counts]
    crossed = [[label, *map(_said, row), _sum(row)] for label, row in answer.rows]
    body = "".join(
        [
            paragraph(headline(answer)),
            _picture(answer),
            table("Counts", ["", "records", "share"], counts),
            table("Cross table", ["", *answer.heads, "shown"], crossed),
            table("Figures", ["", "value"], figures),
            *(paragraph(said, "without") for said in answer.said),
        ]
    )
    return section(_anchor(answer), answer.name, body)


def _anchor(answer: Answer) -> str:
    return f"question-{answer.name}"


def _picture(answer: Answer) -> str:
    if answer.kind == "survival":
        curves = [Curve(label, points) for label, points in answer.curves]
        name = _anchor(answer)
        return chart(name, curves, "time", "share that survive", lambda v: f"{v:.0%}")
    bars = [Bar(label, count) for label, count in _bars(answer) if count is not None]
    if not any(bar.value for bar in bars):
        return ""
    name = _anchor(answer)
    return figure(name, bar_chart(name, bars, "", lambda count: f"{count:.0f}"))


def _bars(answer: Answer) -> Iterator[tuple[str, int | None]]:
    yield from answer.counts
    for label, row in answer.rows:
        for head, count in zip(answer.heads, row, strict=True):
            yield f"{label}, {head}", count


def _said(count: int | None) -> str:
    return HIDDEN if count is None else str(count)


def _sum(row: Sequence[int | None]) -> str:
    """Scale colours by the shown cells only: a scale over withheld cells would reveal them."""
    return str(sum(count or 0 for count in row))


def _share(count: int | None, total: int | None) -> str:
    return "" if count is None or not total else f"{count / total:.1%}"


def _bar(count: int | None, most: int) -> str:
    return ("█" * round(BAR * (count or 0) / most)).ljust(BAR, "░") if most else ""
