"""Where else a run's scores can go, as it happens: a sink is a listener of `Federation`.

None is there unless it is asked for. A sink tells whoever reads its target the scores of each
hospital, by round and name: under sealed sums nobody but that hospital would learn them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Listener: TypeAlias = Callable[[dict[str, Any]], None]
SCORES = ("metrics", "pooled")


def to_csv(file: Path | str) -> Listener:
    """Append a line per score to a file: who, round, split, model, name, value."""
    target = Path(file)

    def sink(event: dict[str, Any]) -> None:
        lines = scores_of(event)
        if not lines:
            return
        begins = not target.exists()
        with target.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if begins:
                writer.writerow(("who", "round", "split", "model", "name", "value"))
            writer.writerows(lines)

    return sink


def scores_of(event: Mapping[str, Any]) -> list[tuple[str, int, str, str, str, float]]:
    """The scores that an event tells; none of most events."""
    if event["event"] not in SCORES:
        return []
    who = "all records" if event["event"] == "pooled" else str(event["party"])
    at = (who, int(event["round"]), str(event["split"]), str(event.get("model", "model")))
    return [(*at, name, value) for name, value in event.items() if isinstance(value, float)]
