"""A sum in parts: the same numbers, opened over the same parties or waiting, whatever happens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_fl.errors import CohortError, PartyFailed, RunError
from secure_fl.party import summing
from secure_fl.party.cohort import Cohort
from secure_fl.party.context import Checkpoints
from secure_fl.party.summing import join_pieces, parts_of, pieces
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from tests.support.raising import raises

NAMES = ("east", "north", "south", "west")
MODES: tuple[Protection, ...] = get_args(Protection)
SHAPES = {"a": (30, 20), "b": (7,), "c": (41, 50), "z": (11,)}  # c is longer than a part
SMALL_PART = 700
PART = summing.PART  # before it is made smaller for tests


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "PART", SMALL_PART)


def moves(name: str, round: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([NAMES.index(name), round])
    drawn = {n: rng.normal(size=shape).astype(np.float32) for n, shape in SHAPES.items()}
    return {**drawn, "weight": float(NAMES.index(name) + 1)}


def program(name: str, rounds: int = 1, *, carry: bool = True) -> Program:
    async def run(cohort: Cohort) -> list[dict[str, NDArray[Any]]]:
        return [dict(await cohort.sum(moves(name, t), carry=carry)) for t in range(rounds)]

    return run


def run(rounds: int = 1, *, carry: bool = True, **options: Any) -> Federated:
    programs = {name: program(name, rounds, carry=carry) for name in NAMES}
    return federate(programs, threshold=3, **{"mode": "he+secagg", "bits": 24, **options})


def true_sum(name: str, members: tuple[str, ...] = NAMES, round: int = 0) -> NDArray[Any]:
    every = [np.asarray(moves(m, round)[name], np.float64) for m in members]
    return np.sum(every, axis=0)  # type: ignore[no-any-return]


# --- cutting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 699, 700, 701, 1400, 5000])
def test_pieces_are_the_vector(size: int) -> None:
    vector = np.arange(size, dtype=np.float32)
    cut: dict[str, Any] = dict(pieces("w", vector))
    assert all(piece.size <= SMALL_PART for piece in cut.values())
    assert all(np.shares_memory(piece, vector) for piece in cut.values() if piece.size)
    assert len(cut) == max(1, math.ceil(size / SMALL_PART))
    assert np.array_equal(join_pieces(cut, {"w": (size,)})["w"], vector)
    assert not cut  # nobody holds a large vector twice
    assert join_pieces({}, {"w": (size,)}) == {}


def test_all_parties_split_a_vector_at_the_size_of_the_specification() -> None:
    """docs/protocol.md 4.14: parts of other sizes do not add up with those of other versions."""
    assert PART == 12_582_912


def test_parts_hold_everything_once_counts_first_and_are_bounded() -> None:
    sizes = {"w1": 300, "n": 1, "w2": 500, "w3": 700, "w4": 2}
    groups = [
        Group(("a", "b"), {n: np.zeros(s, np.float32) for n, s in sizes.items()}),
        Group(("a",), {"v": np.zeros(600, np.float32), "m": np.zeros(8, np.float32)}, ("b",)),
    ]
    cut = parts_of(groups)
    held = [name for part in cut for group in part for name in group.vectors]
    assert sorted(held) == sorted([*sizes, "v", "m"])
    assert all(sum(v.size for g in p for v in g.vectors.values()) <= SMALL_PART for p in cut)
    assert {"n", "w4", "m"} <= {name for group in cut[0] for name in group.vectors}
    kept = {(g.owners, g.readers) for part in cut for g in part}
    assert kept == {(g.owners, g.readers) for g in groups}


# --- sums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_in_parts_is_the_sum(mode: Protection) -> None:
    done = run(2, mode=mode)
    for t in range(2):
        for name in NAMES:
            found = done.results[name][t]
            assert set(found) == {*SHAPES, "weight"} and float(found["weight"]) == 10
            for n, shape in SHAPES.items():
                assert found[n].shape == shape
                np.testing.assert_allclose(found[n], true_sum(n, round=t), atol=2e-3)


@pytest.mark.parametrize("mode", ["none", "secagg"])  # a ciphertext is larger than these parts
def test_no_message_holds_more_than_a_part(
    mode: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut, the largest frame is that of a part; not cut, it is that of the sum."""

    def largest(part: int) -> int:
        sizes: list[int] = []

        def weigh(party: str, direction: str, frame: Frame) -> Frame:
            sizes.append(len(frame.bulk))
            return frame

        monkeypatch.setattr(summing, "PART", part)
        run(mode=mode, engine=lambda sessions: LossyEngine(sessions, tap=weigh))
        return max(sizes)

    assert largest(SMALL_PART) < 0.4 * largest(1 << 24)


def test_hosts_wait_for_all_parts() -> None:
    async def hosting(cohort: Cohort) -> str:
        assert await cohort.sum({}) == {}
        assert await cohort.sum({}) == {}
        return "done"

    programs: Mapping[str, Program] = {n: program(n, 2) for n in NAMES} | {"hub": hosting}
    done = federate(programs, host="hub", mode="he+secagg", bits=24)
    assert done.results["hub"] == "done"
    np.testing.assert_allclose(done.results["east"][1]["c"], true_sum("c", round=1), atol=2e-3)


@pytest.mark.parametrize("partial", [False, True])
def test_a_host_learns_a_sum_in_parts(partial: bool) -> None:
    """The host passes values of the same shapes, so it knows the parts as the parties do."""

    async def asking(cohort: Cohort) -> Any:
        given = dict(moves(cohort.me if cohort.me in NAMES else NAMES[0]))
        return await cohort.sum(given, reveal=Audience.HOST, bound=8.0, partial=partial)

    done = federate(dict.fromkeys((*NAMES, "hub"), asking), host="hub", mode="secagg", bits=24)
    for name, shape in SHAPES.items():
        assert done.results["hub"][name].shape == shape
        np.testing.assert_allclose(done.results["hub"][name], true_sum(name), atol=2e-3)
    assert done.results["east"] == {}


def test_partial_sums_are_cut_too() -> None:
    def some(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            mine = {"a": moves(name)["a"]} | ({"c": moves(name)["c"]} if name < "south" else {})
            read = {} if name < "south" else {"c": np.zeros(SHAPES["c"])}
            return await cohort.sum(mine, partial=True, read=read, carry=True)

        return run

    done = federate({n: some(n) for n in NAMES}, mode="he+secagg", bits=24)
    for name in NAMES:
        np.testing.assert_allclose(done.results[name]["a"], true_sum("a"), atol=2e-3)
        two = true_sum("c", ("east", "north"))
        np.testing.assert_allclose(done.results[name]["c"], two, atol=2e-3)


# --- who leaves between parts ---------------------------------------------------------------------


def losing(exchange: int) -> Callable[..., LossyEngine]:
    return lambda sessions: LossyEngine(sessions, lose={"west": exchange})


EXCHANGES = range(3, 16)  # the norms, the parts and their masks, and the sum that follows


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_all_of_it_is_over_the_same_parties_or_waits(exchange: int) -> None:
    """Every value is in the first sum over those of its count, or whole in the second."""
    done, rest = run(2, engine=losing(exchange)), NAMES[:3]
    waiting = {name: np.zeros(math.prod(shape)) for name, shape in SHAPES.items()}
    for t, opened in enumerate(done.results["east"]):
        over = NAMES if float(opened["weight"]) == 10 else rest
        for name in SHAPES:
            for other in rest[1:]:
                assert np.array_equal(opened[name], done.results[other][t][name])
            got, true = opened[name].reshape(-1), true_sum(name, over, t).reshape(-1)
            left = true_sum(name, rest, t).reshape(-1)
            for cut in (slice(at, at + SMALL_PART) for at in range(0, got.size, SMALL_PART)):
                if got[cut].any():
                    np.testing.assert_allclose(got[cut], true[cut] + waiting[name][cut], atol=4e-3)
                    waiting[name][cut] = 0
                else:
                    waiting[name][cut] += left[cut]


def test_somewhere_something_waits() -> None:
    """What the test above would miss if nobody was ever lost between two parts."""
    waits = 0
    for exchange in EXCHANGES:
        first = run(1, engine=losing(exchange)).results["east"][0]
        waits += any(not piece.any() for piece in np.split(first["c"].reshape(-1), [700, 1400]))
    assert waits


@pytest.mark.parametrize(("mode", "carry"), [("none", True), ("he+secagg", False)])
def test_what_cannot_wait_stops_the_run(mode: Protection, carry: bool) -> None:
    stopped = 0
    for exchange in EXCHANGES:
        try:
            run(1, mode=mode, carry=carry, engine=losing(exchange))
        except PartyFailed as error:
            stopped += error.reason == "cohort"
    assert stopped


def test_a_run_without_a_folder_is_neither_resumed_nor_joined() -> None:
    """Parties stop instead of continuing from a state that nobody kept."""
    nothing = Checkpoints()
    for use in (
        lambda: nothing.restore(1, {}),
        lambda: nothing.export({}, {}),
        lambda: nothing.adopt(b"", {}),
    ):
        with raises(RunError, reason="no-folder"):
            use()


@pytest.mark.parametrize("host", [None, "d"])
def test_no_party_reads_what_it_contributes_or_a_sum_of_the_host(host: str | None) -> None:
    async def program(cohort: Cohort) -> Any:
        read = {"y" if host else "x": np.zeros(4)}
        reveal = Audience.HOST if host else Audience.PARTIES
        await cohort.sum({"x": np.ones(4)}, partial=True, read=read, reveal=reveal, bound=2.0)

    out = federate(dict.fromkeys("abcd", program), host=host, mode="none", catch=True)
    error = out.sessions["a"].error
    assert isinstance(error, CohortError) and "contributes a name or reads it" in error.what
