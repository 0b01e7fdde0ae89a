"""The door, in every protection mode: audiences, refusals, order independence, dropouts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pytest

from secure_fl.errors import (
    CohortError,
    Disagreement,
    PartyFailed,
    SecureFLError,
    TooFewParties,
    TrainingError,
)
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.messages import Audience
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate

MODES = get_args(Protection)
NAMES = ("east", "north", "south", "west")


def values_of(name: str, size: int = 300) -> dict[str, Any]:
    rng = np.random.default_rng(sum(name.encode()))
    return {"a": rng.normal(size=(size // 3, 3)).astype(np.float32), "count": float(len(name))}


def summing(name: str, **options: Any) -> Program:
    async def program(cohort: Cohort) -> Any:
        return await cohort.sum(values_of(name), **options)

    return program


def expected(names: Sequence[str]) -> dict[str, Any]:
    every = [values_of(n) for n in names]
    return {
        "a": np.sum([v["a"].astype(np.float64) for v in every], axis=0),
        "count": sum(v["count"] for v in every),
    }


@pytest.mark.parametrize("mode", MODES)
def test_every_party_learns_the_sum(mode: Protection) -> None:
    out = federate({n: summing(n) for n in NAMES}, mode=mode)
    for result in out.results.values():
        np.testing.assert_allclose(result["a"], expected(NAMES)["a"], atol=2e-3)
        assert result["a"].shape == (100, 3)
        assert result["count"] == expected(NAMES)["count"]


@pytest.mark.parametrize("mode", MODES)
def test_a_host_sum_is_for_the_host_only(mode: Protection) -> None:
    async def host(cohort: Cohort) -> Any:
        return await cohort.sum(values_of("template"), reveal=Audience.HOST, bound=10.0)

    programs = {n: summing(n, reveal=Audience.HOST, bound=10.0) for n in NAMES} | {"hub": host}
    out = federate(programs, host="hub", mode=mode)
    np.testing.assert_allclose(
        out.results["hub"]["a"].ravel(), expected(NAMES)["a"].ravel(), atol=2e-3
    )
    assert all(out.results[n] == {} for n in NAMES)


@pytest.mark.parametrize("mode", MODES)
def test_broadcast_share_and_agree(mode: Protection) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            told = await cohort.broadcast({"x": np.arange(3)} if name == "hub" else None)
            shared = await cohort.share({"mine": np.full(2, len(name))})
            await cohort.agree(b"same", "test")
            return told["x"].tolist(), {k: v["mine"].tolist() for k, v in shared.items()}

        return run

    names = (*NAMES, "hub")
    out = federate({n: program(n) for n in names}, host="hub", mode=mode)
    for told, shared in out.results.values():
        assert told == [0, 1, 2]
        assert shared == {n: [len(n)] * 2 for n in names}


@pytest.mark.parametrize("mode", MODES)
def test_partial_contributions_are_summed_over_their_owners(mode: Protection) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            values: dict[str, Any] = {"low": np.ones(5)}
            if name != "east":
                values["high"] = np.full(3, 2.0)
            return await cohort.sum(values, partial=True)

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode)
    np.testing.assert_allclose(out.results["north"]["low"], np.full(5, 4.0), atol=1e-3)
    np.testing.assert_allclose(out.results["north"]["high"], np.full(3, 6.0), atol=1e-3)
    assert set(out.results["east"]) == {"low"}  # it never gets what it does not own


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_over_too_few_is_refused_and_explained(mode: Protection) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            values = {"low": np.ones(2)} | ({"top": np.ones(2)} if name == "west" else {})
            return await cohort.sum(values, partial=True)

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode, catch=True)
    assert isinstance(out.error, CohortError)
    refusal = out.sessions["west"].error
    assert isinstance(refusal, TooFewParties)
    assert "'top'" in str(refusal) and "min_cohort is 2" in str(refusal)
    assert "IS that hospital" in str(refusal)
    # The explicit opt-in lets it through.
    allowed = federate({n: program(n) for n in NAMES}, mode=mode, min_cohort=1)
    np.testing.assert_allclose(allowed.results["west"]["top"], [1, 1], atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_answers_does_not_matter(mode: Protection) -> None:
    def shuffled(seed: int) -> Any:
        def order(parties: Sequence[str]) -> Sequence[str]:
            return random.Random(seed).sample(list(parties), len(parties))

        return lambda sessions: LossyEngine(sessions, order=order)

    programs = {n: summing(n) for n in NAMES}
    results = [federate(programs, mode=mode, engine=shuffled(s)).results for s in range(4)]
    for other in results[1:]:
        for name in NAMES:
            assert results[0][name]["a"].tobytes() == other[name]["a"].tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_nan_is_refused_at_its_party_and_nothing_is_released(mode: Protection) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            bad = np.array([1.0, np.nan if name == "south" else 2.0])
            return await cohort.sum({"layer.weight": bad})

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode, catch=True)
    assert isinstance(out.error, PartyFailed) and out.error.reason == "training"
    assert out.error.where["party"] == "south"
    assert isinstance(out.sessions["south"].error, TrainingError)
    assert "layer.weight" in str(out.sessions["south"].error)
    assert out.results == {}


@pytest.mark.parametrize("mode", MODES)
def test_disagreement_names_the_odd_one(mode: Protection) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            await cohort.agree(b"other" if name == "west" else b"same", "model")

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode, catch=True)
    assert isinstance(out.error, Disagreement) and out.error.where["party"] == "west"


@pytest.mark.parametrize("mode", MODES)
def test_parties_with_other_shapes_get_no_sum(mode: Protection) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            return await cohort.sum({"a": np.ones(4 if name == "west" else 5)})

        return run

    out = federate({n: program(n) for n in NAMES}, mode=mode, catch=True)
    assert isinstance(out.error, SecureFLError) and out.results == {}


def test_parties_with_other_programs_are_named() -> None:
    async def other(cohort: Cohort) -> Any:
        return await cohort.agree(b"", "x")

    programs = {n: summing(n) for n in NAMES} | {"west": other}
    out = federate(programs, catch=True)
    assert isinstance(out.error, Disagreement) and out.error.where["party"] == "west"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exchange", range(1, 9))
def test_a_lost_party_costs_only_its_contribution(mode: Protection, exchange: int) -> None:
    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            first = await cohort.sum(values_of(name))
            second = await cohort.sum(values_of(name))
            return float(first["count"]), float(second["count"])

        return run

    def losing(sessions: Mapping[str, Session]) -> LossyEngine:
        return LossyEngine(sessions, lose={"north": exchange})

    out: Federated = federate({n: program(n) for n in NAMES}, mode=mode, engine=losing)
    rest = expected([n for n in NAMES if n != "north"])["count"]
    everyone = expected(NAMES)["count"]
    for name in set(NAMES) - {"north"}:
        first, second = out.results[name]
        assert {first, second} <= {rest, everyone}
        assert not (first == rest and second == everyone)  # who is lost stays lost


@pytest.mark.parametrize("mode", MODES)
def test_below_the_threshold_the_run_stops_and_releases_nothing(mode: Protection) -> None:
    def losing(sessions: Mapping[str, Session]) -> LossyEngine:
        return LossyEngine(sessions, lose={"north": 2, "south": 2})

    out = federate({n: summing(n) for n in NAMES}, mode=mode, engine=losing, catch=True)
    assert isinstance(out.error, TooFewParties) and out.results == {}


def test_a_repeated_frame_gets_the_same_answer() -> None:
    class Stutter(LossyEngine):
        def exchange(self, frames: Any, deadline: float) -> Any:
            for party, frame in frames.items():
                once = self.sessions[party].step(frame)
                assert self.sessions[party].step(frame) == once
                yield party, once

    out = federate({n: summing(n) for n in NAMES}, engine=Stutter)
    assert out.results["east"]["count"] == expected(NAMES)["count"]


def test_the_transcript_accounts_for_every_byte() -> None:
    seen: dict[str, int] = {}

    def tap(party: str, direction: str, frame: Any) -> Any:
        key = f"{party} {direction}"
        seen[key] = seen.get(key, 0) + frame.size
        return frame

    out = federate({n: summing(n) for n in NAMES}, engine=lambda s: LossyEngine(s, tap=tap))
    for name, recorder in out.recorders.items():
        assert recorder.bytes_up == seen[f"{name} out"]
        assert recorder.bytes_down == seen[f"{name} in"]
    crossings = [e for e in out.events if e["event"] == "crossing"]
    assert {e["audience"] for e in crossings if e["kind"] == "SumInput"} == {"parties"}
    assert all(len(e["digest"]) == 64 for e in crossings)


def test_only_the_host_broadcasts() -> None:
    async def program(cohort: Cohort) -> Any:
        return await cohort.broadcast({"x": np.ones(1)})

    out = federate(dict.fromkeys(NAMES, program), catch=True)
    assert "no party has the role host" in str(out.sessions["east"].error)


def test_nothing_private_leaves_with_a_failure() -> None:
    secret = "patient 4711"

    async def fails(cohort: Cohort) -> Any:
        raise ValueError(secret)

    frames: list[bytes] = []

    def tap(party: str, direction: str, frame: Any) -> Any:
        frames.append(frame.to_bytes())
        return frame

    programs = {n: summing(n) for n in NAMES} | {"east": fails}
    out = federate(programs, engine=lambda s: LossyEngine(s, tap=tap), catch=True)
    assert secret in str(out.sessions["east"].error)  # at home
    assert not any(secret.encode() in frame for frame in frames)  # on the wire
    assert secret not in str(out.error)  # at the coordinator
