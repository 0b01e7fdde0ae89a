"""P5: nothing is asked or begun twice, and the wire delivers the right frame or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.errors import CohortError, TamperError, WireError
from secure_fl.party.session import Session
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame
from secure_fl.testing.harness import LossyEngine, federate
from tests.support.attacker import NAMES, Liar, Wiretap, lying, marked, summing, told

VICTIM = "east"


class Stuttering:
    """An engine that delivers every answer twice."""

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self.sessions = sessions

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for party, frame in frames.items():
            answer = self.sessions[party].step(frame)
            yield party, answer
            yield party, answer


def test_an_answer_that_is_delivered_twice_counts_once() -> None:
    out = federate(marked(size=20), mode="secagg", engine=Stuttering, catch=True)
    assert out.error is None and not [e for e in out.events if e["event"] == "refused"]
    np.testing.assert_allclose(out.results[VICTIM][0]["x"], np.full(20, 10.0), rtol=0.02)


def test_unmasking_is_answered_once() -> None:
    class Insistent(Liar):
        def _exchange(self, reply: Any) -> Any:
            step = super()._exchange(reply)
            if any(isinstance(m, messages.Unmask) for m in reply.messages.values()):
                return super()._exchange(reply)  # the same lists again, in fresh frames
            return step

    out = federate(
        marked(size=20),
        mode="secagg",
        lead=lambda *a: Insistent(*a, lie=lambda _, m: m),
        catch=True,
    )
    assert "Unmask where Total belongs" in str(out.sessions[VICTIM].error)


@pytest.mark.parametrize("kind", [messages.Start, messages.Begin])
def test_a_failed_program_is_never_begun_again(kind: type) -> None:
    """The same inputs, summed again over fewer parties, would show who is missing."""
    begun: list[str] = []

    async def program(cohort: Any) -> None:
        begun.append(cohort.me)
        raise TamperError("as if the total had been changed", reason="wrong-sum")

    class Again(Liar):
        def _exchange(self, reply: Any) -> Any:
            try:
                return super()._exchange(reply)
            except CohortError:
                if any(isinstance(m, messages.Begin) for m in reply.messages.values()):
                    again = (
                        messages.Start(NAMES) if kind is messages.Start else reply.messages[VICTIM]
                    )
                    frame = self._links[VICTIM].pack(again)
                    answer = self._links[VICTIM].unpack(out_sessions[VICTIM].step(frame))
                    assert isinstance(answer, messages.Failed)
                raise

    tap = Wiretap()
    out_sessions: Mapping[str, Session] = {}

    def engine(sessions: Mapping[str, Session]) -> Wiretap:
        nonlocal out_sessions
        out_sessions = sessions
        return tap(sessions)

    programs = dict.fromkeys(NAMES, program)
    federate(
        programs,
        mode="secagg",
        engine=engine,
        lead=lambda *a: Again(*a, lie=lambda _, m: m),
        catch=True,
    )
    assert begun == [VICTIM]


def test_a_value_passed_on_late_or_not_at_all_is_noticed() -> None:
    async def sharing(cohort: Any) -> Any:
        return await cohort.share({"v": np.ones(2)}), await cohort.share({"v": np.ones(2)})

    def silent(_party: str, relayed: Any) -> Any:
        return messages.Relayed(relayed.senders[1:], relayed.sizes[1:])

    out = federate(
        dict.fromkeys(NAMES, sharing),
        mode="secagg",
        lead=lying(told(messages.Relayed, silent, VICTIM)),
        catch=True,
    )
    assert isinstance(out.sessions[VICTIM].error, CohortError)


@dataclass
class Postman(LossyEngine):
    """Swaps frames on their way to one party."""

    old: dict[tuple[str, int], Frame] = field(default_factory=dict)
    swap: Any = None

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        self.exchanges += 1
        for party, frame in frames.items():
            self.old[party, self.exchanges] = frame
            yield party, self.sessions[party].step(self.swap(self, party, frame, frames))


def replayed(self: Postman, party: str, frame: Frame, _: Any) -> Frame:
    return self.old[party, 2] if (party, self.exchanges) == (VICTIM, 4) else frame


def misdelivered(self: Postman, party: str, frame: Frame, frames: Mapping[str, Frame]) -> Frame:
    return frames["west"] if (party, self.exchanges) == (VICTIM, 3) else frame


def mixed(self: Postman, party: str, frame: Frame, frames: Mapping[str, Frame]) -> Frame:
    """Another frame's bulk under this head."""
    return Frame(frame.head, os.urandom(9)) if (party, self.exchanges) == (VICTIM, 4) else frame


@pytest.mark.parametrize("swap", [replayed, misdelivered, mixed])
def test_the_wire_delivers_the_right_frame_or_nothing(swap: Any) -> None:
    programs = {n: summing({"x": np.ones(9)}, 2, bound=2.0) for n in NAMES}
    out = federate(programs, mode="secagg", engine=lambda s: Postman(s, swap=swap), catch=True)
    assert isinstance(out.error, WireError) and out.results == {}


def test_a_party_never_sends_its_values_again_because_scales_were_claimed() -> None:
    """Only the host waits for a second sum; a party that did would repeat its input."""
    tap = Wiretap()
    lie = told(messages.Total, lambda _, m: structs.replace(m, more=True), VICTIM)
    out = federate(marked(size=20), mode="secagg", engine=tap, lead=lying(lie), catch=True)
    sent = [h for h in tap.heard if h.party == VICTIM and isinstance(h.message, messages.SumInput)]
    assert len(sent) == 1 and isinstance(out.sessions[VICTIM].error, CohortError)
