"""A script as its site sees it: what the program of a run holds of the script."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from secure_fl.errors import CohortError
from secure_fl.features.scripts.algorithm import Script, Shape
from secure_fl.features.scripts.turns import Begun, End, Ended


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
