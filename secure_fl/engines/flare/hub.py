"""NVIDIA FLARE as engine, the coordinator's end.

An exchange is a numbered step that each party is sent until it answers. Parties answer a repeated
step from memory, so parcels may be lost, doubled or late, connections may come and go, and parties
and coordinator may be restarted; TLS, reconnecting and streaming are FLARE's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from secure_fl.engines.flare.cell import HUB, CellEnd, CellOutgoing, cell_name
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.engines.transport_message import (
    FROM_PARTY,
    TOKEN_BYTES,
    MessageKind,
    StepId,
    TransportMessage,
)
from secure_fl.errors import SettingsError
from secure_fl.protocol.frames import Frame

TICK = 0.1  # seconds between two looks at who is connected
MAX_PATIENCE = 60.0


@dataclass(slots=True)
class _Delivery:
    """One party's part of an exchange."""

    party: str
    frame: Frame
    patience: float
    begun: float
    sending: CellOutgoing | None = None
    connection: str | None = None  # when we last looked
    absent_since: float | None = None
    asked: float = 0.0
    needs: bool = False
    answered: bool = False


class FlareHub:
    """Carries frames to parties in their own processes, and their answers back."""

    def __init__(
        self,
        url: str,
        tls: TlsFiles,
        parties: Collection[str],
        *,
        grace: float = 30.0,
        patience: float = 5.0,
        max_bytes: int = 2**30,
    ) -> None:
        """`grace`: how long a party may be disconnected; `patience`: silent, before it is asked."""
        self._cells = {party: cell_name(party) for party in parties}
        self._parties = {cell: party for party, cell in self._cells.items()}
        if len(self._parties) != len(parties):
            raise SettingsError("two parties have the same name", field="parties")
        self._grace, self._patience = grace, patience
        self._step = StepId(os.urandom(TOKEN_BYTES), 0)
        self._mail = threading.Condition()
        self._waiting: dict[str, _Delivery] = {}
        self._answers: dict[str, Frame] = {}
        self._end = CellEnd(HUB, url, tls, self._parties, max_bytes, self._deliver)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver a frame to each party and yield answers as they arrive.

        A party that does not answer within `deadline` seconds, or is disconnected for longer than
        the grace, is not yielded.
        """
        until = time.monotonic() + deadline
        with self._mail:
            self._step = StepId(self._step.life, self._step.number + 1)
            self._answers = {}
            now = time.monotonic()
            waiting = {p: _Delivery(p, f, self._patience, now) for p, f in frames.items()}
            self._waiting = waiting
        while waiting:
            for delivery in list(waiting.values()):
                self._tend(delivery, time.monotonic())
            answered = self._next(until)
            if answered is not None:
                yield answered
            elif time.monotonic() >= until:
                break
        with self._mail:
            if self._waiting is waiting:
                self._waiting = {}

    def connected(self) -> frozenset[str]:
        """The parties that are connected now."""
        return frozenset(p for p, cell in self._cells.items() if self._end.connection(cell))

    def wait_for(self, parties: Collection[str], timeout: float) -> frozenset[str]:
        """Wait until these parties are connected; return those that are not."""
        until = time.monotonic() + timeout
        while (missing := frozenset(parties) - self.connected()) and time.monotonic() < until:
            time.sleep(TICK / 4)
        return missing

    def waited_for(self) -> dict[str, float]:
        """Return the members that have not answered this step, and their seconds of waiting."""
        now = time.monotonic()
        with self._mail:
            return {p: now - d.begun for p, d in self._waiting.items() if not d.answered}

    def refused(self) -> Mapping[str, int]:
        """How many messages were refused, by reason."""
        return dict(self._end.guard.refused)

    def dismiss(self, timeout: float = 3.0) -> None:
        """Tell the parties that nothing more will come, and see them off."""
        for party in self.connected():
            self._end.send(self._cells[party], TransportMessage(MessageKind.END, self._step))
        until = time.monotonic() + timeout
        while self.connected() and time.monotonic() < until:
            time.sleep(TICK / 4)

    def close(self) -> None:
        """Leave; the parties stay, and wait for a coordinator to come back."""
        self._end.close()

    def __enter__(self) -> FlareHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, until: float) -> tuple[str, Frame] | None:
        with self._mail:
            if not self._answers and self._waiting:
                self._mail.wait(max(0.0, min(TICK, until - time.monotonic())))
            if not self._answers:
                return None
            party = next(iter(self._answers))
            del self._waiting[party]
            return party, self._answers.pop(party)

    def _tend(self, delivery: _Delivery, now: float) -> None:
        """See to it that this party has the step, or give it up."""
        cell = self._cells[delivery.party]
        before, connection = delivery.connection, self._end.connection(cell)
        delivery.connection = connection
        if connection is None:
            delivery.absent_since = delivery.absent_since or now
            with self._mail:  # what it said before it left still counts
                if now - delivery.absent_since > self._grace and not delivery.answered:
                    del self._waiting[delivery.party]
            return
        sending, delivery.absent_since = delivery.sending, None
        if delivery.answered:
            return
        if sending is None or (delivery.needs and sending.done()):
            delivery.needs = False
            parcel = TransportMessage(MessageKind.STEP, self._step, delivery.frame)
            delivery.sending, delivery.asked = self._end.send(cell, parcel), now
        elif connection != before:
            if not sending.done():
                sending.cancel()  # it went to a connection that is no more
            self._ask(delivery, cell, now)
        elif sending.done() and now > delivery.patience + max(
            delivery.asked, sending.ended, self._end.guard.heard.get(cell, 0.0)
        ):
            delivery.patience = min(2 * delivery.patience, MAX_PATIENCE)
            self._ask(delivery, cell, now)

    def _ask(self, delivery: _Delivery, cell: str, now: float) -> None:
        delivery.asked = now
        self._end.send(cell, TransportMessage(MessageKind.ASK, self._step))

    def _deliver(self, cell: str, parcel: TransportMessage) -> None:
        """Called by FLARE's threads, for peers of the roster only."""
        with self._mail:
            delivery = self._waiting.get(self._parties[cell])
            if delivery is None or parcel.step != self._step or parcel.kind not in FROM_PARTY:
                return  # late, doubled, or not a party's to say
            if parcel.kind is MessageKind.ANSWER:
                delivery.answered = True
                self._answers.setdefault(delivery.party, parcel.frame)
            else:
                delivery.needs = True
            self._mail.notify()
