"""P7: losing parties down to the threshold costs their contribution only; below, nothing opens."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl.crypto.sealing.scheme import largest_cohort
from secure_fl.errors import CohortError, CryptoError, TooFewParties
from secure_fl.federation.assembly import make_keys
from secure_fl.files import OPENED
from secure_fl.protocol import messages
from secure_fl.protocol.messages import Audience
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine, Program, federate
from secure_fl.thresholds import default_threshold
from tests.support.attacker import summing
from tests.support.raising import raises
from tests.support.stateless import Stateless

MASKED = ("secagg", "he+secagg")


def names(n: int) -> list[str]:
    return [f"p{i:03d}" for i in range(n)]


def losing(lose: Mapping[str, int]) -> Any:
    return lambda sessions: LossyEngine(sessions, lose=lose)


def powers(n: int) -> dict[str, Any]:
    """Party k's input is 2^k of the finest step: a sum tells who is in it."""
    return {name: {"who": 2.0 ** (k - 40), "x": np.full(20, k)} for k, name in enumerate(names(n))}


def contributors(total: float, n: int) -> set[str]:
    return {name for k, name in enumerate(names(n)) if int(total * 2**40) >> k & 1}


def check(out: Any, n: int, lost: Collection[str]) -> None:
    """Everybody who stayed has the same two sums, over all or over those who stayed."""
    assert out.error is None
    stayed = set(names(n)) - set(lost)
    assert stayed <= set(out.results)
    views = {tuple(float(s["who"]) for s in out.results[name]) for name in stayed}
    assert len(views) == 1
    previous = set(names(n))
    for total, opened in zip(*views, out.results[min(stayed)], strict=True):
        over = contributors(total, n)
        assert stayed <= over <= previous
        expected = sum(k for k, name in enumerate(names(n)) if name in over)
        np.testing.assert_allclose(opened["x"], np.full(20, expected), atol=0.1)
        previous = over


@pytest.mark.parametrize("mode", MASKED)
@pytest.mark.parametrize("exchange", range(1, 7))
@pytest.mark.parametrize("n", [3, 4, 5])
def test_every_party_at_every_exchange(mode: Protection, n: int, exchange: int) -> None:
    """Exchange 4 collects confirmations if somebody was lost at 3, otherwise shares."""
    programs = {p: summing(v, 2, bound=50.0) for p, v in powers(n).items()}
    t = default_threshold(n)
    for lost in names(n)[:: 1 if mode == "secagg" else 2]:
        out = federate(programs, mode=mode, engine=losing({lost: exchange}), catch=True)
        if n - 1 >= t:
            check(out, n, [lost])
        else:
            assert isinstance(out.error, TooFewParties)


@pytest.mark.parametrize("mode", MASKED)
def test_one_more_is_lost_at_every_exchange_that_follows(mode: Protection) -> None:
    for first in range(2, 6):
        for second in range(first, first + 4):
            lose = {"p001": first, "p006": second}
            programs = {p: summing(v, 2, bound=50.0) for p, v in powers(7).items()}
            check(federate(programs, mode=mode, engine=losing(lose)), 7, lose)


@pytest.mark.parametrize("mode", MASKED)
@pytest.mark.parametrize("exchange", range(2, 6))
def test_two_parties_cannot_lose_one(mode: Protection, exchange: int) -> None:
    programs = {p: summing(v, 2, bound=50.0) for p, v in powers(2).items()}
    whole = federate(programs, mode=mode)
    assert [contributors(float(s["who"]), 2) for s in whole.results["p000"]] == [set(names(2))] * 2
    out = federate(programs, mode=mode, engine=losing({"p001": exchange}), catch=True)
    assert isinstance(out.error, TooFewParties)


@pytest.mark.parametrize("mode", MASKED)
@pytest.mark.parametrize("exchange", range(2, 6))
def test_partial_sums_with_a_dropout(mode: Protection, exchange: int) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Any) -> Any:
            values = {"all": 1.0} | ({"some": np.full(20, 2.0)} if name >= "p002" else {})
            return await cohort.sum(values, partial=True, bound=4.0)

        return run

    programs = {p: program(p) for p in names(6)}
    for lost, left in (("p001", 4), ("p003", 3)):
        out = federate(programs, mode=mode, engine=losing({lost: exchange}))
        if exchange <= 3:  # before its input arrived; at 2 not even its names had
            assert out.results["p000"]["all"] == 5
        else:
            left = 4
        np.testing.assert_allclose(out.results["p005"]["some"], np.full(20, 2.0 * left), atol=1e-3)


@pytest.mark.parametrize("mode", MASKED)
@pytest.mark.parametrize("exchange", range(2, 5))
def test_host_sums_with_a_dropout(mode: Protection, exchange: int) -> None:
    values = {p: summing(v, 2, bound=50.0, reveal=Audience.HOST) for p, v in powers(5).items()}
    blank = {"who": 0.0, "x": np.zeros(20)}
    programs = values | {"hub": summing(blank, 2, bound=50.0, reveal=Audience.HOST)}
    out = federate(programs, host="hub", mode=mode, engine=losing({"p002": exchange}))
    sums = out.results["hub"]
    assert contributors(float(sums[-1]["who"]), 5) == set(names(5)) - {"p002"}
    for opened in sums:
        over = contributors(float(opened["who"]), 5)
        expected = sum(int(p[1:]) for p in over)
        np.testing.assert_allclose(opened["x"], np.full(20, expected), atol=0.1)
    lost_host = federate(
        programs, host="hub", mode=mode, engine=losing({"hub": exchange}), catch=True
    )
    assert isinstance(lost_host.error, TooFewParties)


@pytest.mark.parametrize("mode", MASKED)
@pytest.mark.parametrize("exchange", range(2, 9))
def test_a_party_lost_between_two_sums(mode: Protection, exchange: int) -> None:
    """Its keys for the next sum are there already, but its input never comes."""

    def program(name: str) -> Program:
        async def run(cohort: Any) -> Any:
            sums = []
            async for round in cohort.rounds(2):
                await cohort.agree(b"same", f"round {round.number}")
                sums.append(await cohort.sum({"one": 1.0, "x": np.ones(20)}, bound=4.0))
            return sums

        return run

    programs = {p: program(p) for p in names(5)}
    out = federate(programs, mode=mode, engine=losing({"p003": exchange}))
    for opened in out.results["p000"]:
        assert opened["one"] in (4, 5)
        np.testing.assert_allclose(opened["x"], np.full(20, opened["one"]), atol=1e-2)


def test_40_parties_with_dropouts() -> None:
    rng = random.Random(7)
    lost = {name: rng.choice([3, 4, 5]) for name in rng.sample(names(40), 4)}
    programs = {p: summing(v, 2, bound=50.0) for p, v in powers(40).items()}
    out = federate(programs, mode="secagg", engine=losing(lost))
    check(out, 40, lost)


@pytest.mark.parametrize("n", [48, pytest.param(128, marks=pytest.mark.slow)])
def test_many_parties_sum_exactly(n: int) -> None:
    programs = {p: summing({"x": np.full(9, 1.0), "k": float(k)}) for k, p in enumerate(names(n))}
    out = federate(programs, mode="he+secagg")
    for result in out.results.values():
        assert result[0]["k"] == n * (n - 1) / 2
        np.testing.assert_allclose(result[0]["x"], np.full(9, n), rtol=1e-4)


def test_129_parties_are_refused_before_anything_is_sent() -> None:
    from secure_fl.crypto.sealing.scheme import COHORT

    assert largest_cohort(COHORT) == 128
    programs = {p: summing({"x": np.ones(9)}) for p in names(129)}
    with raises(CryptoError, "1", "128", "129"):
        federate(programs, mode="he+secagg", keys=make_keys("he+secagg", names(129), None))


def test_a_repeated_round_opens_over_the_same_parties_or_not_at_all(tmp_path: Path) -> None:
    """Otherwise the difference of the two sums is the input of whoever is missing."""
    everyone, fewer = ("a", "b", "c", "d"), ("a", "b", "c")
    first = PartyCheckpoints(tmp_path, Stateless())
    for round in (1, 2, 3):
        first.admit(round, 1, everyone, "x")
        first.save(round, {}, {})
    restarted = PartyCheckpoints(tmp_path, Stateless())
    restarted.admit(4, 1, fewer, "x")  # never opened: whoever is there
    # Also rounds that are over: a coordinator may send everybody back to an older checkpoint,
    # or to the start.
    for round in (1, 2, 3):
        restarted.admit(round, 1, everyone, "x")
        with raises(CohortError, round=round, field="survivors"):
            restarted.admit(round, 1, fewer, "x")
    kept = [json.loads(line) for line in (tmp_path / OPENED).read_text().splitlines()]
    assert [entry["round"] for entry in kept] == [1, 2, 3, 4]


def test_no_confirmation_is_asked_for_while_everybody_is_there() -> None:
    from tests.support.attacker import Wiretap

    tap = Wiretap()
    federate(
        {p: summing(v, 2, bound=50.0) for p, v in powers(4).items()}, mode="secagg", engine=tap
    )
    assert not tap.of(messages.Confirm) and len(tap.of(messages.UnmaskShares)) == 8
