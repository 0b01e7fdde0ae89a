"""A town in bad weather: by a seed, anything that networks, machines and disks do goes wrong.

Parties die before, within or after a step and come back from disk; the coordinator dies; frames and
answers are lost, late, doubled and reordered; a disk is full for one step. A seed gives the same
weather again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from secure_fl.errors import SecureFLError
from secure_fl.events import Event, Listener
from secure_fl.protocol.frames import Frame, peek
from secure_fl.protocol.messages import Failed
from tests.support.limits import lifted_after, limit_files
from tests.support.local_pilot import LocalPilot
from tests.support.raising import error_codes

KINDS = (
    "killed before", "killed within", "killed after", "killed once answered", "restarted",
    "stalled", "frame late", "answer lost", "delivered twice", "answered twice", "old frame again",
    "full disk", "coordinator killed",
)  # fmt: skip


class CoordinatorKilled(BaseException):
    """The coordinator's process ends, wherever it is."""


class PartyKilled(BaseException):
    """A hospital's process ends in the middle of a step."""


@dataclass
class Storm(LocalPilot):
    """A town whose exchanges suffer at most `most` faults, each (party, frame) by this chance.

    Before those, what `plot` says happens in its order: a fault when a message of a kind is
    delivered to a party ("": nothing, for what comes after it must wait for that message).
    """

    seed: int = 0
    most: int = 4
    chance: float = 0.06
    kinds: tuple[str, ...] = KINDS
    bound: int = 1500  # exchanges, over all of a town's life
    log: list[tuple[int, str, str]] = field(default_factory=list)
    plot: list[tuple[str, str, str]] = field(default_factory=list)  # (message, to whom, fault)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._due: dict[str, int] = {}  # who is down, and the exchange that it comes back at
        self._late: list[tuple[int, str, Frame]] = []  # frames under way
        self._fuse: Callable[[str], None] = lambda party: None  # called at every event of a party
        self.naps = 0
        super().__post_init__()

    def start(self, name: str) -> None:
        self._due.pop(name, None)
        super().start(name)

    def listener(self, name: str) -> Listener:
        """As in calm weather, but what happens inside a step can be disturbed."""

        def hear(event: Event) -> None:
            self.record(event)
            self._fuse(name)

        return hear

    def calm(self) -> None:
        """No more faults; everybody is back, and what was under way is gone."""
        self.most = 0
        self._late.clear()
        self.everybody()

    def everybody(self) -> None:
        """Who is down is started again."""
        for name in sorted(self.down):
            self.start(name)

    def nap(self, seconds: float) -> None:
        """While the coordinator waits, some come back."""
        self.naps += 1
        assert self.naps < 200, "it waits for ever"
        for name in sorted(self.down):
            if self._rng.random() < 0.5:
                self.start(name)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        self.exchanges += 1
        assert self.exchanges < self.bound, "it goes on for ever"
        for name in [name for name, due in self._due.items() if due <= self.exchanges]:
            self.start(name)
        self._deliver_late()
        order = list(frames)
        self._rng.shuffle(order)
        for party in order:
            fault = self._plotted(party, frames[party]) or self._draw(party)
            if fault == "coordinator killed":
                raise CoordinatorKilled
            answer = self._disturbed(party, frames[party], fault)
            if answer is not None:
                self._require_codes(answer)
                yield from [(party, answer)] * (2 if fault == "answered twice" else 1)

    def _plotted(self, party: str, frame: Frame) -> str:
        kind = type(peek(frame.head).message).__name__
        return self.plot.pop(0)[2] if self.plot and self.plot[0][:2] == (kind, party) else ""

    def _draw(self, party: str) -> str:
        if party in self.down or len(self.log) >= self.most or self._rng.random() >= self.chance:
            return ""
        fault = self._rng.choice(self.kinds)
        self.log.append((self.exchanges, party, fault))
        return fault

    def _disturbed(self, party: str, frame: Frame, fault: str) -> Frame | None:
        """What comes back of a frame."""
        if fault == "killed before":
            self._fell(party)
        if fault == "restarted":
            self.kill(party)
            self.start(party)
        if fault in ("frame late", "old frame again"):
            self._late.append((self.exchanges + self._rng.randint(1, 6), party, frame))
        if fault in ("frame late", "stalled") or party in self.down:
            return None
        if fault == "killed within":
            return self._killed_within(party, frame)
        if fault == "full disk":
            return self._on_full_disk(party, frame)
        answer = self._step(party, frame)
        if fault == "delivered twice":
            assert self._step(party, frame) == answer
        if fault in ("killed after", "killed once answered"):
            self._fell(party)
        return None if fault in ("killed after", "answer lost") else answer

    def _step(self, party: str, frame: Frame) -> Frame | None:
        """Any error but ours would end a hospital's process, so it fails the test."""
        try:
            return self.processes[party].step(frame)
        except SecureFLError as error:
            self.events.append({"event": "unanswered", "party": party, "why": str(error)})
            return None

    def _fell(self, party: str) -> None:
        self.kill(party)
        self._due[party] = self.exchanges + self._rng.randint(1, 12)

    def _killed_within(self, party: str, frame: Frame) -> Frame | None:
        left = self._rng.randint(1, 6)

        def burn(name: str) -> None:
            nonlocal left
            left -= name == party
            if left == 0 and name == party:
                raise PartyKilled

        try:
            with self._lit(burn):
                return self._step(party, frame)
        except PartyKilled:
            self._fell(party)
            return None

    def _on_full_disk(self, party: str, frame: Frame) -> Frame | None:
        """From some event of this step on, no file grows beyond a limit."""
        left, tail = self._rng.randint(0, 4), self._rng.randint(0, 60)

        def burn(name: str) -> None:
            nonlocal left
            left -= name == party
            if left == 0:
                notes = next(iter(opened(self.folder / party)), None)
                torn = tail + notes.stat().st_size if notes else tail  # in the middle of a line
                limit_files(torn)

        with lifted_after(), self._lit(burn):
            if left == 0:
                limit_files(0)
            return self._step(party, frame)

    @contextmanager
    def _lit(self, fuse: Callable[[str], None]) -> Iterator[None]:
        self._fuse = fuse
        try:
            yield
        finally:
            self._fuse = lambda party: None

    def _deliver_late(self) -> None:
        """Frames that were under way arrive; nobody waits for their answers any more."""
        arrived = [late for late in self._late if late[0] <= self.exchanges]
        self._late = [late for late in self._late if late[0] > self.exchanges]
        for _, party, frame in arrived:
            if party not in self.down:
                self._step(party, frame)

    @staticmethod
    def _require_codes(answer: Frame) -> None:
        message = peek(answer.head).message
        if isinstance(message, Failed):
            assert message.code in error_codes() and not answer.bulk


def opened(folder: Path) -> list[Path]:
    """What the hospitals wrote down about their sums."""
    return sorted(folder.rglob("opened/*/*.jsonl"))
