"""What came of guarded runs, a line for each that ended: whoever goes on leaves out what is there.

A cell is of a set, a seed, an attack or none, and a guard or none; all else of it follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

WITHOUT, HONEST = "without the bad party", "nobody attacks"
COLUMNS = ("set", "the bad hospital", "seeds", "guard off", "on", "obeyed, off", "on", "refused")


@dataclass(frozen=True, slots=True)
class Row:
    """One run: of which set and seed, against what, and what came out."""

    set: str
    seed: int
    run: str
    guarded: bool
    metric: float | None  # None: it was stopped
    obeyed: float | None
    refused: int
    rounds: int

    @property
    def key(self) -> tuple[str, int, str, bool]:
        """Which cell it is."""
        return self.set, self.seed, self.run, self.guarded


class Cells:
    """A file of rows that only grows; None keeps them in memory."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self._kept = {row.key: row for row in (Row(**json.loads(line)) for line in lines)}

    def row(self, key: tuple[str, int, str, bool], run: Callable[[], Row]) -> Row:
        """The row that is kept, or of a run, which is then kept."""
        if key not in self._kept:
            self._kept[key] = row = run()
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
        return self._kept[key]


def markdown(rows: Sequence[Row]) -> str:
    """A table of a page: means over seeds, in points; refused rounds of all, with the guard on."""
    lines: list[tuple[str, ...]] = [COLUMNS, ("---", "---", *["---:"] * (len(COLUMNS) - 2))]
    for name, run in dict.fromkeys((row.set, row.run) for row in rows):
        some = [row for row in rows if (row.set, row.run) == (name, run)]
        halves = [[row for row in some if row.guarded == on] for on in (False, True)]
        refused, rounds = sum(r.refused for r in halves[1]), sum(r.rounds for r in halves[1])
        lines.append(
            (
                name,
                run,
                str(len({row.seed for row in some})),
                *(_points([row.metric for row in half]) for half in halves),
                *(_points([row.obeyed for row in half]) for half in halves),
                f"{refused} of {rounds}" if rounds else "–",
            )
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _points(values: Sequence[float | None]) -> str:
    """A mean in points; a run that was stopped has none, and counts as 0."""
    return f"{100 * mean(value or 0.0 for value in values):.1f}" if values else "–"
