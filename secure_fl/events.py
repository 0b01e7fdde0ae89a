"""Events of a run: typed records that stay with the member that writes them.

Each event is a frozen record with a tag, and one line of `events.jsonl`. Readers dispatch by type
(`match event: case MembersLost(parties=names)`). An algorithm, a feature or a plug-in defines its
own `ExtensionEvent`; a reader that does not know the class sees the event's `text`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import msgspec

Counts = dict[str, list[float]]
OF_ONE_CLASS = ("precision", "recall", "f1")  # metrics of a single class
_ANY = msgspec.json.Decoder(dict[str, Any])


def metric_name(name: str, scored_class: str | None) -> str:
    """Format a metric's name, with the class of precision, recall and F1: "f1 (ade)"."""
    return f"{name} ({scored_class})" if scored_class and name in OF_ONE_CLASS else name


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One fact about a run."""

    party: str = ""
    """The member that writes the event."""
    at: float | None = None
    """Seconds since 1970, of events whose time matters to a reader."""

    LEVEL: ClassVar[int] = logging.INFO
    TIMED: ClassVar[bool] = False
    LINE: ClassVar[str] = ""  # of a log, with fields of the event; empty: a log leaves it out

    def sentence(self) -> str | None:
        """Describe the event for a log, or return None if a log leaves it out."""
        return self.LINE.format(self) or None

    def document(self) -> dict[str, Any]:
        """Return the event as JSON holds it."""
        return _ANY.decode(msgspec.json.encode(self))

    def line(self) -> bytes:
        """Encode the event as one line of a file, with its time if that matters."""
        timed = msgspec.structs.replace(self, at=round(time.time(), 3)) if self.TIMED else self
        return msgspec.json.encode(timed) + b"\n"


Listener: TypeAlias = Callable[[Event], None]


class _OfMembers(Event, frozen=True, kw_only=True):
    """An event about some members."""

    parties: tuple[str, ...]

    @property
    def names(self) -> str:
        """The members' names, separated by commas."""
        return ", ".join(self.parties)


# Gathering, at the coordinator and at the hospitals.


class PlanAccepted(Event, frozen=True, tag="plan_accepted"):
    """The rules of this hospital accept a plan."""

    run: str
    rounds: int
    approved: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Name the run, and the people who approved its plan."""
        by = f"; {' and '.join(self.approved)} approved it" if self.approved else ""
        return f"invited to {self.run}: this site's rules allow it{by}"


class PlanApproved(Event, frozen=True, tag="plan_approved"):
    """People at this hospital approved the plan."""

    by: tuple[dict[str, str], ...]


class MembersGathered(Event, frozen=True, tag="gathered"):
    """All members that accepted know each other; the run begins or continues."""

    members: tuple[str, ...]

    def sentence(self) -> str:
        """Name the members."""
        return f"gathered: {', '.join(self.members)}"


class Waiting(_OfMembers, frozen=True, tag="waiting"):
    """The run cannot begin or continue without some of these members."""

    LEVEL: ClassVar[int] = logging.WARNING
    TIMED: ClassVar[bool] = True

    run: str = ""
    code: str = ""
    members: tuple[str, ...] = ()
    """The members that are connected."""
    more: int = 0
    """How many more members the run needs."""
    until: float | None = None
    """The time at which the coordinator gives up, in seconds since 1970."""


class MembersReturned(_OfMembers, frozen=True, tag="returned"):
    """MembersLost members are connected again."""

    LINE: ClassVar[str] = "returned: {0.names}"


class MemberRestarted(_OfMembers, frozen=True, tag="restarted"):
    """A member's process started again and must be gathered again."""

    LINE: ClassVar[str] = "restarted: {0.names}"


class Resumed(Event, frozen=True, tag="resumed"):
    """The coordinator's process started again."""

    LEVEL: ClassVar[int] = logging.WARNING

    after: int
    """The round that was under way."""
    state: str
    """The state in which the previous process ended."""


class MembershipChanged(Event, frozen=True, tag="membership"):
    """A resumed run has other parties than before."""

    joined: tuple[str, ...]
    left: tuple[str, ...]


# Rounds.


class RoundStarted(Event, frozen=True, tag="round_started"):
    """The coordinator starts a round with these members."""

    TIMED: ClassVar[bool] = True

    round: int
    members: tuple[str, ...]


class RoundSaved(Event, frozen=True, tag="round_saved"):
    """A party saved its checkpoint of a round and continues with these members."""

    TIMED: ClassVar[bool] = True

    round: int
    members: tuple[str, ...]

    def sentence(self) -> str:
        """Name the round and the members."""
        return f"round {self.round}: {', '.join(self.members)}"


class MembersJoined(_OfMembers, frozen=True, tag="joined"):
    """Members without the last round's state received it."""

    round: int


class RoundsRepeated(_OfMembers, frozen=True, tag="rounds_repeated"):
    """All members must repeat rounds, because these members lack them."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = (
        "all would repeat the rounds from {0.to}, because these lack them: {0.names}"
    )

    to: int


class RoundsMissing(_OfMembers, frozen=True, tag="rounds_missing"):
    """Members lack rounds that they had reported as saved."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = "lacks rounds that it had saved: {0.names}"


# Faults, at the coordinator.


class MembersLost(_OfMembers, frozen=True, tag="lost"):
    """Members did not answer; the round continues without them."""

    LEVEL: ClassVar[int] = logging.WARNING

    round: int | None = None
    code: str | None = None

    def sentence(self) -> str:
        """Name the members and the round."""
        return f"lost: {self.names}" + (f" in round {self.round}" if self.round else "")


class MembersExcluded(_OfMembers, frozen=True, tag="excluded"):
    """The run continues without these members."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = "excluded: {0.names}"

    round: int | None = None


class MemberFailed(_OfMembers, frozen=True, tag="failed"):
    """A member reported that it cannot continue."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = "failed ({0.code}): {0.names}"

    code: str
    round: int | None = None


class Refused(Event, frozen=True, tag="refused"):
    """A refusal: of a plan, of a member's message, or at a hospital of anything that failed."""

    LEVEL: ClassVar[int] = logging.WARNING

    code: str
    parties: tuple[str, ...] = ()
    """At the coordinator, the members that refuse or whose message is refused."""
    round: int | None = None
    """The round of a refused message; None for a refused plan."""
    why: str | None = None
    """At a hospital, the reason; it stays there."""

    def sentence(self) -> str:
        """Give the code, and the reason or the members."""
        return f"refused ({self.code}): {self.why or ', '.join(self.parties)}"


class SumDisputed(_OfMembers, frozen=True, tag="sum_disputed"):
    """A party complained about a sum; an inquiry begins."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = "a sum failed; an inquiry begins after the complaint of {0.names}"

    round: int


class Withheld(_OfMembers, frozen=True, tag="withheld"):
    """A member did not show an upload that an inquiry asked for, or left the inquiry."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = "did not show the upload of a failed sum, or left the inquiry: {0.names}"


class Convicted(_OfMembers, frozen=True, tag="convicted"):
    """Evidence shows that a member broke the protocol."""

    LEVEL: ClassVar[int] = logging.ERROR
    LINE: ClassVar[str] = "convicted by evidence, and excluded: {0.names}"

    round: int
    evidence: str | None = None


class Stragglers(_OfMembers, frozen=True, tag="slow"):
    """A step waits for the answers of these members."""

    LEVEL: ClassVar[int] = logging.WARNING
    TIMED: ClassVar[bool] = True

    seconds: float

    def sentence(self) -> str:
        """Name the members and the longest wait."""
        return f"this step waits for {self.names or 'answers'} since {self.seconds:.0f} s"


class StragglersAnswered(_OfMembers, frozen=True, tag="slow_answered"):
    """A step no longer waits for these members."""

    LINE: ClassVar[str] = "this step no longer waits for {0.names}"


class Stopped(Event, frozen=True, tag="stopped"):
    """A round or, if `final`, the whole run stopped early."""

    LEVEL: ClassVar[int] = logging.WARNING

    code: str
    member: str = ""
    final: bool = False


class Traffic(Event, frozen=True, tag="traffic"):
    """Bytes from ("up") and to ("down") each member so far."""

    bytes: dict[str, dict[str, int]]


# Inside a hospital.


class Warned(Event, frozen=True, tag="warning"):
    """A member noticed something that its operator should know."""

    LEVEL: ClassVar[int] = logging.WARNING
    LINE: ClassVar[str] = "{0.text}"

    code: str
    text: str


class Crossing(Event, frozen=True, tag="crossing"):
    """One message between a party and the coordinator: its size, digest and audience."""

    round: int
    exchange: int
    direction: str
    """"out" or "in"."""
    kind: str
    audience: str
    head_bytes: int
    bulk_bytes: int
    digest: str

    @property
    def size(self) -> int:
        """Bytes of the whole message."""
        return self.head_bytes + self.bulk_bytes


class TrainingProgress(Event, frozen=True, tag="train"):
    """The mean loss of a round's local training so far."""

    round: int
    step: int
    steps: int
    loss: float


class UpdateResent(Event, frozen=True, tag="update_resent"):
    """A repeated round sends the update of its first DP-SGD training again."""

    round: int


class Scored(Event, frozen=True, tag="scores"):
    """Scores of a model after a round."""

    round: int
    split: str
    values: Mapping[str, float | None]
    model: str = ""
    """The name of one of several models; empty for the main model."""
    pooled: bool = False
    """True for scores over the records of all hospitals, False for this hospital's own."""
    scored_class: str = ""
    """The class of precision, recall and F1; empty if they are not scores of one class."""

    def sentence(self) -> str:
        """List the scores."""
        named = {metric_name(name, self.scored_class): x for name, x in self.numbers().items()}
        scores = ", ".join(f"{name} {value:.3f}" for name, value in named.items())
        whose = ", all hospitals" if self.pooled else ""
        return f"round {self.round}, {self.split}{whose}: {scores}"

    def numbers(self) -> dict[str, float]:
        """Return the scores that are numbers."""
        return {name: value for name, value in self.values.items() if value is not None}


class PrivacySpent(Event, frozen=True, tag="privacy"):
    """The budget that DP-SGD has spent, and the noise it uses."""

    round: int
    noise_multiplier: float
    sample_rate: float
    steps: int
    epsilon: float | None
    epsilon_planned: float | None
    delta: float


class PredictionNoise(Event, frozen=True, tag="noise"):
    """The noise on sums of predictions, and the budget it costs."""

    facts: Mapping[str, Any]


class ExtensionEvent(Event, frozen=True, kw_only=True):
    """Base of the events of algorithms, features and plug-ins.

    A log shows the `text`, also where a reader does not know the class.
    """

    LEVEL: ClassVar[int] = logging.WARNING

    text: str | None = None

    def sentence(self) -> str | None:
        """Give the text."""
        return self.text


class OtherEvent(ExtensionEvent, frozen=True, tag="other"):
    """An event whose class the reader does not know."""

    kind: str


CORE_EVENTS: TypeAlias = (
    PlanAccepted | PlanApproved | MembersGathered | Waiting | MembersReturned | MemberRestarted
    | Resumed | MembershipChanged | RoundStarted | RoundSaved | MembersJoined | RoundsRepeated
    | RoundsMissing | MembersLost | MembersExcluded | MemberFailed | Refused | SumDisputed
    | Withheld | Convicted | Stragglers | StragglersAnswered | Stopped | Traffic | Warned | Crossing
    | TrainingProgress | UpdateResent | Scored | PrivacySpent | PredictionNoise
)  # fmt: skip
_DECODER = msgspec.json.Decoder(CORE_EVENTS)


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Decode the lines of an events file, and skip those that are no events."""
    for line in lines:
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError:
            if (other := _other(line)) is not None:
                yield other


def _other(line: bytes) -> OtherEvent | None:
    try:
        given = _ANY.decode(line)
    except msgspec.MsgspecError:
        return None
    kind, party, text = given.get("event"), given.get("party"), given.get("text")
    if not isinstance(kind, str) or not isinstance(party, str):
        return None
    return OtherEvent(party=party, kind=kind, text=text if isinstance(text, str) else None)


@dataclass(slots=True)
class SumDifferences:
    """Pairs of consecutive opened sums of the same names that differ by one party.

    Each is a sum of its own, which P3 protects; their difference shows what that party added, up to
    what changed between them.
    """

    pairs: list[dict[str, Any]] = field(default_factory=list)
    _last: dict[str, list[str]] = field(default_factory=dict)  # contributors by names

    def saw(self, round: int, contributors: Mapping[str, Sequence[str]]) -> None:
        """Compare a sum's contributors, by names, with those of the last sum of these names."""
        for names, parties in contributors.items():
            before = self._last.get(names, parties)
            self._last[names] = list(parties)
            if len(changed := set(before) ^ set(parties)) == 1:
                (party,) = changed
                change = "left" if party in before else "joined"
                self._add({"round": round, "party": party, "change": change})

    def _add(self, pair: dict[str, Any]) -> None:
        for known in self.pairs:
            if pair.items() <= known.items():
                known["sums"] += 1
                return
        self.pairs.append(pair | {"sums": 1})

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {"pairs": self.pairs, "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; checkpoints of version 0.1 have none."""
        self.pairs = [dict(pair) for pair in state.get("pairs", ())]
        self._last = {names: list(parties) for names, parties in state.get("last", {}).items()}


@dataclass(slots=True)
class EventLog:
    """Collects the events, metrics and seconds of one member, and passes events to a listener."""

    party: str
    listener: Listener | None = None
    round: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    differences: SumDifferences = field(default_factory=SumDifferences)
    clock: Callable[[], float] = time.perf_counter  # of phases

    def event(self, event: Event) -> None:
        """Pass an event to the listener, under this member's name unless it has one."""
        if self.listener:
            named = event if event.party else msgspec.structs.replace(event, party=self.party)
            self.listener(named)

    def metrics(
        self,
        round: int,
        values: dict[str, float],
        counts: Counts | None = None,
        *,
        split: str,
        model: str = "",
        party: str = "",
        pooled: bool = False,
        scored_class: str | None = None,
    ) -> None:
        """Remember a round's metrics; checkpoints keep the history, so a resumed run has it too.

        `counts`: the sums from which the metrics are computed. `party`: the owner of the records,
        if not this member.
        """
        given = {"pooled": pooled, "party": party, "model": model}
        labels = {name: value for name, value in given.items() if value}
        counted = {} if counts is None else {"counts": counts}
        self.history.append({"round": round, **labels, "split": split, **values, **counted})
        scored = Scored(
            party=party,
            round=round,
            split=split,
            values=values,
            model=model,
            pooled=pooled,
            scored_class=scored_class or "",
        )
        self.event(scored)

    def crossing(self, crossing: Crossing) -> None:
        """Count a message's bytes and pass it on."""
        if crossing.direction == "out":
            self.bytes_up += crossing.size
        else:
            self.bytes_down += crossing.size
        self.event(crossing)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to the phase's total."""
        start = self.clock()
        try:
            yield
        finally:
            self.spent(name, self.clock() - start)

    def spent(self, name: str, seconds: float) -> None:
        """Add seconds to a phase's total."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
