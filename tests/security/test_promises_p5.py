"""P5: a coordinator that lies about keys, members, rounds and dropouts is refused by the parties.

`test_promises_p3` shows what such lies would win; here they are told to a whole run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from secure_fl import wire
from secure_fl.crypto.masking import public_key
from secure_fl.errors import CohortError, SecureFLError, TamperError, WireError
from secure_fl.session import Session
from secure_fl.wire import Frame, Offer
from tests.harness import LossyEngine, federate
from tests.security.attacker import NAMES, Liar, Lie, Wiretap, lying, marked, summing
from tests.security.collusion import MaskedStep

VICTIM = "east"
change = msgspec.structs.replace


def told(kind: type, lie: Lie, to: str | None = None) -> Lie:
    """Lie about messages of this kind, to everybody or to one."""

    def say(party: str, message: Any) -> Any:
        return lie(party, message) if isinstance(message, kind) and to in (None, party) else message

    return say


def without_keys(_party: str, begin: Any) -> Any:
    return change(begin, offers={})


def without_one_key(_party: str, begin: Any) -> Any:
    return change(begin, offers={p: o for p, o in begin.offers.items() if p != "west"})


def alone(_party: str, begin: Any) -> Any:
    return change(begin, members=(VICTIM, "west"), offers={"west": begin.offers["west"]})


def other_key(_party: str, begin: Any) -> Any:
    mine = public_key(bytes(16))  # the coordinator knows its secret
    swapped = {p: Offer(mine, o.shares) for p, o in begin.offers.items()}
    return change(begin, offers=swapped)


def crossed_keys(_party: str, begin: Any) -> Any:
    a, b = begin.offers["north"], begin.offers["south"]
    return change(begin, offers=begin.offers | {"north": b, "south": a})


def crossed_shares(_party: str, begin: Any) -> Any:
    a, b = begin.offers["north"], begin.offers["south"]
    return change(begin, offers=begin.offers | {"north": Offer(a.public, b.shares)})


def stranger(_party: str, begin: Any) -> Any:
    return change(begin, offers=begin.offers | {"mallory": begin.offers["west"]})


def more_members(_party: str, begin: Any) -> Any:
    return change(begin, members=(*begin.members, "mallory"))


def overlapping(_party: str, unmask: Any) -> Any:
    return change(unmask, dropped=("west",))


def incomplete(_party: str, unmask: Any) -> Any:
    return change(unmask, survivors=unmask.survivors[:-1])


def twice_named(_party: str, unmask: Any) -> Any:
    return change(unmask, survivors=(*unmask.survivors, unmask.survivors[-1]))


def too_few(_party: str, unmask: Any) -> Any:
    return wire.Unmask(unmask.survivors[:2], unmask.survivors[2:])


def gone_yourself(_party: str, unmask: Any) -> Any:
    rest = tuple(p for p in unmask.survivors if p != VICTIM)
    return wire.Unmask(rest, (VICTIM,))


def gone_to_one(_party: str, unmask: Any) -> Any:
    return wire.Unmask(unmask.survivors[:-1], unmask.survivors[-1:])


LIES: dict[str, tuple[Lie, str]] = {
    "all keys withheld": (told(wire.Begin, without_keys, VICTIM), "withholds keys"),
    "one key withheld": (told(wire.Begin, without_one_key, VICTIM), "withholds keys"),
    "members left out": (told(wire.Begin, alone, VICTIM), "threshold is 3"),
    "a key of its own": (told(wire.Begin, other_key, VICTIM), "swapped"),
    "keys crossed": (told(wire.Begin, crossed_keys, VICTIM), "does not open"),
    "shares crossed": (told(wire.Begin, crossed_shares, VICTIM), "does not open"),
    "a stranger's key": (told(wire.Begin, stranger, VICTIM), "withholds keys"),
    "a stranger": (told(wire.Begin, more_members, VICTIM), "did not begin with"),
    "lists overlap": (told(wire.Unmask, overlapping, VICTIM), "overlap or miss"),
    "lists miss one": (told(wire.Unmask, incomplete, VICTIM), "overlap or miss"),
    "one named twice": (told(wire.Unmask, twice_named, VICTIM), "overlap or miss"),
    "below the threshold": (told(wire.Unmask, too_few, VICTIM), "threshold is 3"),
    "a live party is gone": (told(wire.Unmask, gone_yourself, VICTIM), "this party is gone"),
}


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_by_the_party_it_is_told_to(name: str, mode: Any) -> None:
    lie, why = LIES[name]
    tap = Wiretap()
    out = federate(marked(size=20), mode=mode, engine=tap, lead=lying(lie), catch=True)
    assert out.error is not None and out.results == {}
    assert isinstance(out.sessions[VICTIM].error, SecureFLError)
    assert why in str(out.sessions[VICTIM].error)
    said = [h for h in tap.heard if h.party == VICTIM and h.direction == "out"]
    assert not any(isinstance(h.message, wire.Reveal) for h in said)


def test_withheld_keys_would_expose_the_victim() -> None:
    names = MaskedStep(4, 3).names
    victim = names[-1]
    with pytest.raises(CohortError, match="withholds keys"):
        MaskedStep(4, 3, views={victim: (victim,)})
    step = MaskedStep(4, 3, views={victim: (victim,)}, quorum=1)  # a party that does not look
    found = step.exposed((), step.tell({p: () for p in names[:-1]}))
    np.testing.assert_array_equal(found[victim], step.inputs[victim])


def test_different_lists_to_different_parties_stop_before_anything_is_revealed() -> None:
    tap = Wiretap()
    lie = told(wire.Unmask, gone_to_one, VICTIM)  # to the others, everybody is there
    out = federate(marked(size=20), mode="secagg", engine=tap, lead=lying(lie), catch=True)
    assert out.error is not None and out.results == {}
    assert not tap.of(wire.Reveal, VICTIM)


def test_all_told_that_a_live_party_is_gone_get_the_sum_of_the_others_and_no_second_one() -> None:
    """That is what a dropout looks like; the victim's input stays masked."""

    def lie(party: str, message: Any) -> Any:
        if isinstance(message, wire.Unmask):
            return None if party == "west" else gone_to_one(party, message)
        return message

    tap = Wiretap()
    out = federate(marked(size=20), mode="secagg", engine=tap, lead=lying(lie), catch=True)
    reveals = [h.message for h in tap.of(wire.Reveal)]
    assert len(reveals) == len(tap.of(wire.Confirm)) == 3 and not out.results.get("west")
    assert all(set(r.keys) == {"west"} and "west" not in r.seeds for r in reveals)


def test_unmasking_is_answered_once() -> None:
    class Insistent(Liar):
        def _exchange(self, reply: Any) -> Any:
            step = super()._exchange(reply)
            if any(isinstance(m, wire.Unmask) for m in reply.messages.values()):
                return super()._exchange(reply)  # the same lists again, in fresh frames
            return step

    out = federate(
        marked(size=20),
        mode="secagg",
        lead=lambda *a: Insistent(*a, lie=lambda _, m: m),
        catch=True,
    )
    assert "Unmask where Total belongs" in str(out.sessions[VICTIM].error)


@pytest.mark.parametrize("kind", [wire.Start, wire.Begin])
def test_a_failed_program_is_never_begun_again(kind: type) -> None:
    """The same inputs, summed again over fewer parties, would show who is missing."""
    begun: list[str] = []

    async def program(cohort: Any) -> None:
        begun.append(cohort.me)
        raise TamperError("as if the total had been changed")

    class Again(Liar):
        def _exchange(self, reply: Any) -> Any:
            try:
                return super()._exchange(reply)
            except CohortError:
                if any(isinstance(m, wire.Begin) for m in reply.messages.values()):
                    again = wire.Start(NAMES) if kind is wire.Start else reply.messages[VICTIM]
                    frame = self._links[VICTIM].pack(again)
                    answer = self._links[VICTIM].unpack(out_sessions[VICTIM].step(frame))
                    assert isinstance(answer, wire.Failed)
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
        return wire.Relayed(relayed.senders[1:], relayed.sizes[1:])

    out = federate(
        dict.fromkeys(NAMES, sharing),
        mode="secagg",
        lead=lying(told(wire.Relayed, silent, VICTIM)),
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
    out = federate(
        programs, mode="secagg", engine=lambda s: Postman(s, swap=swap), catch=True
    )
    assert isinstance(out.error, WireError) and out.results == {}
