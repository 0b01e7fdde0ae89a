"""Released tables for people: grids for a terminal, and a page with a picture of each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from secure_fl.display.charts import Bar, Curve, bar_chart, chart, figure
from secure_fl.display.grid import Grid, grid
from secure_fl.display.html import page, paragraph, section, table

HIDDEN = "hidden"
BAR = 24  # characters of the longest bar
MOST_LINES = 60  # rows of a table in a terminal


def lead(found: Mapping[str, Any]) -> str:
    """Describe the result in a sentence."""
    if found["status"] != "answered":
        return f"Nothing is released: {found['reason']}."
    records = "few" if found["records"] is None else str(found["records"])
    if found["epsilon"] is not None:
        rule = f"noise was added to all counts: epsilon {found['epsilon']:g}"
    else:
        rule = f"counts below {found['smallest']} are hidden"
    return f"{records} records at {found['hospitals']} hospitals; {rule}."


def grids(one: Mapping[str, Any]) -> Iterator[Grid]:
    """Return the tables of one result for a terminal."""
    if len(one["labels"]) == 1:
        counts = one["counts"]
        total, most = sum(c or 0 for c in counts), max((c or 0 for c in counts), default=0)
        rows = [
            [label, _text(count), _share(count, total), _bar(count, most)]
            for label, count in zip(one["labels"][0], counts, strict=True)
        ]
        yield grid(one["name"], ["", "records", "share", ""], rows)
    elif one["kind"] == "table":
        yield grid(one["name"], ["", *one["labels"][1]], _lines(one)[:MOST_LINES])
    if one["figures"]:
        title = one["name"] if one["kind"] == "survival" else ""
        yield grid(title, ["", "value"], _figures(one))


def statistics_page(document: Mapping[str, Any], *, shared: bool = False) -> str:
    """Write the tables as a page that loads no other file."""
    del shared  # a page of sums has no figure of one hospital
    found = document["statistics"]
    body = paragraph(lead(found), "lead")
    tables = found.get("tables", [])
    for one in tables:
        body += section(_anchor(one), one["name"], _body(one), 2)
    body += paragraph(document["protection"]["statement"])
    links = {_anchor(one): one["name"] for one in tables}
    return page("Statistics", "Counts of a codebook over hospitals' records", links, body)


def _body(one: Mapping[str, Any]) -> str:
    body = _picture(one)
    if len(one["labels"]) == 1:
        total = sum(count or 0 for count in one["counts"])
        pairs = zip(one["labels"][0], one["counts"], strict=True)
        rows = [[label, _text(count), _share(count, total)] for label, count in pairs]
        body += table("Counts", ["", "records", "share"], rows)
    elif one["kind"] == "table":
        body += table("Counts", ["", *one["labels"][1]], _lines(one))
    return (
        body
        + (table("Figures", ["", "value"], _figures(one)) if one["figures"] else "")
        + "".join(paragraph(text, "without") for text in one["notes"])
    )


def _picture(one: Mapping[str, Any]) -> str:
    name = _anchor(one)
    if one["kind"] == "survival":
        curves = [Curve(label, _steps(points)) for label, points in one["curves"].items()]
        return chart(name, curves, "time", "share that survive", lambda v: f"{v:.0%}")
    bars = [Bar(label, count) for label, count in _bars(one) if count]
    return figure(name, bar_chart(name, bars, "", lambda count: f"{count:.0f}")) if bars else ""


def _steps(points: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    drawn = [(points[0][0], points[0][1])]
    for time, value in points[1:]:
        drawn += [(time, drawn[-1][1]), (time, value)]
    return drawn


def _bars(one: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    if len(one["labels"]) == 1:
        yield from zip(one["labels"][0], one["counts"], strict=True)
        return
    for label, row in zip(one["labels"][0], one["counts"], strict=True):
        for head, count in zip(one["labels"][1], row, strict=True):
            yield f"{label}, {head}", count


def _lines(one: Mapping[str, Any]) -> list[list[str]]:
    pairs = zip(one["labels"][0], one["counts"], strict=True)
    return [[label, *map(_text, row)] for label, row in pairs]


def _figures(one: Mapping[str, Any]) -> list[list[str]]:
    return [[name, f"{value:.6g}"] for name, value in one["figures"].items()]


def _anchor(one: Mapping[str, Any]) -> str:
    return "table-" + "".join(c if c.isalnum() else "-" for c in one["name"])


def _text(count: int | None) -> str:
    return HIDDEN if count is None else str(count)


def _share(count: int | None, total: int) -> str:
    return "" if count is None or not total else f"{count / total:.1%}"


def _bar(count: int | None, most: int) -> str:
    return ("█" * round(BAR * (count or 0) / most)).ljust(BAR, "░") if most else ""
