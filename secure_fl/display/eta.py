"""How far a run is, how long the rest will take, and who is waited for, in few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from secure_fl.display.figures import duration

BAR = 10
LEVELS = "▁▂▃▄▅▆▇█"
LONGEST = 24  # rounds that a sparkline shows
MOST = 5  # who are waited for by name


@dataclass(slots=True)
class Eta:
    """How far the run is, and from where this process began."""

    clock: Callable[[], float]
    rounds: int
    started: float = field(init=False)
    first: float | None = None  # rounds that were done before
    trained: float | None = None  # when training began

    def __post_init__(self) -> None:
        self.started = self.clock()

    def begin(self, done: float) -> None:
        """A round begins, after so many."""
        if self.first is None:
            self.first, self.trained = done, self.clock()

    @property
    def spent(self) -> float:
        """Seconds since the run began here."""
        return self.clock() - self.started

    def left(self, done: float) -> float | None:
        """Seconds until the last round ends, if rounds go on at the same pace."""
        if self.first is None or self.trained is None or done <= self.first:
            return None
        return (self.clock() - self.trained) * (self.rounds - done) / (done - self.first)

    def told(self, done: float) -> str:
        """Both, in words."""
        left = self.left(done) if done < self.rounds else None
        about = f", about {duration(left)} left" if left is not None else ""
        return f"{duration(self.spent)}{about}"


def bar(done: float, ascii_only: bool = False) -> str:
    """A share as a bar."""
    filled = round(BAR * min(max(done, 0.0), 1.0))
    full, empty = "#-" if ascii_only else "━╌"
    return full * filled + empty * (BAR - filled)


def sparkline(values: Sequence[float]) -> str:
    """The last values as a row of little bars, the lowest and the highest apart."""
    shown = values[-LONGEST:]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    top = len(LEVELS) - 1
    return "".join(
        LEVELS[round((v - low) / (high - low) * top) if high > low else 0] for v in shown
    )


def late(waited: Mapping[str, float], away: Sequence[str] = ()) -> str:
    """Who is waited for, and for how long: the longest first, and the rest counted."""
    names = sorted(waited, key=lambda name: (-waited[name], name))
    shown = [
        f"{name} ({duration(waited[name])}{', away' * (name in away)})" for name in names[:MOST]
    ]
    rest = len(names) - len(shown)
    return ", ".join(shown) + f" and {rest} more" * (rest > 0)
