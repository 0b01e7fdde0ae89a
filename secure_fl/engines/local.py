"""The default engine: every party's session in this process, no services, nothing to install."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame


class LocalEngine:
    """Steps the sessions one after the other, in an order that must not matter."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        order: Callable[[Sequence[str]], Sequence[str]] = sorted,
    ) -> None:
        self._sessions, self._order = sessions, order

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Answers arrive one by one; in one process nobody is ever late."""
        for party in self._order(list(frames)):
            yield party, self._sessions[party].step(frames[party])
