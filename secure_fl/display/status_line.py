"""Status lines below a pilot's log, at the coordinator and at a hospital."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from secure_fl.display.figures import duration, number
from secure_fl.events import (
    Event,
    MembersGathered,
    PlanAccepted,
    RoundSaved,
    RoundStarted,
    Scored,
    TrainingProgress,
    Waiting,
)

BAR = 10
LEVELS = "▁▂▃▄▅▆▇█"
LONGEST = 24  # rounds that a sparkline shows
MOST = 5  # stragglers shown by name


@dataclass(slots=True)
class Eta:
    """Elapsed and remaining time of a run, from the progress of this process."""

    clock: Callable[[], float]
    rounds: int
    started: float = field(init=False)
    first: float | None = None  # finished rounds when this process started
    trained: float | None = None  # when training began

    def __post_init__(self) -> None:
        self.started = self.clock()

    def begin(self, done: float) -> None:
        """Note that a round starts after `done` rounds."""
        if self.first is None:
            self.first, self.trained = done, self.clock()

    @property
    def spent(self) -> float:
        """Seconds since this process started the run."""
        return self.clock() - self.started

    def left(self, done: float) -> float | None:
        """Estimate the seconds until the end of the last round."""
        if self.first is None or self.trained is None or done <= self.first:
            return None
        return (self.clock() - self.trained) * (self.rounds - done) / (done - self.first)

    def text(self, done: float) -> str:
        """Format elapsed and remaining time."""
        left = self.left(done) if done < self.rounds else None
        about = f", about {duration(left)} left" if left is not None else ""
        return f"{duration(self.spent)}{about}"


def bar(done: float, ascii_only: bool = False) -> str:
    """Draw a fraction as a bar."""
    filled = round(BAR * min(max(done, 0.0), 1.0))
    full, empty = "#-" if ascii_only else "━╌"
    return full * filled + empty * (BAR - filled)


def sparkline(values: Sequence[float]) -> str:
    """Draw the last values as a row of bars, scaled from the lowest to the highest."""
    shown = values[-LONGEST:]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    top = len(LEVELS) - 1
    return "".join(
        LEVELS[round((v - low) / (high - low) * top) if high > low else 0] for v in shown
    )


def late(waited: Mapping[str, float], away: Sequence[str] = ()) -> str:
    """List stragglers with their delay, longest first; count those beyond the first few."""
    names = sorted(waited, key=lambda name: (-waited[name], name))
    shown = [
        f"{name} ({duration(waited[name])}{', away' * (name in away)})" for name in names[:MOST]
    ]
    rest = len(names) - len(shown)
    return ", ".join(shown) + f" and {rest} more" * (rest > 0)


Input = TypeVar("Input")
Output = TypeVar("Output")


class CoordinatorStatus:
    """Status of a coordinator: rounds and stragglers; it knows no scores."""

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        # members without an answer to the step
        self.waited_for: Callable[[], Mapping[str, float]] = dict
        self.connected: Callable[[], Collection[str]] = set
        self._rounds = rounds
        self._clock, self._pace = clock, Eta(clock, rounds)
        self._round, self._members = 0, tuple[str, ...]()
        self._missing: dict[str, float] = {}  # members that the run needs, and when the wait began

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        match event:
            case Waiting(parties=parties):
                now = self._clock()
                self._missing = {name: self._missing.get(name, now) for name in parties}
            case MembersGathered(members=members):
                self._missing, self._members = {}, members
            case RoundStarted(members=members, round=number):
                self._missing, self._members, self._round = {}, members, number
                self._pace.begin(number - 1)

    def lines(self) -> list[str]:
        """Return the lines below the log."""
        if self._missing or not self._members:
            now = self._clock()
            missing = {name: now - since for name, since in self._missing.items()}
            return [f"gathering; waiting for {late(missing) or 'hospitals'}"]
        done = min(max(self._round - 1, 0), self._rounds)
        at = f"round {min(max(self._round, 1), self._rounds)} of {self._rounds}"
        head = f"{at} {bar(done / max(self._rounds, 1))} {self._pace.text(done)}"
        waited, here = dict(self.waited_for()), self.connected()
        if not waited:
            return [head, "adding the updates"]
        answered = f"{max(len(self._members) - len(waited), 0)} of {len(self._members)}"
        away = [name for name in waited if name not in here]
        return [head, f"{answered} have answered this step; waiting for {late(waited, away)}"]


class SiteStatus:
    """Status of a hospital: its training, and awaited members."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._run, self._round, self._rounds = "", 0, 0
        self._pace: Eta | None = None
        self._busy = False
        self._at: TrainingProgress | None = None  # the last step of training in this round
        self._missing: tuple[str, ...] = ()
        self._name, self._curve = "", list[float]()

    def around(self, step: Callable[[Input], Output]) -> Callable[[Input], Output]:
        """Wrap `step`, to note when a step begins and ends."""

        def stepped(frame: Input) -> Output:
            self._busy, self._since = True, self._clock()
            try:
                return step(frame)
            finally:
                self._busy, self._since = False, self._clock()

        return stepped

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        match event:
            case PlanAccepted(run=run, rounds=rounds):
                self._run, self._rounds = run, rounds
                self._pace, self._round, self._missing = None, 0, ()
            case Waiting(parties=parties):
                self._missing = parties
            case RoundSaved(round=number):
                self._round, self._at, self._missing = number, None, ()
                self._pace = self._pace or Eta(self._clock, self._rounds)
                self._pace.begin(number - 1)
            case TrainingProgress():
                self._at = event
            case Scored(split="dev", model=""):
                self._measured(event)

    def lines(self) -> list[str]:
        """Return the lines below the log."""
        if self._pace is None:
            whom = f" for {', '.join(self._missing)}" if self._missing else " for the coordinator"
            return [f"{self._run} waiting{whom}".strip()]
        done = min(self._round - 1 + self._share, self._rounds)
        at = f"{self._run}: round {min(self._round, self._rounds)} of {self._rounds}"
        head = f"{at} {bar(done / max(self._rounds, 1))} {self._pace.text(done)}"
        scores = f"dev {self._name} {number(self._curve[-1])} {sparkline(self._curve)}".rstrip()
        return [head, self._doing(), *([scores] if self._curve else [])]

    @property
    def _share(self) -> float:
        return self._at.step / max(self._at.steps, 1) if self._at else 0.0

    def _doing(self) -> str:
        if self._missing:
            return f"waiting for {', '.join(self._missing)}"
        if not self._busy:
            return f"answered; waiting for the others, {duration(self._clock() - self._since)}"
        if not self._at or self._share == 1:
            return f"working on the coordinator's step, {duration(self._clock() - self._since)}"
        loss = number(self._at.loss)
        return f"training: step {self._at.step} of {self._at.steps}, loss {loss}"

    def _measured(self, event: Scored) -> None:
        """Follow the pooled score if there is one, else this hospital's own."""
        scores = event.numbers()
        name = next((name for name in scores if name != "loss"), "")
        if not name:
            return
        named = name if event.pooled else f"{name} here"
        if named != self._name and not event.pooled and self._curve:
            return
        if named != self._name:
            self._name, self._curve = named, []
        self._curve.append(scores[name])
