"""Progress of a run, remaining time and stragglers, in short texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from secure_fl.display.figures import duration

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
