"""What parties have seen is equal where it must be, and differs where anything differed."""

from __future__ import annotations

import pytest

from secure_fl.crypto.sealing.tags import salt_of, salts_by_digest
from secure_fl.crypto.sealing.transcript import ALL, PARTIES, SeenHistory, audience_of
from secure_fl.errors import CohortError

A, B, C, HOST = "a", "b", "c", "host"


def after(*notes: tuple[str, bytes]) -> SeenHistory:
    seen = SeenHistory()
    for audience, what in notes:
        seen.note(audience, what)
    return seen


def test_everything_counts_and_its_order() -> None:
    one, two = after((PARTIES, b"x"), (PARTIES, b"y")), after((PARTIES, b"y"), (PARTIES, b"x"))
    assert one.by((A, B), host=False) != two.by((A, B), host=False)
    assert after((ALL, b"x")).by((A,), host=True) != after((ALL, b"y")).by((A,), host=True)
    assert after().by((A,), host=False) != after((PARTIES, b"")).by((A,), host=False)
    longer = after((PARTIES, b"x")), after((PARTIES, b"x"), (PARTIES, b""))
    assert longer[0].by((A,), host=False) != longer[1].by((A,), host=False)


def test_a_host_is_bound_by_what_it_has_seen_too() -> None:
    party, host = after((PARTIES, b"a sum"), (ALL, b"told")), after((ALL, b"told"))
    assert party.by((A, B), host=True) == host.by((A, B), host=True)
    assert party.by((A, B), host=False) != host.by((A, B), host=False)


def test_sums_of_some_bind_those_alone() -> None:
    some = audience_of((B, A), (A, B, C))
    assert audience_of((A, B, C), (A, B)) == PARTIES and some == "a\nb"
    in_it, out = after((some, b"x")), after()
    assert in_it.by((A, B, C), host=False) == out.by((A, B, C), host=False)  # c saw nothing of it
    assert in_it.by((A,), host=False) == after((some, b"x")).by((A,), host=False)
    assert in_it.by((A, B), host=False) != after((some, b"y")).by((A, B), host=False)


def test_rounds_are_kept_and_a_new_session_adds_to_them() -> None:
    first = after((PARTIES, b"x"), (ALL, b"z"))
    first.turn()
    kept, before = first.state(), first.by((A,), host=False)
    again = after((PARTIES, b"counts"))  # summed before the round is restored
    again.restore(kept)
    assert again.by((A,), host=False) != before
    other = after((PARTIES, b"other counts"))
    other.restore(kept)
    assert again.by((A,), host=False) != other.by((A,), host=False)
    assert again.state() == kept  # until its round is over
    again.turn()
    assert again.state() != kept


def test_newcomers_are_given_what_all_have_seen() -> None:
    holder = after((PARTIES, b"x"), (ALL, b"y"))
    holder.turn()
    newcomer = SeenHistory()
    newcomer.restore(holder.common())
    assert newcomer.by((A, B, C), host=False) == holder.by((A, B, C), host=False)
    holder.note("a\nb", b"z")
    holder.turn()
    with pytest.raises(CohortError, match="no party can join any more"):
        holder.common()


def beyond(seen: SeenHistory, *, host: bool = False) -> dict[str, bytes]:
    return seen.beyond(A, (B, C), (A, B, C), host=host)


def test_two_are_bound_to_what_only_they_have_seen() -> None:
    one = after((PARTIES, b"x"), ("a\nb", b"y"))
    assert set(beyond(one)) == {B} and beyond(after((PARTIES, b"x"))) == {}
    assert beyond(one) != beyond(after((PARTIES, b"x"), ("a\nb", b"z")))
    b = after((PARTIES, b"x"), ("a\nb", b"y"), ("b\nc", b"w"))
    assert b.beyond(B, (A,), (A, B, C), host=False)[A] == beyond(one)[B]


def test_masks_of_a_host_sum_are_bound_to_the_parties_sums() -> None:
    told, model = (ALL, b"told"), (PARTIES, b"a model")
    assert set(beyond(after(told, model), host=True)) == {B, C}
    assert beyond(after(told), host=True) == {}
    assert beyond(after(told, model), host=True) != beyond(after(told, (PARTIES, b"")), host=True)


def test_salts_cross_the_wire_once_for_all_who_have_seen_the_same() -> None:
    known, peers = {A: bytes(32), B: b"\1" * 32, C: bytes(32)}, (A, B, C)
    salts = salts_by_digest(known)
    assert [salt.peers for salt in salts] == [(A, C), (B,)] and salts_by_digest({}) == ()
    assert {peer: salt_of(salts, peer) for peer in (*peers, HOST)} == known | {HOST: b""}
    assert [salt.peers for salt in salts_by_digest(dict.fromkeys(peers, bytes(32)))] == [peers]
