"""Reading a sum without contributing to it: in every mode, through sampling, scales and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pytest

from secure_fl.errors import CohortError, TooFewParties
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.messages import Audience
from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine, Program, federate

MODES = get_args(Protection)
NAMES = ("east", "north", "south", "west")
SIZE = 40


def value(party: str, name: str) -> Any:
    rng = np.random.default_rng(sum((party + name).encode()))
    return rng.normal(size=(SIZE // 4, 4)).astype(np.float32)


def total(name: str, owners: Sequence[str]) -> Any:
    return np.sum([value(party, name).astype(np.float64) for party in owners], axis=0)


def taking_part(party: str, gives: Mapping[str, str], reads: Mapping[str, str]) -> Program:
    """Give and read these names ("a b"), where named; templates hold other values on purpose."""

    async def run(cohort: Cohort) -> Any:
        return await cohort.sum(
            {name: value(party, name) for name in gives.get(party, "").split()},
            partial=True,
            read={name: np.full((SIZE // 4, 4), 99.0) for name in reads.get(party, "").split()},
            carry=True,
        )

    return run


GIVES = {"east": "low", "north": "low", "south": "high top", "west": "high top"}
READS = {"east": "high", "north": "high nobody", "south": "low"}


@pytest.mark.parametrize("mode", MODES)
def test_a_reader_learns_the_sum_of_the_contributors(mode: Protection) -> None:
    out = federate({n: taking_part(n, GIVES, READS) for n in NAMES}, mode=mode)
    low, high = total("low", ("east", "north")), total("high", ("south", "west"))
    top = total("top", ("south", "west"))
    expected = {
        "east": {"low": low, "high": high},
        "north": {"low": low, "high": high},  # "nobody" is left out
        "south": {"low": low, "high": high, "top": top},
        "west": {"high": high, "top": top},
    }
    for party, sums in expected.items():
        assert out.results[party].keys() == sums.keys()
        for name, found in sums.items():
            np.testing.assert_allclose(out.results[party][name], found, atol=5e-3)
    assert out.results["east"]["high"].tobytes() == out.results["west"]["high"].tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_who_contributes_may_change_from_sum_to_sum(mode: Protection) -> None:
    """Scales of a name are then known to some only; leftovers stay with their owner."""

    def program(party: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            found = []
            for gives in (("east", "north"), ("south", "west"), ("east", "west")):
                everybody = dict.fromkeys(gives, "a") | ({"west": "a b"} if "west" in gives else {})
                everybody |= {"south": "a b"} if "south" in gives else {}
                reads = {p: "a" for p in NAMES if p not in gives}
                found.append((await taking_part(party, everybody, reads)(cohort))["a"])
            return found

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode, bits=24, min_cohort=1)
    for party in NAMES:
        for found, owners in zip(
            out.results[party],
            (("east", "north"), ("south", "west"), ("east", "west")),
            strict=True,
        ):
            np.testing.assert_allclose(found, total("a", owners), atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_new_contributors_learn_the_scale_with_those_who_know_it(mode: Protection) -> None:
    """A name that two have summed before, then all four: the two must not use an old scale."""

    def program(party: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            few = dict.fromkeys(("east", "north"), "a b") | dict.fromkeys(("south", "west"), "c")
            every = dict.fromkeys(NAMES, "a") | {"east": "a b", "north": "a b"}
            await taking_part(party, few, {})(cohort)
            return await taking_part(party, every, {})(cohort)

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode, bits=24)
    for party in NAMES:
        np.testing.assert_allclose(out.results[party]["a"], total("a", NAMES), atol=1e-3)
    np.testing.assert_allclose(out.results["east"]["b"], total("b", ("east", "north")), atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_over_too_few_is_refused_to_its_readers_too(mode: Protection) -> None:
    gives = {"east": "low", "north": "low", "south": "low", "west": "high"}
    reads = {"east": "high"}
    out = federate({n: taking_part(n, gives, reads) for n in NAMES}, mode=mode, catch=True)
    assert isinstance(out.error, CohortError) and out.results == {}
    refusal = out.sessions["east"].error
    assert isinstance(refusal, TooFewParties) and "'high'" in str(refusal)
    assert "(west)" in str(refusal)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exchange", [2, 3, 4, 5])
def test_losing_a_reader_or_a_contributor(mode: Protection, exchange: int) -> None:
    gives = {"east": "low", "north": "low", "south": "low"}
    for lost, owners in (("west", ("east", "north", "south")), ("north", ("east", "south"))):

        def losing(sessions: Mapping[str, Session], lost: str = lost) -> LossyEngine:
            return LossyEngine(sessions, lose={lost: exchange})

        programs = {n: taking_part(n, gives, {"west": "low"}) for n in NAMES}
        out = federate(programs, mode=mode, engine=losing)
        before, after = total("low", ("east", "north", "south")), total("low", owners)
        for party in set(NAMES) - {lost}:
            found = out.results[party]["low"]
            assert min(np.abs(found - x).max() for x in (before, after)) < 5e-3


def test_when_all_contributors_are_lost_readers_are_told() -> None:
    gives, reads = {"east": "low", "north": "low", "south": "low", "west": "high"}, {"east": "high"}
    out = federate(
        {n: taking_part(n, gives, reads) for n in NAMES},
        mode="he+secagg",
        min_cohort=1,
        engine=lambda sessions: LossyEngine(sessions, lose={"west": 3}),
        catch=True,
    )
    assert isinstance(out.error, TooFewParties) and "over 0 of 3" in str(out.error)


@pytest.mark.parametrize(
    "options",
    [
        {"partial": False},
        {"partial": True, "reveal": Audience.HOST},
        {"partial": True, "read": {"mine": np.ones(3)}},
    ],
)
def test_what_cannot_be_read(options: dict[str, Any]) -> None:
    async def run(cohort: Cohort) -> Any:
        return await cohort.sum({"mine": np.ones(3)}, **({"read": {"a": np.ones(3)}} | options))

    out = federate(dict.fromkeys(NAMES, run), catch=True)
    assert isinstance(out.sessions["east"].error, CohortError)
    assert "read" in str(out.sessions["east"].error)
