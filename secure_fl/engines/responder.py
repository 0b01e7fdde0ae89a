"""A party's end of an engine between machines, which answers one step after the other.

The process lives as long as the federation. It owns data, keys, models and ledger, and keeps its
last answer: a coordinator that repeats a step gets the same answer again. A `PartyConnection`
carries the messages: a network connection, or a folder that a courier reads.

message    its step                   effect
STEP, ASK  is computed now            none; the answer is sent when it is ready
STEP, ASK  is that of the last answer the answer is sent again, unless it is on its way
STEP       is older than a known one  none
STEP       is another one             it replaces the pending step
ASK        is another one             RESEND asks the coordinator for the step
END                                   `serve` returns
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
    """A message that is being sent."""

    connection: str | None  # name of the connection at the start
    began: float
    ended: float

    def done(self) -> bool:
        """Return true once the connection has accepted all of it; it may not have arrived."""

    def cancel(self) -> None:
        """Stop sending."""


class PartyConnection(Protocol):
    """A connection to the coordinator, which may lose, repeat or delay messages."""

    def send(self, message: TransportMessage) -> Outgoing:
        """Start to send a message; it may not arrive."""

    def connection(self) -> str | None:
        """Return the name of the present connection, or None; a new connection has a new name."""

    def close(self) -> None:
        """Close the connection."""


Deliver = Callable[[TransportMessage], None]


class Responder:
    """Answers the coordinator's frames with the results of a step function."""

    def __init__(
        self,
        dial: Callable[[Deliver], PartyConnection],
        *,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`dial`: connects to the coordinator, and delivers its messages to the given function.

        `refusing`: called with the error of a frame that is not answered; the sender gets nothing.
        """
        self.refused: SecureFLError | None = None  # the last such error
        self._refusing = refusing
        self._changed = threading.Condition()  # protects all below but `_sending`
        self._pending: TransportMessage | None = None  # the newest step, not yet begun
        self._current: StepId | None = None  # computed now
        self._requested: StepId | None = None  # its answer is asked for again
        self._answer: TransportMessage | None = None  # the last one
        self._sending: Outgoing | None = None  # the last answer, as only `serve` sends it
        self._stopping = False
        self._connection = dial(self._deliver)

    def serve(
        self,
        step: Callable[[Frame], Frame],
        done: Callable[[], bool] = lambda: False,
        linger: float = 10.0,
    ) -> None:
        """Answer steps, in this thread, until the coordinator sends END or `stop` is called.

        When `done`, the last answer can be asked for again for another `linger` seconds.
        """
        until: float | None = None
        while (message := self._next(until)) is not None:
            if message.kind is MessageKind.STEP:
                self._compute(step, message)
            else:
                self._repeat(message.step)
            if until is None and done():
                until = time.monotonic() + linger

    def stop(self) -> None:
        """Let `serve` return after its present step; any thread or signal handler may call it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def is_connected(self) -> bool:
        """Return true while the coordinator can be reached."""
        return self._connection.connection() is not None

    def close(self) -> None:
        """Stop serving, and close the connection."""
        self.stop()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, until: float | None) -> TransportMessage | None:
        """Wait for a step to compute or an answer to repeat; return None at the end."""
        with self._changed:
            while not self._stopping:
                if self._pending is not None:
                    message, self._pending = self._pending, None
                    self._current = message.step
                    return message
                if self._requested is not None:
                    requested, self._requested = self._requested, None
                    return TransportMessage(MessageKind.ASK, requested)
                timeout = None if until is None else until - time.monotonic()
                if timeout is not None and timeout <= 0:
                    return None
                self._changed.wait(timeout)
            return None

    def _compute(self, step: Callable[[Frame], Frame], message: TransportMessage) -> None:
        """Compute and send the answer to a step; a forged or damaged frame gets none."""
        try:
            answer = step(message.frame)
        except SecureFLError as error:
            self.refused = error
            self._refusing(error)
            with self._changed:
                self._current = None
            return
        with self._changed:
            self._answer = TransportMessage(MessageKind.ANSWER, message.step, answer)
            self._current = self._requested = None  # a request in the meantime is answered now
        self._sending = self._connection.send(self._answer)

    def _repeat(self, requested: StepId) -> None:
        """Send the last answer again, or ask for a step that this process does not know."""
        if self._answer is None or self._answer.step != requested:
            self._connection.send(TransportMessage(MessageKind.RESEND, requested))
        elif self._sending is None or not self._on_its_way(self._sending):
            self._sending = self._connection.send(self._answer)

    def _on_its_way(self, sending: Outgoing) -> bool:
        """Return true while an answer can still arrive: a slow connection is not given it twice."""
        if sending.connection != self._connection.connection():
            if not sending.done():
                sending.cancel()
            return False
        if not sending.done():
            return True
        duration = sending.ended - sending.began
        return time.monotonic() - sending.ended < 2 * duration

    def _deliver(self, message: TransportMessage) -> None:
        """Note a message of the coordinator; threads of the connection call it."""
        if message.kind not in FROM_COORDINATOR:
            return
        with self._changed:
            if message.kind is MessageKind.END:
                self._stopping = True
            elif message.step == self._current:
                return
            elif message.kind is MessageKind.ASK or self._answered(message.step):
                self._requested = message.step
            elif not self._outdated(message.step):
                self._pending = message
            self._changed.notify_all()

    def _answered(self, step: StepId) -> bool:
        return self._answer is not None and self._answer.step == step

    def _outdated(self, step: StepId) -> bool:
        """Return true for a step before one that is known, of the same coordinator process."""
        messages = [message.step for message in (self._answer, self._pending) if message]
        known = [self._current, *messages]
        return any(s is not None and s.life == step.life and s.number > step.number for s in known)
