"""The tables of measurements, for the terminal and for benchmarks/results/peers.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.peers.mishaps import MISHAPS
from benchmarks.report import Columns, Grid

OURS, CALM = "ours", "nothing"
TINY = 138_178  # trained values of the built-in model
RUINED = 1.0  # difference of a weight; all weights are within one half
LIKE_CALM = 1.2  # times the difference of the calm run's model, which has a grid
READ = 0.9  # correlation from which a site's update is known
WHO_LEARNS = (
    ("tap", "learnt", "the server, by looking"),
    ("tap", "learnt_with_a_site", "the server, by looking, with one site's help"),
    ("alone", "learnt_from_model", "every site, if the server adds one site alone"),
)
Row = Mapping[str, Any]
Rows = Mapping[str, Row]


def _measured(show: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: show(row) if row["turns"] else ""


def _seconds(row: Row) -> str:
    return _spread(row["seconds"]) if row["turns"] else _error(row)


def _error(row: Row) -> str:
    return str(row["error"]).strip().splitlines()[-1][:120]


def _spread(values: Sequence[float]) -> str:
    middle, low, high = values
    return f"{middle:.2f}" + (f" ({low:.2f}-{high:.2f})" if low < high else "")


def _rounds_a_minute(row: Row) -> str:
    if not row["turns"]:
        return _error(row)
    middle, high, low = (60 / seconds for seconds in row["seconds"])
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


NETWORKED: Columns = {
    "": "{r[system]}",
    "server blind": lambda row: "yes" if row["protected"] else "no",
    "seconds of a round": _seconds,
    "CPU s of a round": _measured(lambda row: _spread(row["cpu"])),
    "kB up + down": _measured(lambda r: f"{r['up'][0] / 1e3:,.0f} + {r['down'][0] / 1e3:,.0f}"),
    "until the first round, s": _measured(lambda row: f"{row['first'][0]:.0f}"),
    "MB server / site": _measured(
        lambda r: f"{r['peak_server'][0] / 1e6:.0f} / {r['peak_site'][0] / 1e6:.0f}"
    ),
    "lines": _measured(lambda row: str(row["lines"] or "settings")),
    "accuracy (off)": _measured(lambda r: f"{r['accuracy'][0]:.3f} ({r['off'][0]:.0e})"),
}
SIMULATED: Columns = {
    "": "{r[system]}",
    "rounds a minute": _rounds_a_minute,
    "CPU s of a round": NETWORKED["CPU s of a round"],
    "MB": _measured(lambda row: f"{row['peak_site'][0] / 1e6:.0f}"),
    "until the first round, s": NETWORKED["until the first round, s"],
    "accuracy (off)": NETWORKED["accuracy (off)"],
}
GROWTH: Columns = {
    "": "{r[1][system]}",
    "values": "{r[0]:,}",
    "seconds of a round": lambda r: _spread(r[1]["seconds"]),
    "CPU s": lambda r: _spread(r[1]["cpu"]),
    "MB up + down": lambda r: f"{r[1]['up'][0] / 1e6:,.2f} + {r[1]['down'][0] / 1e6:,.2f}",
    "MB server / site": lambda r: (
        f"{r[1]['peak_server'][0] / 1e6:,.0f} / {r[1]['peak_site'][0] / 1e6:,.0f}"
    ),
}


def ratios(rows: Rows, ours: str = OURS) -> Grid:
    """Divide every system's medians by ours."""

    def over(row: Row) -> tuple[str, str, str, str]:
        mine = rows[ours]
        sent = (row["up"][0] + row["down"][0]) / (mine["up"][0] + mine["down"][0])
        clock, cpu = (row[what][0] / mine[what][0] for what in ("seconds", "cpu"))
        return row["system"], f"{clock:.2f}x", f"{cpu:.2f}x", f"{sent:.2f}x"

    lines = [over(row) for name, row in rows.items() if row["turns"] and name != ours]
    heads = (f"over {rows[ours]['system']}", "seconds of a round", "CPU of a round", "bytes")
    return Grid("", heads, lines)


def growth(documents: Sequence[Mapping[str, Any]]) -> Grid:
    """Lay out a row for each size of the model, of ours and of NVFLARE."""
    sizes = [
        (document["sizes"].get("values", TINY), row)
        for document in documents
        for row in document["rows"].values()
        if row["turns"] and row["system"].startswith(("ours", "NVFLARE"))
    ]
    return Grid.of("", sizes, GROWTH)


def broken(rows: Rows) -> Grid:
    """Lay out the end of each run with a mishap, with a column for each system."""
    outside = [name for name, mishap in MISHAPS.items() if not mishap.reads]
    lines = [
        [MISHAPS[name].title, *(ending(row, name) for row in rows.values())] for name in outside
    ]
    return Grid("one mishap a run, from the second round on", _heads(rows), lines, align="---")


def learning(rows: Rows) -> Grid:
    """Lay out the known share of a site's update, for each role."""
    lines = [
        [who, *(known(row, mishap, key) for row in rows.values())]
        for mishap, key, who in WHO_LEARNS
    ]
    return Grid("correlation with a site's update", _heads(rows), lines, align="---")


def _heads(rows: Rows) -> list[str]:
    return ["", *(row["system"].removesuffix(", TLS") for row in rows.values())]


def ending(row: Row, mishap: str) -> str:
    """Describe the end of a run, its model, and whether the server's logs mention the mishap."""
    if mishap not in row:
        return "not run"
    found, calm = row[mishap], row[CALM]
    says = "reported" if found["said"] else "not reported"
    if not found["ended"]:
        waits = "TimeoutE" in str(found["why"])
        return f"{'does not end' if waits else 'stops'}; {says}"
    if not found["finite"] or found["off"] > RUINED:
        return f"**model ruined**; {says}"
    same = found["off"] < LIKE_CALM * calm["off"]
    return f"ends, {'the same model' if same else 'without it'}; {says}"


def known(row: Row, mishap: str, key: str) -> str:
    """Format the correlation with a site's update; nothing if the system has no such mishap."""
    if mishap not in row:
        return ""
    found = row[mishap]
    value = max(found["learnt"], found[key]) if key == "learnt_with_a_site" else found[key]
    if mishap != "tap" and not found["ended"] and value < READ:
        return "refused"
    return f"**{value:.2f}**" if value >= READ else f"{value:.2f}"
