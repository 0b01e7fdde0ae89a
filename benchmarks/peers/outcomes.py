"""What mishaps did, in words: the cells of docs/peers.md's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.breaking import CALM
from benchmarks.peers.mishaps import MISHAPS

RUINED = 1.0  # a weight that is so far off: they lie within one half
LIKE_CALM = 1.2  # times as far off as the calm run's model, which is off by its grid
READ = 0.9  # a correlation from which on a site's update is known
WHO_LEARNS = (
    ("tap", "learnt", "the server, by looking"),
    ("tap", "learnt_with_a_site", "the server, by looking, with one site's help"),
    ("alone", "learnt_from_model", "every site, if the server adds one site alone"),
    ("keys", "learnt", "the server, if it hands a site keys of its own"),
)
Rows = Mapping[str, Any]


def broken(rows: Rows) -> list[list[str]]:
    """A row for each mishap, a column for each system."""
    outside = [name for name, mishap in MISHAPS.items() if not mishap.reads]
    return [
        [MISHAPS[name].title, *(ending(row, name) for row in rows.values())] for name in outside
    ]


def ending(row: Rows, mishap: str) -> str:
    """How a run ended, what its model is worth, and whether the server's side says anything."""
    if mishap not in row:
        return "not run"
    found, calm = row[mishap], row[CALM]
    says = "says so" if found["said"] else "says nothing"
    if not found["ended"]:
        waits = "TimeoutE" in str(found["why"])
        return f"{'does not end' if waits else 'stops'}; {says}"
    if not found["finite"] or found["off"] > RUINED:
        return f"**model ruined**; {says}"
    same = found["off"] < LIKE_CALM * calm["off"]
    return f"ends, {'the same model' if same else 'without it'}; {says}"


def learning(rows: Rows) -> list[list[str]]:
    """A row for each way to learn a site's update, a column for each system."""
    return [
        [said, *(known(row, mishap, key) for row in rows.values())]
        for mishap, key, said in WHO_LEARNS
    ]


def known(row: Rows, mishap: str, key: str) -> str:
    """How much of a site's update is known: a correlation."""
    if mishap not in row:
        return "" if mishap in MISHAPS else "not run"
    found = row[mishap]
    value = max(found["learnt"], found[key]) if key == "learnt_with_a_site" else found[key]
    if mishap != "tap" and not found["ended"] and value < READ:
        return "refused"
    return f"**{value:.2f}**" if value >= READ else f"{value:.2f}"
