"""After which round a run goes on: the rules, checked on every story that parties could tell."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.coordinator.resume import Unfinished, continuation, unfinished
from secure_fl.errors import CohortError
from secure_fl.protocol.messages import JOINED, MOST_NOTES, Ready
from secure_fl.thresholds import default_threshold, quorum
from tests.support.raising import raises

ABC, ABCD = ("a", "b", "c"), ("a", "b", "c", "d")


def rounds(newest: int, who: tuple[str, ...]) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    return tuple((round, 2, who) for round in range(1, newest + 1))


def reports(has: dict[str, tuple[int, ...]], opened: int, who: tuple[str, ...]) -> dict[str, Ready]:
    """What parties say that hold these rounds; those that hold any took part in all."""
    return {m: Ready(kept, None, rounds(opened, who) if kept else ()) for m, kept in has.items()}


@pytest.mark.parametrize(
    ("has", "opened", "who", "expected"),
    [
        # nobody is new
        ({"a": (), "b": (), "c": ()}, 0, ABC, (0, ())),
        ({"a": (2, 3), "b": (2, 3), "c": (2, 3)}, 4, ABC, (3, ())),
        ({"a": (2, 3), "b": (2, 3), "c": (1, 2)}, 3, ABC, (2, ())),  # a crash while saving
        # d was never there
        ({"a": (2, 3), "b": (2, 3), "c": (2, 3), "d": ()}, 3, ABC, (3, ("d",))),
        ({"a": (1,), "b": (1,), "c": (1,), "d": ()}, 1, ABC, (1, ("d",))),
        ({"a": (2, 3), "b": (2, 3), "c": (2, 3), "d": ()}, 4, ABC, None),  # 4 was begun
        ({"a": (2, 3), "b": (2, 3), "c": (1, 2), "d": ()}, 3, ABC, None),  # 3 is not over
        # c lost its disk
        ({"a": (2, 3), "b": (2, 3), "c": ()}, 3, ABC, (3, ("c",))),
        ({"a": (2, 3), "b": (2, 3), "c": ()}, 4, ABC, (0, ())),  # 4 was begun: all of it again
        ({"a": (1,), "b": (1,), "c": ()}, 1, ABC, (0, ())),  # one round: bit for bit is better
        ({"a": (2, 3), "b": (), "c": ()}, 3, ABC, (0, ())),  # one alone does not vouch
        # c was away for long
        ({"a": (7, 8), "b": (7, 8), "c": (3, 4), "d": (7, 8)}, 8, ("a", "b", "d"), (8, ("c",))),
        # d left
        ({"a": (2, 3), "b": (2, 3), "c": (2, 3)}, 3, ABCD, (3, ())),
        ({"a": (2, 3), "b": (2, 3), "c": (2, 3)}, 4, ABCD, None),
    ],
)
def test_the_newest_round_that_does_no_harm(
    has: dict[str, tuple[int, ...]],
    opened: int,
    who: tuple[str, ...],
    expected: tuple[int, tuple[str, ...]] | None,
) -> None:
    ready = reports(has, opened, who)
    if expected is not None:
        found = continuation(ready, None, default_threshold(len(ready)))
        assert (found.after, found.newcomers) == expected
        return
    with pytest.raises(Unfinished):
        continuation(ready, None, default_threshold(len(ready)))


def test_a_begun_round_is_finished_by_those_who_can() -> None:
    joins = reports({"a": (2, 3), "b": (2, 3), "c": (2, 3), "d": ()}, 4, ABC)
    assert unfinished(joins, None, 3) == (4, frozenset(ABC))
    leaves = reports({"a": (2, 3), "b": (2, 3), "c": (2, 3)}, 4, ABCD)
    assert unfinished(leaves, None, 3) is None
    assert unfinished(reports({"a": (3,), "b": (3,), "c": (3,)}, 4, ABC), None, 3) is None


def test_a_begun_round_is_finished_by_those_of_whom_one_joins_again() -> None:
    """D joined in round 3 and lost its disk; e is new, and four must hold a round to let it in."""
    notes = ((2, 2, ABC), (2, JOINED, ABC), (3, 2, ABCD))
    ready = {m: Ready((2, 3), None, notes) for m in ABC} | {"d": Ready(), "e": Ready()}
    assert unfinished(ready, None, 4) == (3, frozenset(ABCD))


def test_what_is_repeated_before_the_first_round_keeps_newcomers_out() -> None:
    ready = {m: Ready((3,), None, ((0, 1, ABC), (3, 1, ABC))) for m in ABC} | {"d": Ready()}
    with pytest.raises(CohortError):
        continuation(ready, None, 3)


def test_the_host_does_not_count() -> None:
    ready = reports({"a": (3,), "b": (3,), "h": (3,), "c": ()}, 3, ("a", "b", "h"))
    assert continuation(ready, "h", 3) == (3, ("c",), ())
    with pytest.raises(CohortError):
        continuation(reports({"a": (3,), "b": (), "h": (3,)}, 3, ("a", "h")), "h", 2)


people = st.sampled_from("abcd")
AB, ABD = ("a", "b"), ("a", "b", "d")


def noted(**notes: tuple[tuple[int, int, tuple[str, ...]], ...]) -> dict[str, Ready]:
    """All hold rounds 1 and 2; these are their notes of round 3, or of what came before."""
    return {m: Ready((1, 2), None, told) for m, told in notes.items()}


@pytest.mark.parametrize(
    ("ready", "again"),
    [
        # d was lost before sum 2, which only some had noted when all was cut short
        (noted(a=((3, 1, ABCD), (3, 2, ABC)), b=((3, 1, ABCD),), c=(), d=((3, 1, ABCD),)),
         [(3, 1, ABCD), (3, 2, ABC)]),
        # sums in a row over the same parties: the last of them is told
        (noted(a=((3, 4, ABCD),), b=((3, 4, ABCD), (3, 6, ABC)), c=((3, 3, ABCD),), d=()),
         [(3, 3, ABCD), (3, 4, ABCD), (3, 6, ABC)]),
        # one after the other
        (noted(a=((3, 1, ABCD), (3, 2, ABC), (3, 3, AB)), b=(), c=((3, 2, ABC),), d=())
         | noted(c=((3, 1, ABCD), (3, 2, ABC))),
         [(3, 1, ABCD), (3, 2, ABC), (3, 3, AB)]),
        # before the first round all were there, as every time
        (noted(a=((0, 1, ABCD), (3, 1, ABC)), b=((0, 1, ABCD),), c=((0, 1, ABCD),), d=()),
         [(0, 1, ABCD), (3, 1, ABC)]),
    ],
)  # fmt: skip
def test_who_was_lost_between_two_sums_is_left_out_again(
    ready: dict[str, Ready], again: list[tuple[int, int, tuple[str, ...]]]
) -> None:
    found = continuation(ready, None, 2)
    assert (found.after, found.newcomers) == (2, ())
    assert [(s.round, s.last_number, tuple(sorted(s.parties))) for s in found.to_repeat] == again
    assert unfinished(ready, None, 2) == (3, frozenset("abcd"))


@pytest.mark.parametrize(
    "ready",
    [
        # without d, whose input was in the first sum
        noted(a=((3, 1, ABCD), (3, 2, ABC)), b=((3, 1, ABCD), (3, 2, ABC)), c=((3, 1, ABCD),)),
        # one sum over two sets, and nobody without a part in it could go on alone
        noted(a=((3, 1, ABC),), b=((3, 1, ABD),), c=((3, 1, ABC),), d=((3, 1, ABD),)),
        # somebody came back between two sums of one round: nobody is ever added
        noted(a=((3, 1, ABC), (3, 2, ABCD)), b=(), c=(), d=()),
        # one party says both
        noted(a=((3, 1, ABCD), (3, 1, ABC)), b=(), c=(), d=()),
        # what every resume repeats, over two sets
        noted(a=((0, 1, ABCD), (0, 2, ABC)), b=(), c=(), d=()),
    ],
)
def test_what_cannot_be_repeated_stops_with_a_reason(ready: dict[str, Ready]) -> None:
    with raises(CohortError, "it would show somebody's input", "over a, b, c"):
        continuation(ready, None, 2)


def test_a_set_that_only_the_absent_knew_does_not_keep_the_others() -> None:
    """D alone had noted that all four were asked; then the others began without it."""
    ready = noted(a=((3, 1, ABC),), b=(), c=((3, 1, ABC),), d=((3, 1, ABCD),))
    assert unfinished(ready, None, 3) == (3, frozenset("abc"))


def test_nothing_before_a_round_that_was_joined_is_repeated() -> None:
    ready = noted(a=((2, 0, ABC),), b=(), c=(), d=())
    assert continuation(ready, None, 3).after == 2
    with pytest.raises(CohortError):
        continuation({m: Ready((1,), None, said.opened) for m, said in ready.items()}, None, 3)


def test_a_party_cannot_keep_a_coordinator_busy_with_large_numbers() -> None:
    many = tuple((2**31 - at, 2**31, (f"{at:05}", "a", "b")) for at in range(300))
    with pytest.raises(CohortError):
        continuation(noted(a=many, b=(), c=(), d=()), None, 3)


stories = st.builds(
    Ready,
    st.frozensets(st.integers(1, 4)).map(lambda kept: tuple(sorted(kept))),
    st.none(),
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 2), st.frozensets(people, min_size=2).map(tuple)
        ),
        max_size=5,
    ).map(tuple),
)


@given(st.dictionaries(people, stories, min_size=1), st.sampled_from((None, "a")))
def test_no_story_makes_an_input_appear_in_two_sums(
    ready: dict[str, Ready], host: str | None
) -> None:
    parties = [m for m in ready if m != host]
    threshold = default_threshold(len(parties)) if parties else 1
    try:
        after, newcomers, again = continuation(ready, host, threshold)
    except CohortError:
        return
    repeated = {
        (q, sum, frozenset(who))
        for m in ready.values()
        for q, sum, who in m.opened
        if sum and (q > after or q == 0)
    }
    assert {(q, sum) for q, sum, _ in repeated} == {(s.round, s.last_number) for s in again}
    for q, sum, who in repeated:  # each over exactly those that everybody says
        assert who == next(s.parties for s in again if (s.round, s.last_number) == (q, sum))
    here = set(ready)
    for at, sums in enumerate(again):
        assert sums.parties <= here and (at or sums.parties == here)  # nobody missing, nobody added
        here = set(sums.parties)
    assert all(after >= q for m in ready.values() for q, sum, _ in m.opened if sum == 0)
    holders = {m for m, said in ready.items() if after in (0, *said.checkpoints)}
    assert holders == set(ready) - set(newcomers)
    if newcomers:
        assert not any(q > after for m in ready.values() for q, *_ in m.opened)
        assert all(sums.parties == set(ready) for sums in again)
        assert len(holders & set(parties)) >= quorum(len(parties), threshold)


def test_what_one_party_may_tell_costs_little_and_more_is_refused() -> None:
    """Each note over others, of another round: a coordinator once tried them all against all."""
    lies = [(round, 1, ("a", "d") if round % 2 else ("b", "d")) for round in range(1, 2001)]
    story, seconds = tuple(lies[:MOST_NOTES]), []
    for _ in range(3):  # other processes slow single ones down
        began = time.thread_time()
        with pytest.raises(CohortError):
            continuation(noted(a=(), b=(), c=(), d=story), None, 3)
        seconds.append(time.thread_time() - began)
    assert min(seconds) < 0.1  # 0.3 s for so many, and 27 s for all, before
    for sent in (Ready((), None, tuple(lies)), Ready(tuple(range(20)))):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Ready)
