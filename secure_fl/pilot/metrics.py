"""What happened in a run as numbers for Prometheus; `scraping` shows them.

A coordinator's meter counts what a coordinator knows. Scores and spent privacy are of one
hospital's records, so that hospital's own meter alone has them. Nothing here can hold up a run:
events only change a table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from secure_fl.errors import RunError
from secure_fl.events import (
    Crossing,
    Event,
    MemberRestarted,
    MembersExcluded,
    MembersGathered,
    MembersLost,
    MembersReturned,
    PlanAccepted,
    PredictionNoise,
    PrivacySpent,
    Refused,
    RoundSaved,
    RoundStarted,
    Scored,
    Stopped,
    Traffic,
    Waiting,
)

FAMILIES = {  # each with its type and what it says
    "round": ("gauge", "The round that was begun last; one more than asked for at the end."),
    "members": ("gauge", "How many members take part."),
    "member_present": ("gauge", "1 while a member takes part, 0 when it was lost."),
    "connected": ("gauge", "1 while the other end is connected."),
    "gathered_total": ("counter", "How often a run was gathered or joined."),
    "lost_total": ("counter", "How often a member did not answer."),
    "returned_total": ("counter", "How often a member came back between rounds."),
    "restarted_total": ("counter", "How often a member's process had begun anew."),
    "waiting": ("gauge", "1 while too few members are there to begin or go on, else 0."),
    "waited_for_seconds": ("gauge", "Seconds since this member is waited for."),
    "stopped_total": ("counter", "How often a run stopped early, by code."),
    "refused_total": ("counter", "Plans and frames that were refused, by code."),
    "dropped_messages_total": ("counter", "Messages refused before they were read, by reason."),
    "bytes_total": ("counter", "Bytes up, from hospitals, and down, to them."),
    "score": ("gauge", "A score of the shared model on this hospital's own records."),
    "pooled_score": ("gauge", "A score of the shared model on all hospitals' records together."),
    "epsilon": ("gauge", "Privacy that is spent, as the run stated it last."),
    "seconds_since_last_event": ("gauge", "Seconds since anything happened in the run."),
}
Labels = tuple[tuple[str, str], ...]


class Meter:
    """Turns events into numbers: of a hospital if it is given a name, else of a coordinator."""

    def __init__(
        self, party: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._party, self._clock = party, clock
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._last = clock()
        # Asked for at each request; what they know changes without an event.
        self.connected: Callable[[], Mapping[str, bool]] = dict
        self.dropped: Callable[[], Mapping[str, int]] = dict
        self.slow: Callable[[], Mapping[str, float]] = dict  # seconds; of a step's answers
        self._awaited: dict[str, float] = {}  # since when a run waits for them

    def note(self, event: Event) -> None:
        """Take one event of a recorder."""
        with self._lock:
            self._last = self._clock()
            match event:
                case Waiting(parties=parties):
                    self._wait(parties)
                case RoundStarted(round=number, members=members):
                    self._round(number, members)
                case RoundSaved(round=number, members=members):
                    self._round(number, members)
                case Refused(code=code):
                    self._add("refused_total", code=code)
                case Stopped(code=code, final=False):  # a final one repeats how a round ended
                    self._add("stopped_total", code=code)
                case _ if self._party is None:
                    self._of_coordinator(event)
                case _:
                    self._of_hospital(event)

    def numbers(self) -> dict[tuple[str, Labels], float]:
        """All that there is to show now, by family and labels."""
        peers, dropped, slow = self.connected(), self.dropped(), dict(self.slow())
        with self._lock:
            now, found = self._clock(), dict(self._values)
            found["seconds_since_last_event", ()] = now - self._last
            slow |= {name: now - since for name, since in self._awaited.items()}
        found |= {("waited_for_seconds", _labels(member=m)): t for m, t in slow.items()}
        found |= {("connected", _labels(member=m)): float(up) for m, up in peers.items()}
        return found | {
            ("dropped_messages_total", _labels(reason=reason)): float(count)
            for reason, count in dropped.items()
        }

    def _of_coordinator(self, event: Event) -> None:
        match event:
            case MembersGathered(members=members):
                self._wait(())
                self._add("gathered_total")
                self._members(members)
            case MembersLost(parties=parties, code=code):
                for name in parties:
                    self._add("lost_total", member=name)
                    self._set("member_present", 0, member=name)
                if code is not None:
                    self._add("refused_total", code=code)
            case MembersReturned(parties=parties):
                for name in parties:
                    self._add("returned_total", member=name)
            case MemberRestarted(parties=parties):
                for name in parties:
                    self._add("restarted_total", member=name)
            case MembersExcluded(parties=parties):
                for name in parties:
                    self._set("member_present", 0, member=name)
            case Traffic(bytes=sizes):
                for name, of_member in sizes.items():
                    for direction in ("up", "down"):
                        amount = of_member[direction]
                        self._set("bytes_total", amount, member=name, direction=direction)

    def _of_hospital(self, event: Event) -> None:
        match event:
            case PlanAccepted():
                self._add("gathered_total")
            case Crossing(direction=direction):
                way = "up" if direction == "out" else "down"
                self._add("bytes_total", event.size, direction=way)
            case Scored(split=split):
                family = "pooled_score" if event.pooled else "score"
                for name, value in event.numbers().items():
                    self._set(family, value, split=split, metric=name)
            case PrivacySpent(epsilon=float(spent)):
                self._set("epsilon", spent, of="training")
            case PredictionNoise(facts={"epsilon": float(spent)}):
                self._set("epsilon", spent, of="sums")

    def _round(self, number: int, members: Collection[str]) -> None:
        self._wait(())
        self._set("round", number)
        self._members(members)

    def _wait(self, names: Collection[str]) -> None:
        self._set("waiting", bool(names))
        self._awaited = {name: self._awaited.get(name, self._last) for name in names}

    def _members(self, names: Collection[str]) -> None:
        self._set("members", len(names))
        if self._party is not None:
            return
        for name, labels in list(self._values):
            if name == "member_present":
                self._values[name, labels] = 0.0
        for member in names:
            self._set("member_present", 1, member=member)

    def _set(self, name: str, value: float, **labels: object) -> None:
        self._values[name, _labels(**labels)] = float(value)

    def _add(self, name: str, amount: float = 1, **labels: object) -> None:
        key = name, _labels(**labels)
        self._values[key] = self._values.get(key, 0.0) + amount


@contextmanager
def serving(meter: Meter, port: int | None) -> Iterator[int | None]:
    """Answer requests on a port of this machine, 0 for a free one; None: on none at all."""
    if port is None:
        yield None
        return
    try:
        from secure_fl.pilot.scraping import listening
    except ImportError:
        raise RunError(
            "--metrics needs prometheus_client, which is not installed",
            fix="from a checkout: pip install --constraint constraints.txt '.[metrics]'; or leave "
            "--metrics out",
            reason="missing-extra",
        ) from None
    with listening(meter, port) as at:
        yield at


def _labels(**labels: object) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in labels.items()))
