"""A coordinator that is genuine, and does as it likes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from secure_fl.errors import WireError
from secure_fl.pilot.plan import RESTARTED, write_plan
from secure_fl.protocol import messages
from secure_fl.protocol.frames import peek
from secure_fl.protocol.messages import Failed, Gather, Hello, Invite
from tests.support.edge import SAMPLES, Asker
from tests.support.mutants import changed, odd, signed, tree


@pytest.mark.parametrize("state", ["never invited", "invited", "seated"])
def test_messages_out_of_place(opened, state):
    """Any kind, at any moment: an error or a code, and the next genuine invitation is accepted."""
    made = opened()
    asker = Asker(made)
    for message in SAMPLES if state != "seated" else [SAMPLES[i] for i in (1, 3, 5, 6, 11, 13, 19)]:
        {"never invited": lambda: None, "invited": asker.invite, "seated": asker.seated}[state]()
        answer = asker.throw(asker.link.pack(message).head)
        from_party = isinstance(message, messages.FromParty)
        if from_party or (state != "seated" and isinstance(message, Gather)):
            assert answer is None or peek(answer.head).message == Failed("cohort")
            assert answer is None or state == "invited"
        elif state == "never invited":
            assert answer is not None and peek(answer.head).message == Failed(RESTARTED)
        elif state == "invited":
            assert answer is None
        else:
            assert answer is not None and isinstance(peek(answer.head).message, Failed)
        assert asker.seat.joined == (state == "seated" and answer is None)
        asker.link = asker.fresh()
    assert isinstance(asker.invite(), Hello)


def test_what_a_genuine_coordinator_signs_breaks_nothing(opened):
    """Its signature is genuine, what it says is not a message or not one for now."""
    made, rng = opened(), random.Random(8)
    asker, outcomes = Asker(made), Counter[str]()
    for number in range(1200):
        if number % 10 == 0:
            asker.invite()
        frame = asker.link.pack(rng.choice(SAMPLES))
        mutant = changed(rng, tree(frame)) if rng.random() < 0.9 else odd(rng)
        answer = asker.throw(signed(mutant, made.coordinator), rng.choice((b"", b"x" * 9)))
        outcomes["answered" if answer else "refused"] += 1
    assert outcomes["refused"] > 600
    assert isinstance(asker.invite(), Hello)


@pytest.mark.parametrize("seed", range(4))
def test_what_it_signs_within_a_run_ends_the_run_at_worst(opened, seed):
    made, rng = opened(), random.Random(seed)
    asker = Asker(made)
    for _ in range(15):
        asker.seated()
        asker.say(SAMPLES[0])
        for _ in range(4):
            frame = asker.link.pack(rng.choice(SAMPLES[1:]))
            envelope = tree(frame)
            envelope[-1] = changed(rng, envelope[-1])
            asker.throw(signed(envelope, made.coordinator), rng.randbytes(9))
    assert isinstance(asker.invite(), Hello)


def test_an_old_invitation_ends_nothing(opened):
    """Replayed while a run is under way, it would end that run."""
    made = opened()
    asker = Asker(made)
    asker.link = asker.fresh()
    old = asker.link.pack(Invite(write_plan(made.plan)))
    assert isinstance(asker.link.unpack(asker.seat.step(old)), Hello)
    asker.seated()
    with pytest.raises(WireError, match="already answered"):
        asker.seat.step(old)
    assert isinstance(asker.say(SAMPLES[0]), messages.Ready)  # the run goes on
