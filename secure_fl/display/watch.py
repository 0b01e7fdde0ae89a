"""Live view of a run: a redrawn table in a terminal or notebook, lines elsewhere."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from secure_fl.display.figures import counted, duration, number, size
from secure_fl.display.grid import Grid
from secure_fl.display.status_line import MOST, Eta, bar, sparkline
from secure_fl.events import (
    Crossing,
    Event,
    ExtensionEvent,
    MembershipChanged,
    MembersJoined,
    MembersLost,
    MembersReturned,
    RoundStarted,
    Scored,
    TrainingProgress,
    Warned,
    metric_name,
)

COORDINATOR = "coordinator"
PLAIN: Mapping[str, Any] = {"markup": False, "emoji": False, "highlight": False}
QUIET_FOR = 30.0  # seconds without output after which lines report a long round's progress


@dataclass(slots=True)
class _Line:
    """Progress of one hospital."""

    round: int = 0
    step: int = 0
    steps: int = 1
    loss: float | None = None
    metric: float | None = None
    up: int = 0
    down: int = 0
    note: str = ""
    ended: float | None = None  # time when its training in that round ended

    @property
    def share(self) -> float:
        """The finished fraction of its training in this round."""
        return self.step / self.steps


class Watch:
    """Listener that shows a run's events on a console."""

    def __init__(
        self,
        console: Console,
        title: str,
        rounds: int,
        metric: str,
        clock: Callable[[], float] = time.monotonic,
        scored_class: str | None = None,
    ) -> None:
        self.round = 0
        self._console, self._title, self._rounds, self._metric = console, title, rounds, metric
        self._metric_name = metric_name(metric, scored_class)
        self._lines: dict[str, _Line] = {}
        self._all = _Line()  # pooled scores
        self._curve: list[float] = []
        self._clock, self._pace, self._said = clock, Eta(clock, rounds), clock()
        self._live: Live | NotebookCell | None = None  # None: print lines

    def __enter__(self) -> Watch:
        redraws = self._console.is_terminal or self._console.is_jupyter
        if redraws and not self._console.quiet:
            self._live = self._place()
            self._live.start()
        else:
            self._console.print(self._title, style="bold")
        return self

    def _place(self) -> Live | NotebookCell:
        if self._console.is_jupyter:
            return NotebookCell(self.shown, self._clock)
        return Live(console=self._console, get_renderable=self.shown, vertical_overflow="visible")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.party == COORDINATOR:
            self._coordinated(event)
        else:
            self._follow(event, self._lines.setdefault(event.party, _Line()))
        if isinstance(self._live, NotebookCell):
            self._live.refresh()

    def _follow(self, event: Event, line: _Line) -> None:
        match event:
            case TrainingProgress():
                line.round, line.step, line.steps = event.round, event.step, event.steps
                line.loss = event.loss
                line.ended = self._clock() if line.share == 1 else None
                self._pace.trained = self._pace.trained or self._clock()
                self._still_there(event.party, line)
            case Scored(split="dev", model=""):
                shown = self._all if event.pooled else line
                shown.metric = event.values.get(self._metric, shown.metric)
            case Crossing():
                line.up += event.size if event.direction == "out" else 0
                line.down += event.size if event.direction == "in" else 0
            case Warned(text=text):
                self._console.print(f"{event.party}: {text}", style="yellow")
            case ExtensionEvent(text=str(text)) if event.party == min(self._lines):
                self._say(text)  # all hospitals write the same one

    def shown(self) -> RenderableType:
        """Render all hospitals, or as many as fit the terminal."""
        names = sorted(self._lines, key=lambda name: (not self._lines[name].note, name))
        room = max(self._console.height - 6, 3)
        shown = names if len(names) <= room else names[:room]
        metric = f"dev {self._metric_name}"
        columns = ["hospital", "round", "", "loss", metric, "sent", "received", ""]
        rows = [self._row(name, self._lines[name]) for name in sorted(shown)]
        rest = len(names) - len(shown)
        more = [Text(f"and {rest} more hospitals that do not fit the screen")] if rest else []
        heads = [Text(self._headline(), style="bold"), *map(Text, filter(None, [self._late()]))]
        return Group(*heads, Grid("", columns, rows), *more)

    def _headline(self) -> str:
        done = f"round {min(self.round + 1, self._rounds)}/{self._rounds}"
        if self.round >= self._rounds:
            done = f"{counted(self._rounds, 'round')} done"
        return "  ".join([self._title, done, self._score(), self._time()])

    def _late(self) -> str:
        """Name the hospitals that still train, once others have finished, and the waiting time."""
        at = self.round + 1
        ended = {n: x.ended for n, x in self._lines.items() if x.round == at and x.ended}
        behind = [n for n, x in self._lines.items() if n not in ended and x.note != "lost"]
        if not ended or not behind:
            return ""
        shown = [f"{name} ({self._far(self._lines[name])})" for name in sorted(behind)[:MOST]]
        rest = f" and {len(behind) - MOST} more" if len(behind) > MOST else ""
        since = duration(self._clock() - min(ended.values()))
        ready = f"{len(ended)} of {len(ended) + len(behind)} have trained, for {since}"
        return f"{ready}; waiting for {', '.join(shown)}{rest}"

    def _far(self, line: _Line) -> str:
        begun = line.round == self.round + 1
        return f"step {line.step} of {line.steps}" if begun else "not started"

    def _row(self, name: str, line: _Line) -> list[str]:
        over = self.round >= self._rounds
        done = self._rounds if over else max(line.round - 1, 0) + line.share
        return [
            name,
            f"{max(line.round, self.round)}/{self._rounds}",
            bar(done / max(self._rounds, 1), self._console.options.ascii_only),
            number(line.loss),
            number(line.metric),
            size(line.up),
            size(line.down),
            line.note,
        ]

    def _coordinated(self, event: Event) -> None:
        match event:
            case MembersLost() | MembersReturned():
                for party in event.parties:
                    lost = isinstance(event, MembersLost)
                    self._lines.setdefault(party, _Line()).note = "lost" if lost else ""
                self._console.print(event.sentence(), style="yellow")
            case MembersJoined(round=number):
                text = f"joining with round {number}: {event.names}"
                self._console.print(text, style="yellow")
            case MembershipChanged(left=left) if left:
                self._console.print(f"left: {', '.join(left)}", style="yellow")
            case RoundStarted(round=number):
                self._rounded(number - 1)

    def _rounded(self, round: int) -> None:
        """Note a finished round; the first event is about a round before this process began."""
        self.round = round
        if self._pace.first is None:
            self._pace.first = float(round)
            if round and self._live is None:
                self._console.print(f"resumed after round {round}/{self._rounds}")
            return
        if (score := self._metric_of_all()) is not None:
            self._curve.append(score)
        if self._live is not None:
            return
        losses = [line.loss for line in self._lines.values() if line.loss is not None]
        loss = sum(losses) / len(losses) if losses else None
        at = f"round {round}/{self._rounds}  loss {number(loss)}"
        self._say(f"{at}  {self._score()}  {self._time()}")

    def _still_there(self, party: str, line: _Line) -> None:
        """Without a terminal, print progress during a long round."""
        if self._live is None and self._clock() - self._said > QUIET_FOR:
            at = f"round {line.round}/{self._rounds}, {party} at step {line.step} of {line.steps}"
            late = f"; {behind}" if (behind := self._late()) else ""
            self._say(f"{at}  loss {number(line.loss)}  {self._time()}{late}")

    def _say(self, text: str) -> None:
        self._said = self._clock()
        self._console.print(text, soft_wrap=True)

    def _time(self) -> str:
        shares = [line.share if line.round > self.round else 0.0 for line in self._lines.values()]
        done = self.round + (sum(shares) / len(shares) if shares else 0.0)
        return self._pace.text(done)

    def _score(self) -> str:
        curve = "" if self._console.options.ascii_only else f" {sparkline(self._curve)}"
        return f"dev {self._metric_name} {number(self._metric_of_all())}{curve}".rstrip()

    def _metric_of_all(self) -> float | None:
        """Return the pooled metric, or else the hospitals' mean."""
        scores = [line.metric for line in self._lines.values() if line.metric is not None]
        mean = sum(scores) / len(scores) if scores else None
        return mean if self._all.metric is None else self._all.metric


def watching(
    title: str, rounds: int, metric: str, shown: bool, scored_class: str | None = None
) -> AbstractContextManager[Watch | None]:
    """Show a run on stderr: a table in a terminal or notebook, elsewhere a line per round."""
    if not shown:
        return nullcontext()
    return Watch(Console(stderr=True, **PLAIN), title, rounds, metric, scored_class=scored_class)


WIDTH = 100  # characters of a notebook's table
PAUSE = 0.25  # minimum seconds between two updates of a notebook


class NotebookCell:
    """Display in the current notebook cell that can be updated."""

    def __init__(
        self, shown: Callable[[], RenderableType], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shown, self._clock, self._drawn = shown, clock, 0.0
        self._handle: Any = None

    def start(self) -> None:
        """Display the first state in the cell."""
        from IPython.display import display

        self._handle = display(self._html(), display_id=True)
        self._drawn = self._clock()

    def refresh(self) -> None:
        """Update the cell, at limited rate: each update is a message to the browser."""
        if self._clock() - self._drawn >= PAUSE:
            self.stop()

    def stop(self) -> None:
        """Display the current state."""
        if self._handle is not None:
            self._handle.update(self._html())
            self._drawn = self._clock()

    def _html(self) -> Any:
        from IPython.display import HTML

        text = io.StringIO()
        console = Console(
            file=text,
            force_jupyter=False,
            force_terminal=False,
            color_system=None,
            width=WIDTH,
            **PLAIN,
        )
        console.print(self._shown())
        return HTML(f'<pre style="line-height: 1.3">{escape(text.getvalue())}</pre>')
