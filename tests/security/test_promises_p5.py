"""P5: a coordinator that lies about keys, members, rounds and dropouts is refused by the parties.

`test_promises_p3` shows what such lies would win; here they are told to a whole run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from secure_fl.crypto.sealing.masking import public_key
from secure_fl.errors import CohortError, SecureFLError
from secure_fl.protocol import messages
from secure_fl.testing.harness import federate
from tests.support.attacker import Lie, Wiretap, lying, marked, told
from tests.support.collusion import MaskedStep

VICTIM = "east"
change = msgspec.structs.replace


def without_keys(_party: str, begin: Any) -> Any:
    return change(begin, offers={})


def without_one_key(_party: str, begin: Any) -> Any:
    return change(begin, offers={p: o for p, o in begin.offers.items() if p != "west"})


def alone(_party: str, begin: Any) -> Any:
    return change(begin, members=(VICTIM, "west"), offers={"west": begin.offers["west"]})


def other_key(_party: str, begin: Any) -> Any:
    mine = public_key(bytes(16))  # the coordinator knows its secret
    swapped = {p: change(o, public=mine) for p, o in begin.offers.items()}
    return change(begin, offers=swapped)


def crossed_keys(_party: str, begin: Any) -> Any:
    a, b = begin.offers["north"], begin.offers["south"]
    return change(begin, offers=begin.offers | {"north": b, "south": a})


def crossed_shares(_party: str, begin: Any) -> Any:
    a, b = begin.offers["north"], begin.offers["south"]
    return change(begin, offers=begin.offers | {"north": change(b, public=a.public)})


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
    return change(unmask, survivors=unmask.survivors[:2], dropped=unmask.survivors[2:])


def gone_yourself(_party: str, unmask: Any) -> Any:
    rest = tuple(p for p in unmask.survivors if p != VICTIM)
    return change(unmask, survivors=rest, dropped=(VICTIM,))


def gone_to_one(_party: str, unmask: Any) -> Any:
    return change(unmask, survivors=unmask.survivors[:-1], dropped=unmask.survivors[-1:])


LIES: dict[str, tuple[Lie, str]] = {
    "all keys withheld": (told(messages.Begin, without_keys, VICTIM), "withholds keys"),
    "one key withheld": (told(messages.Begin, without_one_key, VICTIM), "withholds keys"),
    "members left out": (told(messages.Begin, alone, VICTIM), "threshold is 3"),
    "a key of its own": (told(messages.Begin, other_key, VICTIM), "does not open"),
    "keys crossed": (told(messages.Begin, crossed_keys, VICTIM), "does not open"),
    "shares crossed": (told(messages.Begin, crossed_shares, VICTIM), "does not open"),
    "a stranger's key": (told(messages.Begin, stranger, VICTIM), "withholds keys"),
    "a stranger": (told(messages.Begin, more_members, VICTIM), "did not begin with"),
    "lists overlap": (told(messages.Unmask, overlapping, VICTIM), "overlap or miss"),
    "lists miss one": (told(messages.Unmask, incomplete, VICTIM), "overlap or miss"),
    "one named twice": (told(messages.Unmask, twice_named, VICTIM), "overlap or miss"),
    "below the threshold": (told(messages.Unmask, too_few, VICTIM), "threshold is 3"),
    "a live party is gone": (told(messages.Unmask, gone_yourself, VICTIM), "this party is gone"),
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
    assert not any(isinstance(h.message, messages.UnmaskShares) for h in said)


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
    lie = told(messages.Unmask, gone_to_one, VICTIM)  # to the others, everybody is there
    out = federate(marked(size=20), mode="secagg", engine=tap, lead=lying(lie), catch=True)
    assert out.error is not None and out.results == {}
    assert not tap.of(messages.UnmaskShares, VICTIM)


def test_all_told_that_a_live_party_is_gone_get_the_sum_of_the_others_and_no_second_one() -> None:
    """That is what a dropout looks like; the victim's input stays masked."""

    def lie(party: str, message: Any) -> Any:
        if isinstance(message, messages.Unmask):
            return None if party == "west" else gone_to_one(party, message)
        return message

    tap = Wiretap()
    out = federate(marked(size=20), mode="secagg", engine=tap, lead=lying(lie), catch=True)
    reveals = [h.message for h in tap.of(messages.UnmaskShares)]
    assert len(reveals) == len(tap.of(messages.Confirm)) == 3 and not out.results.get("west")
    assert all(set(r.keys) == {"west"} and "west" not in r.seeds for r in reveals)
