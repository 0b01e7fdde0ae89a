"""Every error says what happened, where, and what to do."""

from __future__ import annotations

import inspect

import pytest

from secure_fl import errors
from secure_fl.errors import PartyFailed, SecureFLError, WireError
from secure_fl.policy.violations import PolicyRefusal

KINDS: list[type[SecureFLError]] = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SecureFLError) and kind is not SecureFLError
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_knows_what_to_do(kind: type[SecureFLError]) -> None:
    assert "advice" in vars(kind)


def test_codes_tell_the_kinds_apart() -> None:
    kinds: list[type[SecureFLError]] = [*KINDS, PolicyRefusal]
    codes = [kind.code for kind in kinds if kind is not PartyFailed]
    assert len(set(codes)) == len(codes)  # that a party failed is a cohort's matter


def test_a_better_answer_than_the_kinds_own_wins() -> None:
    assert str(WireError("cut short", party="a")).startswith(
        "party a: cut short\n  -> if it happens"
    )
    assert str(WireError("cut short", fix="send it again")) == "cut short\n  -> send it again"


def test_who_knows_more_adds_places_and_takes_none_away() -> None:
    error = WireError("cut short", party="a").at(party="b", round=3, file=None)
    assert error.where == {"party": "a", "round": 3}
