"""Messages between a script and the program of its site, which are threads or processes.

They take turns: `RunBegins` starts the script, which then sends a request and waits for the answer,
until it returns and sends `LastMessage`. The program sends that, too, if the run ends first.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TypeAlias

from numpy.typing import NDArray

from secure_fl.errors import CohortError
from secure_fl.features.scripts.algorithm import Script, Shape

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RunBegins:
    """The first message to a script."""

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
class NextRound:
    """The answer to an `Advance`: the number of the round, or 0 after the last one."""

    number: int
    total: int
    own: Mapping[str, Any] | None = None  # restored state; None: keep the script's
    shared: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message of a script, or of a run that ends before the script."""

    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TurnRefused:
    """The answer to a request that fails: the script raises the error."""

    error: BaseException


ScriptRequest: TypeAlias = SumCall | AgreeCall | Advance
ScriptAnswer: TypeAlias = Summed | NextRound


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A request of a script with its answer."""

    request: ScriptRequest
    answer: ScriptAnswer


class TurnChannel(Protocol):
    """One end of the connection; connections of `multiprocessing` have the same methods."""

    def send(self, message: Any) -> None:
        """Send a message to the other end."""

    def recv(self) -> Any:
        """Wait for a message from the other end."""


class ThreadChannel:
    """One end of a connection between threads."""

    def __init__(self, incoming: SimpleQueue[Any], outgoing: SimpleQueue[Any]) -> None:
        self._incoming, self.send = incoming, outgoing.put

    def recv(self) -> Any:
        """Wait for a message from the other thread."""
        return self._incoming.get()


def thread_channels() -> tuple[ThreadChannel, ThreadChannel]:
    """Return the script's end and the program's end of a connection between threads."""
    to_script: SimpleQueue[Any] = SimpleQueue()
    to_program: SimpleQueue[Any] = SimpleQueue()
    return ThreadChannel(to_script, to_program), ThreadChannel(to_program, to_script)


class ScriptHandle:
    """The program's end of the connection, and the script's place in the run.

    `ScriptProgram` keeps the place here, because a script may outlive a session of its site.
    """

    def __init__(self, channel: TurnChannel, shapes: dict[str, Shape] | None = None) -> None:
        """`shapes`: the shapes of all values so far, which scripts of one process share."""
        self._channel, self._started = channel, False
        self._request: ScriptRequest | LastMessage | None = None  # not answered yet
        self.shapes = {} if shapes is None else shapes
        self.round = 0  # 0: the script has not begun
        self.in_loop = False  # true once the script iterates over rounds
        self.advancing = False  # true while a round is saved
        self.abandoned = False  # true if the script cannot follow the run
        self.summed: set[str] = set()  # names in this round
        self.answered: list[AnsweredCall] = []  # in this round

    def begin(self, names: tuple[str, ...], settings: Script) -> None:
        """Start the script, unless an earlier session did."""
        if not self._started:
            self._started = True
            self._channel.send(RunBegins(names, settings))

    def next_request(self) -> ScriptRequest | LastMessage:
        """Wait for the next request of the script; an unanswered one is returned again."""
        if self._request is None:
            self._request = self._channel.recv()
        return self._request

    def answer(self, answer: ScriptAnswer | TurnRefused) -> None:
        """Answer the last request."""
        self._request = None
        self._channel.send(answer)

    def enter(self, number: int) -> None:
        """Note that the script is in a new round."""
        self.round, self.advancing = number, False
        self.summed.clear()
        self.answered.clear()

    def end(self, error: BaseException | None = None) -> None:
        """End the run for a script that waits, or will call again."""
        if not isinstance(self._request, LastMessage):
            self._channel.send(LastMessage(error=error))

    def abandon(self, error: CohortError) -> NoReturn:
        """Raise an error in a script that cannot follow the run, and block this thread for ever.

        Its process exits with the error. Until then the coordinator gets no answer from this site,
        and when the script is started again, it continues from its disk.
        """
        self.abandoned = True
        self.end(error)
        while True:
            threading.Event().wait()
