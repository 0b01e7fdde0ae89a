"""The hand-over between a script and the program of its site: one of the two always waits.

A script sends a request and waits for the answer. Both ends may be threads or processes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

from numpy.typing import NDArray

from secure_fl.errors import CohortError
from secure_fl.features.scripts.algorithm import Script, Shape

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Begun:
    """The first answer: the run has begun."""

    names: tuple[str, ...]  # of all sites
    settings: Script  # of the plan


@dataclass(frozen=True, slots=True)
class SumCall:
    """A request for a sum."""

    values: Arrays
    carry: bool = False  # add what rounding leaves over to the next value of a name
    weighted: bool = False  # one of the values is the weight of a mean


@dataclass(frozen=True, slots=True)
class Summed:
    """The answer to a `SumCall`; or to an `AgreeCall`, without sums."""

    sums: Arrays
    sites: int  # whose values were added
    agreed: str = ""  # the digest of a value on which all sites agreed, in hexadecimal


@dataclass(frozen=True, slots=True)
class AgreeCall:
    """A request to stop unless all sites have the same digest."""

    digest: bytes
    about: str


@dataclass(frozen=True, slots=True)
class Advance:
    """A request to end this round and begin the next, with the state to save."""

    own: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entered:
    """The answer to an `Advance`: the next round, or 0 after the last one."""

    number: int
    total: int
    own: Mapping[str, Any] | None = None  # restored state; None: the script's own is right
    shared: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message of a script."""

    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TurnRefused:
    """The answer to a request that fails: the script raises the error."""

    error: BaseException


class End(Protocol):
    """One end of the hand-over; connections of `multiprocessing` have the same methods."""

    def send(self, message: Any) -> None:
        """Give a message to the other end."""

    def recv(self) -> Any:
        """Wait for a message from the other end."""


class ThreadEnd:
    """One end of a hand-over between threads."""

    def __init__(self, incoming: SimpleQueue[Any], outgoing: SimpleQueue[Any]) -> None:
        self._incoming, self.send = incoming, outgoing.put

    def recv(self) -> Any:
        """Wait for a message from the other thread."""
        return self._incoming.get()


def ends() -> tuple[ThreadEnd, ThreadEnd]:
    """Return both ends of a hand-over between threads."""
    there: SimpleQueue[Any] = SimpleQueue()
    back: SimpleQueue[Any] = SimpleQueue()
    return ThreadEnd(there, back), ThreadEnd(back, there)


class ScriptHandle:
    """A script as its site sees it: the program's end of the hand-over, and the script's place.

    `shapes` are those of all values so far; scripts of one process share them.
    """

    def __init__(self, end: End, shapes: dict[str, Shape] | None = None) -> None:
        self._end, self._request, self._started = end, None, False
        self.shapes = {} if shapes is None else shapes
        self.round = 0  # of the script; 0: it has not begun
        self.loops = False  # true once it iterates over rounds
        self.advancing = False  # true while a round is being saved for it
        self.left = False  # true if it cannot follow the run
        self.summed: set[str] = set()  # names in this round
        self.served: list[tuple[Any, Any]] = []  # calls of this round, with their answers

    def begin(self, names: tuple[str, ...], settings: Script) -> None:
        """Let the script start, once the run has begun."""
        if not self._started:
            self._started = True
            self._end.send(Begun(names, settings))

    def next(self) -> Any:
        """Wait for the next request of the script; an unanswered one is returned again."""
        if self._request is None:
            self._request = self._end.recv()
        return self._request

    def answer(self, answer: Any) -> None:
        """Answer the last request."""
        self._request = None
        self._end.send(answer)

    def enter(self, number: int) -> None:
        """Note that the script is in this round."""
        self.round, self.advancing = number, False
        self.summed.clear()
        self.served.clear()

    def end(self, error: BaseException | None = None) -> None:
        """End the run for a script that waits, or will call again."""
        if not isinstance(self._request, Ended):
            self._end.send(Ended(error=error))

    def leave(self, error: CohortError) -> NoReturn:
        """End a script that cannot follow the run, and answer the coordinator no more.

        Its process ends, and continues from its disk when it is started again.
        """
        self.left = True
        self.end(error)
        threading.Event().wait()
        raise error
