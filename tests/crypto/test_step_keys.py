"""The keys of one masked sum: masks cancel, shares recover what is lost, once and as agreed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.crypto.keys.identity import Channel, Identity
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal, recovered
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.tags import salt_of, salts_by_digest
from secure_fl.crypto.sealing.transcript import ALL, PARTIES, SeenHistory, audience_of
from secure_fl.errors import CohortError, CryptoError, Misconduct, UnusableKeys, WireError
from secure_fl.protocol.messages import Deal, Offer, UnmaskShares
from secure_fl.protocol.ports import OfferedKeys
from tests.support.collusion import LENGTH, STREAM, MaskedStep
from tests.support.raising import raises

M = np.uint64(COHORT.modulus)


def total(step: MaskedStep, lost: tuple[str, ...]) -> object:
    """What the coordinator computes from the inputs and shares of those who stayed."""
    alive = [p for p in step.names if p not in lost]
    reveals = step.tell(dict.fromkeys(alive, lost))
    links = {p: step.keys[p].links for p in alive}
    left = recovered(step.numbers, step.threshold, step.offers, alive, reveals, ("run", 1), links)
    masks = left.own(alive, STREAM, LENGTH, COHORT.modulus)
    masks += left.shared(step.names, {party: {} for party in alive}, STREAM, LENGTH, COHORT.modulus)
    masks %= M
    whole = sum((step.sent[p] for p in alive), np.zeros(LENGTH, np.uint64)) % M
    return (whole + (M - masks)) % M


@pytest.mark.parametrize(
    ("n", "t", "lost"), [(2, 2, 0), (3, 3, 0), (4, 3, 1), (7, 5, 2), (8, 6, 0), (40, 27, 3)]
)
def test_what_is_left_after_unmasking_is_the_sum_of_the_survivors(
    n: int, t: int, lost: int
) -> None:
    step = MaskedStep(n, t)
    expected = sum((step.inputs[p] for p in step.names[lost:]), np.zeros(LENGTH, np.uint64)) % M
    np.testing.assert_array_equal(total(step, step.names[:lost]), expected)


def test_lists_are_settled_once_and_shares_revealed_once() -> None:
    step = MaskedStep(4, 3)
    keys = step.keys["p00"]
    with pytest.raises(CohortError):
        keys.reveal({}, {})  # nothing was settled
    keys.settle(step.names, ())
    with pytest.raises(CohortError, match="asked twice"):
        keys.settle(step.names, ())
    revealed = keys.reveal({}, {})
    assert set(revealed.seeds) == set(step.names) and not revealed.keys
    with pytest.raises(CohortError, match="asked twice"):
        keys.reveal({}, {})


LISTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "overlap": (("p00", "p01", "p02", "p03"), ("p03",)),
    "nobody is missed": (("p00", "p01", "p02"), ()),
    "strangers": (("p00", "p01", "p02", "mallory"), ("p03",)),
    "named twice": (("p00", "p01", "p02", "p02"), ("p03",)),
    "too few": (("p00", "p01"), ("p02", "p03")),
    "itself": (("p01", "p02", "p03"), ("p00",)),
}


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
def test_wrong_lists_are_refused(lists: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    with pytest.raises(CohortError):
        MaskedStep(4, 3).keys["p00"].settle(*lists)


def test_a_dropped_partys_key_is_revealed_to_a_threshold_of_equal_signatures_only() -> None:
    def attempt(signers: tuple[str, ...], *, forged: bool = False) -> UnmaskShares:
        step = MaskedStep(5, 4)
        statement = step.keys["p00"].settle(step.names[:4], ("p04",))
        signed = bytes(32) if forged else statement
        signatures = {p: step.sites[p].sign(signed) for p in signers}
        cards = {p: site.public for p, site in step.sites.items()}
        return step.keys["p00"].reveal(signatures, cards)

    assert set(attempt(("p00", "p01", "p02", "p03")).keys) == {"p04"}
    for few in (("p00", "p01", "p02"), ("p00", "p01", "p02", "p04"), ()):
        with pytest.raises(CohortError, match="confirm who dropped out"):
            attempt(few)  # the one said to be gone does not count
    with raises(CryptoError, field="signature"):
        attempt(("p00", "p01", "p02", "p03"), forged=True)


def test_signatures_of_another_step_or_run_do_not_count() -> None:
    one, other = MaskedStep(4, 3), MaskedStep(4, 3)
    lists = (one.names[:3], ("p03",))
    statements = {one.keys["p00"].settle(*lists)}
    for change in ({"index": 2}, {"run": "other"}):
        keys = other.keys["p00"]
        for field, value in change.items():
            setattr(keys, field, value)
        keys._lists = None
        statements.add(keys.settle(*lists))
    assert len(statements) == 3


def keys_of(index: int = 1, run: str = "run", host: str | None = None) -> dict[str, StepKeys]:
    sites = {n: Identity.generate(n) for n in ("a", "b", "c", "h")}
    parties, numbers = frozenset(sites) - {host}, {n: i for i, n in enumerate(sites, 1)}
    return {
        a: StepKeys(
            a,
            host,
            run,
            index,
            parties,
            numbers,
            2,
            {b: Channel(sites[a], sites[b].public, b"run") for b in sites if b != a},
        )
        for a in sites
    }


def offered(keys: dict[str, StepKeys], to: str) -> dict[str, Offer]:
    return {p: k.offer() for p, k in keys.items() if p != to}


CHANGES: dict[str, Callable[[dict[str, Offer]], dict[str, Offer]]] = {
    "one is missing": lambda o: {p: x for p, x in o.items() if p != "b"},
    "none": lambda o: {},
    "public key replaced": lambda o: o | {"b": structs.replace(o["b"], public=bytes(32))},
    "sender replaced": lambda o: o | {"b": o["c"]},
    "share cut": lambda o: (
        o | {"b": structs.replace(o["b"], shares={"a": o["b"].shares["a"][:-1]})}
    ),
    "bound to others": lambda o: o | {"b": structs.replace(o["b"], deals=o["c"].deals)},
    "bound to nothing": lambda o: o | {"b": structs.replace(o["b"], deals={})},
    "another seed": lambda o: o | {"b": structs.replace(o["b"], seed=bytes(32))},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_keys_are_taken_whole_and_as_they_were_sent(
    change: Callable[[dict[str, Offer]], dict[str, Offer]],
) -> None:
    keys = keys_of()
    with pytest.raises((CohortError, CryptoError)):
        keys["a"].accept(change(offered(keys, "a")), list(keys))
    fresh = keys_of()
    fresh["a"].accept(offered(fresh, "a"), list(fresh))


@pytest.mark.parametrize("other", [{"index": 2}, {"run": "another"}])
def test_keys_of_another_step_do_not_open(other: dict[str, object]) -> None:
    keys = keys_of()
    late = offered(keys, "a")
    for field, value in other.items():
        setattr(keys["a"], field, value)
    with raises(CryptoError, field="seal"):
        keys["a"].accept(late, list(keys))


def test_the_hosts_masks_are_what_the_parties_added_for_it() -> None:
    keys = keys_of(host="h")
    offers = {p: k.offer() for p, k in keys.items()}
    for name, mine in keys.items():
        mine.accept({p: o for p, o in offers.items() if p != name}, list(keys))
    parties = ("a", "b", "c")
    plain = [keys[p].mask(parties, STREAM, 5, COHORT.modulus, for_host=False) for p in parties]
    masked = [keys[p].mask(parties, STREAM, 5, COHORT.modulus, for_host=True) for p in parties]
    added = sum(((m + (M - p)) % M for m, p in zip(masked, plain, strict=True)), np.uint64(0)) % M
    np.testing.assert_array_equal(keys["h"].host_masks(parties, STREAM, 5, COHORT.modulus), added)
    assert not keys["h"]._held  # the host holds nobody's shares
    keys["h"].settle(("a", "b", "c", "h"), ())
    assert keys["h"].reveal({}, {}) == UnmaskShares({}, {}, sum=1)


def blind(step: MaskedStep) -> ProtectedTotal:
    """The coordinator's half of that sum."""
    return ProtectedTotal(
        COHORT.modulus,
        None,
        offered=OfferedKeys(step.names, step.offers, 1),
        numbers=step.numbers,
        host=None,
        threshold=step.threshold,
        run=b"",
    )


def test_who_reveals_another_share_than_it_was_dealt_is_named() -> None:
    step = MaskedStep(4, 3, run="")
    alive = step.names[:3]
    honest = step.tell(dict.fromkeys(alive, ("p03",)))
    for sender, shares in honest.items():
        blind(step).check(sender, shares, alive)
        for owner, share in (*shares.keys.items(), *shares.seeds.items()):
            wrong = bytes([*share[:-1], share[-1] ^ 1])
            kind = "keys" if owner in shares.keys else "seeds"
            lie = structs.replace(shares, **{kind: getattr(shares, kind) | {owner: wrong}})
            with raises(Misconduct, party=sender, owner=owner):
                blind(step).check(sender, lie, alive)
    for lie in (
        structs.replace(shares, keys={}),
        structs.replace(shares, seeds=dict(list(shares.seeds.items())[1:])),
        structs.replace(shares, seeds=shares.seeds | shares.keys),
        structs.replace(shares, sum=2),
    ):
        with raises(WireError, party=sender):
            blind(step).check(sender, lie, alive)


OTHER_HALF = {"p01": Deal(bytes(32), bytes(32), bytes(32))}


@pytest.mark.parametrize(
    "change", [{"seed": bytes(32)}, {"public": bytes(31) + b"x"}, {"deals": OTHER_HALF}]
)
def test_who_deals_shares_that_are_not_of_its_secret_is_named(change: dict[str, Any]) -> None:
    """Each share is one that it dealt, so nobody else can have changed the secret."""
    step = MaskedStep(4, 3)
    owner = "p01" if "seed" in change else "p03"
    alive, offers = step.names[:3], dict(step.offers)
    reveals = step.tell(dict.fromkeys(alive, ("p03",)))
    offers[owner] = structs.replace(offers[owner], **change)
    with raises(UnusableKeys, party=owner):
        recovered(step.numbers, step.threshold, offers, alive, reveals, ("run", 1), {})


def test_who_signs_another_link_than_its_own_is_named() -> None:
    """It would leave a mask in the sum that nobody could tell from an input."""
    step = MaskedStep(4, 3)
    alive = step.names[:3]
    links = {p: step.keys[p].links for p in alive} | {"p01": {"p03": bytes(32)}}
    reveals = step.tell(dict.fromkeys(alive, ("p03",)))
    with raises(UnusableKeys, "link", party="p01"):
        recovered(step.numbers, step.threshold, step.offers, alive, reveals, ("run", 1), links)


def test_two_segments_and_two_sums_share_no_mask() -> None:
    step = MaskedStep(4, 3)
    masks = {
        step.keys["p00"]
        .mask(step.names, StreamId("run", *which), 4, COHORT.modulus, for_host=False)
        .tobytes()
        for which in (("one", 1), ("two", 1), ("one", 2))
    }
    assert len(masks) == 3


def test_everybody_masks_with_everybody_and_holds_a_share_of_each() -> None:
    step = MaskedStep(40, 27)
    everybody = set(step.names)
    for name, keys in step.keys.items():
        assert keys.peers(step.names) == everybody - {name} and set(keys._held) == everybody


# --- what parties have seen is equal where it must be, and differs where anything differed ------


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
