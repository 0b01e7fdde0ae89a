"""How a pilot stands, in a few lines below its log: at the coordinator, and at a hospital."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from secure_fl.display.figures import duration, number
from secure_fl.display.pace import Pace, bar, late, sparkline

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class LeadStanding:
    """The coordinator's: it knows rounds and who is late, and nothing of what is learned."""

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.waited_for: Callable[[], Mapping[str, float]] = dict  # who has not answered a step
        self.connected: Callable[[], Collection[str]] = set
        self._rounds = rounds
        self._clock, self._pace = clock, Pace(clock, rounds)
        self._round, self._members = 0, list[str]()
        self._missing: dict[str, float] = {}  # since when, before a run can go on

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        match event["event"]:
            case "waiting":
                now = self._clock()
                self._missing = {name: self._missing.get(name, now) for name in event["parties"]}
            case "gathered" | "round" as what:
                self._missing, self._members = {}, list(event["members"])
                if what == "round":
                    self._round = int(event["round"])
                    self._pace.begin(self._round - 1)

    def lines(self) -> list[str]:
        """What stands below the log."""
        if self._missing or not self._members:
            now = self._clock()
            missing = {name: now - since for name, since in self._missing.items()}
            return [f"gathering; waits for {late(missing) or 'hospitals'}"]
        done = min(max(self._round - 1, 0), self._rounds)
        at = f"round {min(max(self._round, 1), self._rounds)} of {self._rounds}"
        head = f"{at} {bar(done / max(self._rounds, 1))} {self._pace.told(done)}"
        waited, here = dict(self.waited_for()), self.connected()
        if not waited:
            return [head, "adding what was sent"]
        answered = f"{max(len(self._members) - len(waited), 0)} of {len(self._members)}"
        away = [name for name in waited if name not in here]
        return [head, f"{answered} have answered this step; waits for {late(waited, away)}"]


class SiteStanding:
    """A hospital's: its own training, and for whom it waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._run, self._round, self._rounds = "", 0, 0
        self._pace: Pace | None = None
        self._busy = False
        self._at: Mapping[str, Any] = {}  # the last step of training in this round
        self._missing: list[str] = []
        self._name, self._curve = "", list[float]()

    def around(self, step: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
        """The same step, of which this knows when it begins and when it is answered."""

        def stepped(frame: Asked) -> Answer:
            self._busy, self._since = True, self._clock()
            try:
                return step(frame)
            finally:
                self._busy, self._since = False, self._clock()

        return stepped

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        match event["event"]:
            case "invited":
                self._run, self._rounds = str(event["run"]), int(event.get("rounds", 0))
                self._pace, self._round, self._missing = None, 0, []
            case "waiting":
                self._missing = list(event["parties"])
            case "round":
                self._round, self._at, self._missing = int(event["round"]), {}, []
                self._pace = self._pace or Pace(self._clock, self._rounds)
                self._pace.begin(self._round - 1)
            case "train":
                self._at = event
            case "pooled" | "metrics" if event.get("split") == "dev" and "model" not in event:
                self._measured(event)

    def lines(self) -> list[str]:
        """What stands below the log."""
        if self._pace is None:
            whom = f" for {', '.join(self._missing)}" if self._missing else " to be asked"
            return [f"{self._run} waits{whom}".strip()]
        done = min(self._round - 1 + self._share, self._rounds)
        at = f"{self._run}: round {min(self._round, self._rounds)} of {self._rounds}"
        head = f"{at} {bar(done / max(self._rounds, 1))} {self._pace.told(done)}"
        scores = f"dev {self._name} {number(self._curve[-1])} {sparkline(self._curve)}".rstrip()
        return [head, self._doing(), *([scores] if self._curve else [])]

    @property
    def _share(self) -> float:
        return self._at["step"] / max(self._at["steps"], 1) if self._at else 0.0

    def _doing(self) -> str:
        if self._missing:
            return f"waits for {', '.join(self._missing)}"
        if not self._busy:
            return f"has answered; waits for the others, {duration(self._clock() - self._since)}"
        if not self._at or self._share == 1:
            return f"at work on the coordinator's step, {duration(self._clock() - self._since)}"
        loss = number(self._at.get("loss"))
        return f"trains: step {self._at['step']} of {self._at['steps']}, loss {loss}"

    def _measured(self, event: Mapping[str, Any]) -> None:
        """All hospitals' score where there is one; else this hospital's own."""
        name = next((k for k, v in event.items() if isinstance(v, float) and k != "loss"), "")
        if not name:
            return
        named = name + " here" * (event["event"] == "metrics")
        if named != self._name and event["event"] == "metrics" and self._curve:
            return
        if named != self._name:
            self._name, self._curve = named, []
        self._curve.append(float(event[name]))
