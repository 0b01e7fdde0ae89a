"""A coordinator that lies about who lacks a round moves nobody's state, and repeats no input."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from secure_fl import FedAvg
from secure_fl.coordinator import assembly
from secure_fl.coordinator.machine import Coordinator
from secure_fl.coordinator.run_steps import HandoverStep
from secure_fl.coordinator.sum_steps import Reply, Step
from secure_fl.crypto.sealing.clear_sum import ClearEnvelopes
from secure_fl.crypto.sealing.envelopes import Envelopes as SealedEnvelopes
from secure_fl.errors import CohortError, Disagreement, SecureFLError, TamperError
from secure_fl.federation.assembly import make_keys
from secure_fl.party.round_loop import StateHandover
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import Begin, HandedOver
from secure_fl.protocol.ports import EnvelopeLayer
from secure_fl.runs import checkpoint
from secure_fl.testing.hospitals import small
from tests.support.attacker import Liar, Wiretap, lying, told
from tests.support.equality import checkpoint_of, kept_model
from tests.support.joining import FOUR, LATE, THREE, stopped_after_3, tampered
from tests.support.raising import raises

FIRST, SECOND, THIRD = (silo.name for silo in THREE)
Lead = Callable[..., Coordinator]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stopped_after_3(tmp_path, mode="he+secagg")
    return tmp_path


def join(
    folder: Path, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> tuple[SecureFLError, dict[str, Session]]:
    """Resume with one more under this coordinator; what stopped the run, and the sessions."""
    monkeypatch.setattr(assembly, "Coordinator", lead)
    tap = Wiretap()
    run = small(FedAvg(rounds=4), "he+secagg", folder=folder, silos=FOUR, resume=True)
    with pytest.raises(SecureFLError) as caught:
        run.run(tap)
    return caught.value, dict(tap.sessions)


def saying(to: str | None, **changes: Any) -> Lead:
    return lying(told(Begin, lambda _, begin: structs.replace(begin, **changes), to))


def nothing_was_lost(folder: Path, before: dict[str, Any]) -> None:
    for silo in THREE:
        now = kept_model(folder, silo.name, 3)
        assert all((now[name] == before[name]).all() for name in before)


def test_a_checkpoint_has_the_history_that_later_masks_are_bound_to(folder: Path) -> None:
    """Without it, a party that was deceived before a crash would mask like all others after it."""
    saved = [checkpoint.load(checkpoint_of(folder, silo.name, 3)) for silo in THREE]
    histories = [state["sums"]["seen"] for state in saved]
    assert histories[0] and histories == 3 * histories[:1]


@pytest.mark.parametrize("victim", [FIRST, LATE])
def test_a_party_knows_itself_whether_it_has_a_round(
    folder: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    newcomers = () if victim == LATE else (LATE, FIRST)
    before = kept_model(folder, FIRST, 3)
    error, _ = join(folder, saying(victim, newcomers=newcomers), monkeypatch)
    assert "which is not so" in str(error) and error.where["party"] == victim
    nothing_was_lost(folder, before)


def test_nobody_joins_who_takes_no_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer that is lost does not join, so it must have been there."""
    before = kept_model(folder, FIRST, 3)
    error, _ = join(folder, saying(FIRST, newcomers=(LATE, "stranger")), monkeypatch)
    assert "take no part" in str(error) and error.where["party"] == FIRST
    nothing_was_lost(folder, before)


def test_one_party_that_is_told_of_no_newcomer_keeps_all_from_going_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its proof is missing, and the coordinator cannot make one."""
    join(folder, saying(FIRST, newcomers=()), monkeypatch)
    assert not (folder / "parties" / LATE / "checkpoints" / "round-00003").exists()


def test_no_newcomer_makes_parties_repeat_an_older_round(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = join(folder, saying(None, after_round=2), monkeypatch)
    assert "opened before" in str(error)


def test_parties_insist_on_a_quorum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four cannot vouch, whoever is said to be lost."""

    def lie(_: str, message: HandedOver) -> HandedOver:
        proofs = {p: proof for p, proof in message.proofs.items() if p != THIRD}
        return HandedOver(tuple(m for m in message.members if m != THIRD), proofs)

    error, _ = join(folder, lying(told(HandedOver, lie, LATE)), monkeypatch)
    assert "hold round 3" in str(error)


def test_proofs_are_neither_left_out_nor_invented(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(_: str, message: HandedOver) -> HandedOver:
        return structs.replace(message, proofs=message.proofs | {SECOND: os.urandom(32)})

    error, _ = join(folder, lying(told(HandedOver, lie, LATE)), monkeypatch)
    assert isinstance(error, Disagreement) and SECOND in error.what


class Swapping(Liar):
    """Sends newcomers another state than the one that was handed over."""

    def _exchange(self, reply: Reply) -> Step:
        if any(isinstance(m, HandedOver) for m in reply.messages.values()):
            other = Bulk.of(os.urandom(len(reply.bulks[LATE].data)))
            reply = reply._replace(bulks={**reply.bulks, LATE: other})
        return super()._exchange(reply)


def test_a_state_of_the_coordinator_s_own_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = join(folder, lambda *a: Swapping(*a, lie=lambda _, m: m), monkeypatch)
    assert isinstance(error, TamperError) and error.where["party"] == LATE


class Appeasing(Coordinator):
    """Says that all holders have the same, whatever they have."""

    def _exchange(self, reply: Reply) -> Step:
        step = super()._exchange(reply)
        if isinstance(step, HandoverStep):
            step.fingerprints = {b"": list(step.proofs)}
        return step


@pytest.mark.parametrize("bad", [FIRST, SECOND])
def test_a_wrong_state_is_found_by_the_parties_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    tampered(folder, bad)
    error, sessions = join(folder, Appeasing, monkeypatch)
    assert isinstance(error, Disagreement) and error.where["party"] == bad
    assert not (folder / "parties" / LATE / "checkpoints" / "round-00003").exists()
    assert len(sessions) == 4


CLEAR = {name: ClearEnvelopes(name) for name in "abcd"}


def proofs(of: StateHandover, states: dict[str, bytes]) -> dict[str, bytes]:
    return {p: proof(of, CLEAR[p], p, state) for p, state in states.items()}


def proof(of: StateHandover, envelopes: EnvelopeLayer, party: str, state: bytes) -> bytes:
    return envelopes.vouch(of.digest(envelopes, state, party))


def test_who_stands_alone_is_named_and_of_two_both() -> None:
    three = StateHandover(3, ("a", "b", "c", "d"), ("d",), None, 3)
    cases = [("a", b"bad", "a"), ("b", b"good", "a"), ("d", b"bad", "a")]
    for me, state, named in cases:
        source = "a" if me == "d" else me
        states = {"a": b"bad", "b": b"good", "c": b"good"}
        with raises(Disagreement, party=named):
            three.check(proofs(three, states), three.members, state, source, CLEAR[me])
    two = StateHandover(3, ("a", "b", "c"), ("c",), None, 3)
    with pytest.raises(Disagreement) as caught:
        two.check(proofs(two, {"a": b"x", "b": b"y"}), two.members, b"x", "a", CLEAR["c"])
    assert "party" not in caught.value.where and " a " in caught.value.what
    assert " b " in caught.value.what


def test_a_hospital_that_conspires_cannot_vouch_for_another() -> None:
    """It has all keys but the others' own; with them it could hand over a model as it likes."""
    keys = make_keys("secagg", ["a", "b", "c"], None)
    a, b, c = (SealedEnvelopes(keys[n], bytes(16)) for n in "abc")
    three = StateHandover(3, ("a", "b", "c"), ("c",), None, 3)

    def check(by: EnvelopeLayer) -> None:
        made = {"a": proof(three, a, "a", b"dead"), "b": proof(three, by, "b", b"dead")}
        three.check(made, three.members, b"dead", "a", c)

    check(b)
    with pytest.raises(Disagreement, match="b proved to have"):
        check(a)


def test_proofs_of_another_handover_prove_nothing() -> None:
    now = StateHandover(3, ("a", "b", "c"), ("c",), None, 3)
    for then in (
        StateHandover(2, ("a", "b", "c"), ("c",), None, 3),
        StateHandover(3, ("a", "b", "c", "d"), ("c", "d"), None, 2),
    ):
        old = proofs(then, {"a": b"x", "b": b"x"})
        with pytest.raises(Disagreement):
            now.check(old, now.members, b"x", "a", CLEAR["c"])


@pytest.mark.parametrize(
    "wrong", [(3, ("z",)), (0, ("c",)), (3, ("c", "c")), (3, ("b", "c")), (3, ("a", "b", "c"))]
)
def test_impossible_newcomers_are_refused(wrong: tuple[int, tuple[str, ...]]) -> None:
    with pytest.raises(CohortError):
        StateHandover(wrong[0], ("a", "b", "c"), wrong[1], None, 3)


def test_the_host_does_not_vouch() -> None:
    assert StateHandover(3, ("a", "b", "c", "h"), ("c",), "h", 3).holders == ("a", "b")
    with pytest.raises(CohortError):
        StateHandover(3, ("a", "b", "h"), ("b",), "h", 2)
