"""Who tells parties different broadcasts, rounds or members reads no single update either (P3, P5).

Keys of segments, in which masks are drawn, differ then, so that masks do not cancel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator.sum_steps import Reply, Step
from secure_fl.federation.assembly import make_keys
from secure_fl.party import summing as party_summing
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.protocol.arrays import pack
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import Audience, SumInput
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate
from tests.support.attacker import NAMES, Liar, Wiretap, lying, told
from tests.support.stateless import Stateless

COLLUDER, VICTIM = "east", "west"
DECEIVED = tuple(name for name in NAMES if name not in (COLLUDER, VICTIM))
SIZE, BOUND = 50, 8.0
X = {n: np.random.default_rng(k).normal(size=SIZE).astype(np.float32) for k, n in enumerate(NAMES)}


def keys_of(tap: Wiretap, number: int) -> dict[str, bytes]:
    """By party, the key of its segment in the n-th sum."""
    found: dict[str, list[bytes]] = {}
    for heard in tap.of(SumInput):
        if heard.message.segments and heard.message.segments[0].size:
            found.setdefault(heard.party, []).append(heard.message.segments[0].key)
    return {party: keys[number] for party, keys in found.items() if len(keys) > number}


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
@pytest.mark.parametrize("lied", [False, True])
def test_a_host_cannot_broadcast_one_thing_to_one_party(mode: Protection, lied: bool) -> None:
    """The host conspires: it has the key of envelopes, and seals a second value."""
    keys = make_keys(mode, [*NAMES, "hub"], "hub")
    tap, sealed = Wiretap(), list[bytes]()

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            for number in range(2):
                value = {"u": np.ones(8)}
                await cohort.sum(value, reveal=Audience.HOST, bound=1.0)
                if number:
                    break
                if cohort.is_host:
                    other = tap.sessions["hub"]._cohort._layer.envelopes.seal(
                        _payload(0.0), b"broadcast 0 hub"
                    )
                    sealed.append(other)
                told = await cohort.broadcast({"w": np.ones(4)} if cohort.is_host else None)
                results[name] = float(told["w"][0])

        return run

    class TwoTongued(Liar):
        def _exchange(self, reply: Reply) -> Step:
            if lied and isinstance(reply.messages.get(VICTIM), messages.Relayed):
                message = structs.replace(reply.messages[VICTIM], sizes=(len(sealed[0]),))
                told = {**reply.messages, VICTIM: message}
                reply = reply._replace(
                    messages=told, bulks={**reply.bulks, VICTIM: Bulk.of(sealed[0])}
                )
            return super()._exchange(reply)

    results: dict[str, float] = {}
    out = federate(
        {name: program(name) for name in (*NAMES, "hub")},
        mode=mode,
        host="hub",
        keys=keys,
        engine=tap,
        lead=lambda *arguments: TwoTongued(*arguments, lie=lambda _, message: message),
        catch=True,
    )
    second = keys_of(tap, 1)
    assert results[VICTIM] == (0.0 if lied else 1.0) and results[COLLUDER] == 1.0
    assert (second[VICTIM] != second[COLLUDER]) == lied and second[DECEIVED[0]] == second[COLLUDER]
    assert (out.error is not None) == lied


def _payload(value: float) -> bytes:
    return pack({"w": np.full(4, value)})


@pytest.mark.parametrize("lied", [False, True])
def test_a_party_that_is_told_another_round_is_in_no_sum_of_this_one(
    lied: bool, tmp_path: Any
) -> None:
    """All keep two rounds; mixed once and then repeated, two sums would differ by an input."""
    kept = {name: PartyCheckpoints(tmp_path / name, Stateless()) for name in NAMES}
    keys = make_keys("he+secagg", NAMES, None)

    def program(name: str, last: int) -> Program:
        async def run(cohort: Cohort) -> Any:
            async for round in cohort.rounds(9, keep={"still": Stateless()}):
                await cohort.sum({"u": round.number * X[name]}, bound=80.0)
                if round.number == last:
                    raise RuntimeError("the power goes")

        return run

    options: dict[str, Any] = {"mode": "he+secagg", "keys": keys, "kept": kept, "catch": True}
    federate({name: program(name, 4) for name in NAMES}, **options)
    assert all(kept[name].available() == (2, 3) for name in NAMES)
    lie = told(messages.Begin, lambda _, begin: structs.replace(begin, after_round=2), VICTIM)

    class Blind(Liar):  # for its own check of what parties count
        def _add(self, step: Any, party: str, message: Any, frame: Any, answers: Any) -> Any:
            if isinstance(message, SumInput):
                message = structs.replace(message, at=(4, message.at[1]))
            return super()._add(step, party, message, frame, answers)

    tap = Wiretap()
    lead = (lambda *arguments: Blind(*arguments, lie=lie)) if lied else lying(lambda _, m: m)
    federate({name: program(name, 4) for name in NAMES}, engine=tap, lead=lead, **options)
    first = keys_of(tap, 0)
    assert (first[VICTIM] != first[COLLUDER]) == lied and first[DECEIVED[0]] == first[COLLUDER]


@pytest.mark.parametrize("lied", [False, True])
def test_a_party_that_is_told_of_fewer_members_is_in_no_sum_of_the_others(
    lied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would draw others, and neither give nor read what they do: an audience without it.

    It refuses contributors that it was told are gone; where it does not, its masks fit no others'.
    """
    monkeypatch.setattr(party_summing, "_check_members", lambda *_: None)

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            async for _ in cohort.rounds(2, keep={}):
                await cohort.sum({"u": X[name]}, bound=BOUND, partial=True)

        return run

    def lie(_: str, message: messages.Continue) -> messages.Continue:
        fewer = tuple(name for name in message.members if name != DECEIVED[0])
        return structs.replace(message, members=fewer)

    tap = Wiretap()
    lead = lying(told(messages.Continue, lie, VICTIM) if lied else lambda _, m: m)
    programs = {name: program(name) for name in NAMES}
    out = federate(programs, mode="he+secagg", engine=tap, lead=lead, catch=True)
    first, second = keys_of(tap, 0), keys_of(tap, 1)
    assert len(set(first.values())) == 1 and second[DECEIVED[0]] == second[COLLUDER]
    assert (second[VICTIM] != second[COLLUDER]) == lied == (out.error is not None)
