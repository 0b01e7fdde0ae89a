"""A party's end of an engine between machines: it answers one step after the other.

The process lives as long as the federation. It owns data, keys, models and ledger, and remembers
its last answer: a coordinator that repeats a step gets the same one again. What carries the parcels
is a `PartyConnection`: a connection, or a folder with a courier at its other end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, Self

from secure_fl.engines.transport_message import (
    FROM_COORDINATOR,
    MessageKind,
    StepId,
    TransportMessage,
)
from secure_fl.errors import SecureFLError
from secure_fl.protocol.frames import Frame


class Outgoing(Protocol):
    """A parcel on its way out."""

    connection: str | None  # which one it was given to
    began: float
    ended: float

    def done(self) -> bool:
        """Tell if all of it is handed over; it may not have arrived."""

    def cancel(self) -> None:
        """Stop sending."""


class PartyConnection(Protocol):
    """Carries parcels to one other end; each may be lost, doubled or late."""

    def send(self, parcel: TransportMessage) -> Outgoing:
        """Start to send; nothing says whether it arrived."""

    def connection(self) -> str | None:
        """Which connection there is now; a new one has a new name."""

    def close(self) -> None:
        """Leave."""


Deliver = Callable[[TransportMessage], None]


class Responder:
    """Answers the coordinator's frames with what a step function makes of them."""

    def __init__(
        self,
        dial: Callable[[Deliver], PartyConnection],
        *,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`dial` begins the line, and is told what to do with what comes.

        `refusing` hears why a frame was not answered: only here it is said.
        """
        self.refused: SecureFLError | None = None  # why the last step that failed did
        self._refusing = refusing
        self._mail = threading.Condition()
        self._todo: TransportMessage | None = None  # one step at most: a newer one replaces it
        self._asked: StepId | None = None
        self._doing: StepId | None = None
        self._answer: TransportMessage | None = None
        self._sending: Outgoing | None = None
        self._stopping = False
        self._line = dial(self._deliver)

    def serve(
        self,
        step: Callable[[Frame], Frame],
        done: Callable[[], bool] = lambda: False,
        linger: float = 10.0,
    ) -> None:
        """Answer steps, in this thread, until the coordinator dismisses us or `stop` is called.

        When `done`, the last answer is kept ready for another `linger` seconds.
        """
        until: float | None = None
        while (parcel := self._next(until)) is not None:
            if parcel.kind is MessageKind.STEP:
                self._work(step, parcel)
            else:
                self._repeat(parcel.step)
            if until is None and done():
                until = time.monotonic() + linger

    def stop(self) -> None:
        """Let `serve` return after the step it is in; any thread or signal handler may call it."""
        with self._mail:
            self._stopping = True
            self._mail.notify_all()

    def is_connected(self) -> bool:
        """Tell if the coordinator can be reached now."""
        return self._line.connection() is not None

    def close(self) -> None:
        """Stop, and leave."""
        self.stop()
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, until: float | None) -> TransportMessage | None:
        with self._mail:
            while not self._stopping:
                if self._todo is not None:
                    parcel, self._todo = self._todo, None
                    self._doing = parcel.step
                    return parcel
                if self._asked is not None:
                    asked, self._asked = self._asked, None
                    return TransportMessage(MessageKind.ASK, asked)
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._mail.wait(left)
            return None

    def _work(self, step: Callable[[Frame], Frame], parcel: TransportMessage) -> None:
        try:
            answer = step(parcel.frame)
        except SecureFLError as error:
            self.refused = error  # of a frame that is forged or damaged; the sender hears nothing
            self._refusing(error)
            with self._mail:
                self._doing = None
            return
        with self._mail:
            self._answer = TransportMessage(MessageKind.ANSWER, parcel.step, answer)
            self._doing = self._asked = None  # who asked meanwhile gets it now
        self._sending = self._line.send(self._answer)

    def _repeat(self, asked: StepId) -> None:
        """Say again what we said, or that we have never heard of this step."""
        if self._answer is None or self._answer.step != asked:
            self._line.send(TransportMessage(MessageKind.RESEND, asked))
            return
        if self._sending is not None and self._under_way(self._sending):
            return
        self._sending = self._line.send(self._answer)

    def _under_way(self, sending: Outgoing) -> bool:
        """Tell if it can still arrive: a slow connection must not get the same answer twice."""
        if sending.connection != self._line.connection():
            if not sending.done():
                sending.cancel()
            return False
        if not sending.done():
            return True
        took = sending.ended - sending.began
        return time.monotonic() - sending.ended < 2 * took

    def _deliver(self, parcel: TransportMessage) -> None:
        """Called by the line's threads."""
        if parcel.kind not in FROM_COORDINATOR:
            return
        with self._mail:
            if parcel.kind is MessageKind.END:
                self._stopping = True
            elif parcel.step == self._doing:
                return  # we are at it
            elif parcel.kind is MessageKind.ASK or self._known(parcel.step):
                self._asked = parcel.step
            elif not self._outdated(parcel.step):
                self._todo = parcel
            self._mail.notify_all()

    def _known(self, step: StepId) -> bool:
        return self._answer is not None and self._answer.step == step

    def _outdated(self, step: StepId) -> bool:
        seen = [self._doing, self._answer and self._answer.step, self._todo and self._todo.step]
        return any(s is not None and s.life == step.life and s.number > step.number for s in seen)
