"""A run as it happens: one line per hospital, redrawn in a terminal; else one line per round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from secure_fl.cli.show import duration, number, size

COORDINATOR = "coordinator"
PER_SECOND = 8


@dataclass(slots=True)
class _Line:
    """Where one hospital is."""

    round: int = 0
    step: int = 0
    steps: int = 1
    loss: float | None = None
    metric: float | None = None
    up: int = 0
    down: int = 0
    note: str = ""


def warning(event: Mapping[str, Any]) -> str:
    """Say what a member found out about itself; only whoever watches the run here reads it."""
    if event["code"] == "public overlap":
        count, own = event["count"], "its own records hold the same text"
        return f"{count} public record{'s are' if count != 1 else ' is'} not only public: {own}"
    if event["code"] == "one by one":
        return f"DP-SGD takes records one by one, which is slower: {event['model']} needs it"
    if event["code"] == "cut read by cls":
        return 'a cut checkpoint is read by its first token and learns late: pooling = "attentive"'
    return str(event["code"])


class Watch:
    """Listens to a run's events and shows them on a console."""

    def __init__(self, console: Console, title: str, rounds: int, metric: str) -> None:
        self.round = 0
        self._console, self._title, self._rounds, self._metric = console, title, rounds, metric
        self._lines: dict[str, _Line] = {}
        self._all = _Line()  # over all hospitals' records, where scores are pooled
        self._started = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Watch:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(
                console=self._console,
                get_renderable=self.table,
                refresh_per_second=PER_SECOND,
                transient=False,
            )
            self._live.start()
        else:
            self._console.print(self._title, style="bold")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event."""
        kind, party = event["event"], str(event["party"])
        if party == COORDINATOR:
            self._coordinated(kind, event)
            return
        line = self._lines.setdefault(party, _Line())
        if kind == "train":
            line.round, line.step, line.steps = event["round"], event["step"], event["steps"]
            line.loss = event["loss"]
        elif kind == "metrics":
            self._measured(line, event)
        elif kind == "pooled":
            self._measured(self._all, event)
        elif kind == "crossing":
            bytes_ = event["head_bytes"] + event["bulk_bytes"]
            line.up += bytes_ if event["direction"] == "out" else 0
            line.down += bytes_ if event["direction"] == "in" else 0
        elif kind == "warning":
            self._console.print(f"{party}: {warning(event)}", style="yellow")

    def table(self) -> Table:
        """Draw all hospitals."""
        spent = duration(time.monotonic() - self._started)
        every = f"dev {self._metric} {number(self._metric_of_all())}"
        table = Table(title=f"{self._title}  {spent}  {every}", title_justify="left", box=None)
        for column in ("hospital", "round", "", "loss", f"dev {self._metric}", "sent", "received"):
            table.add_column(column, justify="left" if column in ("hospital", "") else "right")
        for party, line in sorted(self._lines.items()):
            over = self.round >= self._rounds
            done = self._rounds if over else max(line.round - 1, 0) + line.step / line.steps
            table.add_row(
                party,
                f"{max(line.round, self.round)}/{self._rounds}",
                ProgressBar(total=self._rounds, completed=done, width=24),
                number(line.loss),
                Text(number(line.metric), style="bold green"),
                size(line.up),
                size(line.down),
                Text(line.note, style="red"),
            )
        return table

    def _coordinated(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "lost":
            for party in event["parties"]:
                self._lines.setdefault(party, _Line()).note = "lost"
            self._console.print(f"lost: {', '.join(event['parties'])}", style="yellow")
        elif kind == "joined":
            names, round = ", ".join(event["parties"]), event["round"]
            self._console.print(f"joining with round {round}: {names}", style="yellow")
        elif kind == "parties" and event["left"]:
            self._console.print(f"left: {', '.join(event['left'])}", style="yellow")
        elif kind == "round":
            self._rounded(event["round"] - 1)  # it tells the round that begins

    def _measured(self, line: _Line, event: dict[str, Any]) -> None:
        if event.get("split") == "dev" and "model" not in event:
            line.metric = event.get(self._metric, line.metric)

    def _rounded(self, round: int) -> None:
        """A round is over everywhere."""
        self.round = round
        if self._live is not None or not round:
            return
        losses = [line.loss for line in self._lines.values() if line.loss is not None]
        loss = sum(losses) / len(losses) if losses else None
        self._console.print(
            f"round {round}/{self._rounds}  loss {number(loss)}  dev {self._metric} "
            f"{number(self._metric_of_all())}  {duration(time.monotonic() - self._started)}"
        )

    def _metric_of_all(self) -> float | None:
        """Over all records together, or the hospitals' mean."""
        scores = [line.metric for line in self._lines.values() if line.metric is not None]
        mean = sum(scores) / len(scores) if scores else None
        return mean if self._all.metric is None else self._all.metric
