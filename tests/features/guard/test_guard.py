"""Ballots, the rule of a vote, the search, and rounds that are undone: without a model."""

from __future__ import annotations

from collections.abc import Callable
from secrets import randbelow
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_fl.errors import PartyFailed
from secure_fl.events import EventLog
from secure_fl.features.guard import guard as guard_module
from secure_fl.features.guard.guard import (
    TWICE,
    Guard,
    SubsetSearch,
    Votes,
    ballot,
    count,
    growth,
    harm,
    needed,
)
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.party.cohort import Cohort
from secure_fl.policy.describe import describe
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import check
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, federate
from tests.support.policy_plans import COMPANY, OPEN, POLICY, TODAY, plan, policy, refused

EIGHT = tuple(f"p{number}" for number in range(8))
FIVE = EIGHT[:5]
BAD = "p3"

GUESSED = 0  # the slot in which who takes a vote away supposes one


@pytest.fixture
def guesses_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guess no slot of a row that holds a vote: see `guard_module.Votes`."""
    monkeypatch.setattr("secrets.randbelow", lambda n: GUESSED + 1 + randbelow(n - 1))


# --- votes ----------------------------------------------------------------------------------------


def papers(against: int, voters: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.sum([ballot(k < against) for k in range(voters)], axis=0)
    return found.astype(np.float64)


@pytest.mark.parametrize("against", [0, 3, 8])
def test_ballots_are_counted(against: int) -> None:
    assert count(papers(against, 8), 8) == Votes(against, 8, spoiled=False)


@pytest.mark.usefixtures("guesses_wrongly")
def test_a_sum_of_plain_votes_is_what_one_member_says() -> None:
    """Seven are against; the eighth sends -7, and nothing shows it. A ballot shows it."""
    assert sum([1] * 7 + [-7]) == 0
    honest = papers(7, 7)
    guess = np.zeros_like(honest)
    guess[1, :, GUESSED] = 1
    one_row = np.zeros_like(honest)
    one_row[0, 0, GUESSED] = 1
    for lie in (
        -7 * guess,  # takes them away where it guesses that they are
        2 * ballot(False),
        3.0 * ballot(False) - 2.0 * ballot(False),
        0.5 * ballot(True) + 0.5 * ballot(False),
        np.zeros_like(honest),
        -guess + 2 * ballot(False),
        ballot(False) + one_row,
    ):
        assert count(honest + lie, 8).spoiled
    assert not count(honest + ballot(False), 8).spoiled


def test_nobody_knows_where_another_s_vote_lies() -> None:
    at = [int(np.flatnonzero(row)[0]) for _ in range(125) for row in ballot(True)[1]]
    assert len(set(at)) > 0.99 * guard_module.SLOTS and max(np.bincount(at)) < 60


def unnoticed(votes: int, tries: int) -> float:
    """The rate at which a member that guesses one slot in each row removes a vote."""
    found = 0
    for _ in range(tries):
        total = papers(votes, votes) + 2 * ballot(False)
        for row in total[1]:
            row[randbelow(guard_module.SLOTS)] -= 1
        found += not count(total, votes + 1).spoiled
    return found / tries


def test_a_vote_is_not_removed_by_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one row of 256 slots, any of 64 votes is found in a fifth of the attempts."""

    def chance(votes: int) -> float:
        return float((1 - (1 - 1 / guard_module.SLOTS) ** votes) ** guard_module.ROWS)

    assert unnoticed(64, 100) == 0.0
    stated = {6: 4e-22, 64: 3e-7, 127: 6e-4}
    assert {votes: float(f"{chance(votes):.0e}") for votes in stated} == stated
    monkeypatch.setattr(guard_module, "ROWS", 1)
    monkeypatch.setattr(guard_module, "SLOTS", 256)
    assert 0.1 < unnoticed(64, 200) < 0.35


def test_one_vote_never_decides() -> None:
    assert [needed(0.5, n) for n in (3, 4, 5, 8, 9)] == [2, 2, 3, 4, 5]
    for voters in range(3, 40):
        for share in (0.01, 0.3, 0.5, 0.75, 0.99):
            assert 2 <= needed(share, voters) <= max(2, voters - 1)


# --- what is harm ---------------------------------------------------------------------------------


def test_a_few_records_are_never_sure() -> None:
    right, wrong = np.zeros(2), np.ones(2)
    assert harm(right, wrong, 2.0) <= 0 < harm(np.zeros(50), np.ones(50), 2.0)
    assert harm(np.zeros(1), np.ones(1), 2.0) < 0


def test_harm_is_what_got_worse_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    before = rng.uniform(0, 1, 400)
    worse = np.clip(before + 0.1 + rng.normal(0, 0.1, 400), 0, 1)
    assert 0.03 < harm(before, worse, 2.0) < 0.1
    assert harm(before, before, 2.0) < 0 and harm(worse, before, 2.0) < -0.05


def test_growth_is_of_what_was_summed_before_and_after() -> None:
    assert growth({}, {"a": 5.0}) == 1.0  # the first round has no before
    assert growth({"a": 1.0, "b": 3.0}, {"a": 10.0, "b": 30.0, "c": 99.0}) == 10.0


# --- the search -----------------------------------------------------------------------------------


def led(search: SubsetSearch, guilty: Callable[[tuple[str, ...]], bool], rounds: int) -> list[bool]:
    """Whether each round was refused; refused are sums that have the guilty in them."""
    found = []
    for round in range(1, rounds + 1):
        refused = guilty(search.among(EIGHT))
        if refused:
            search.refused(round, EIGHT, 7)
        else:
            search.admitted(round, EIGHT)
        found.append(refused)
    return found


@pytest.mark.parametrize("bad", EIGHT)
def test_who_spoils_every_sum_is_left_out(bad: str) -> None:
    for seed in range(20):
        search = SubsetSearch(seed)
        refused = led(search, lambda among: bad in among, 16)
        assert search.left_out == (bad,)
        assert TWICE <= sum(refused) <= 4 and not any(refused[-4:])


def test_nobody_is_left_out_by_chance() -> None:
    """One round is refused though nobody spoils it: all take part again, and nobody is blamed."""
    for seed in range(20):
        search, first = SubsetSearch(seed), iter([True])
        led(search, lambda among: next(first, False), 8)  # noqa: B023
        assert search.left_out == () and search.among(EIGHT) == EIGHT


def test_who_was_left_out_wrongly_comes_back() -> None:
    search = SubsetSearch(0)
    led(search, lambda among: "p0" in among, 16)
    assert search.left_out == ("p0",)
    led(search, lambda among: BAD in among, 16)
    assert search.left_out == (BAD,)


def test_sums_of_one_state_tell_the_halves_and_nothing_smaller() -> None:
    """Whatever is refused: all that is opened between two admitted rounds follows from two sums."""
    for seed in range(40):
        rng, search, round = np.random.default_rng(seed), SubsetSearch(seed), 0
        led(search, lambda among: BAD in among, int(rng.integers(0, 12)))
        for _ in range(20):
            opened = []
            for _ in range(int(rng.integers(1, 9))):
                round += 1
                opened.append([party in search.among(EIGHT) for party in EIGHT])
                search.refused(round, EIGHT, int(rng.integers(4, 8)))
            alike = np.unique(np.array(opened).T, axis=0, return_counts=True)
            together = [count for row, count in zip(*alike, strict=True) if row.any()]
            assert min(together) >= 3  # who is in exactly the same sums cannot be told apart
            opened.clear()
            search.admitted(round, EIGHT)


def test_a_half_that_lost_a_hospital_is_not_summed() -> None:
    """The sum would be over fewer than min_cohort, and each resumed run would stop there again."""
    seven, search = EIGHT[:7], SubsetSearch(0, min_cohort=3)
    search.refused(1, seven, 5)
    half = search.among(seven)
    assert len(half) == 3
    left = tuple(party for party in seven if party != half[0])
    assert search.among(left) == left
    search.refused(2, left, 5)
    assert search.among(left) == left  # from this state no other halves may be opened
    search.admitted(3, left)
    assert search.among(left) == left and search.left_out == ()


def test_a_search_is_saved() -> None:
    search, other = SubsetSearch(5), SubsetSearch(5)
    led(search, lambda among: BAD in among, 3)
    other.load_state_dict(search.state_dict())
    assert other.state_dict() == search.state_dict()
    assert led(other, lambda a: BAD in a, 9) == led(search, lambda a: BAD in a, 9)


# --- rounds ---------------------------------------------------------------------------------------


class Point:
    """A state that is right where it is near one, and what it once was."""

    def __init__(self) -> None:
        self.x = np.zeros(20)

    def wrong(self) -> NDArray[np.float64]:
        return np.full(30, 1 - np.exp(-np.abs(self.x - 1).mean()))

    def forget(self, round: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x = state["x"]


def run(
    guard: GuardSettings | None,
    *,
    lie: Callable[[NDArray[Any]], NDArray[Any]] = lambda move: -10 * move,
    spoils: Callable[[int], bool] = lambda round: True,
    rounds: int = 8,
    mode: Protection = "secagg",
    parties: tuple[str, ...] = FIVE,
    catch: bool = False,
    guards: list[Guard] | None = None,
) -> Federated:
    """Parties that walk halfway to one in each round; the bad one may walk elsewhere."""
    points = {name: Point() for name in parties}

    def program(name: str) -> Any:
        async def walk(cohort: Cohort) -> Any:
            point, walked = points[name], []
            async for round in cohort.rounds(rounds, shared={"point": point}):
                move = (1 - point.x) / 2 + 0.01 * np.cos(np.arange(20) * (1 + parties.index(name)))
                if name == BAD and spoils(round.number):
                    move = lie(move)
                sums = await cohort.sum({"move": move, "one": 1.0}, carry=True)
                point.x = point.x + sums["move"] / sums["one"]
                walked.append((round.number, round.progress))
            return point.x, walked

        return walk

    def guarded(name: str, log: EventLog) -> Guard:
        assert guard is not None
        judge = points[name] if name != BAD else Yes()
        own = guard if name != BAD else guard.model_copy(update={"max_growth": None})
        made = Guard(own, judge, log, 0)
        if guards is not None:
            guards.append(made)
        return made

    return federate(
        {name: program(name) for name in parties},
        mode=mode,
        min_cohort=3,
        catch=catch,
        hooks=None if guard is None else guarded,
    )


class Yes:
    """A judge to whom nothing is wrong."""

    def wrong(self) -> NDArray[np.float64]:
        return np.zeros(1)

    def forget(self, round: int) -> None:
        pass


def told(out: Federated, party: str = "p0") -> list[Any]:
    return [e for e in out.events if e["event"] == "guard" and e["party"] == party]


def off(out: Federated) -> float:
    """How far from one all parties are, who are at one place."""
    ends = [x for x, _ in out.results.values()]
    assert all(np.array_equal(end, ends[0]) for end in ends)
    return float(np.abs(ends[0] - 1).mean())


@pytest.mark.parametrize("mode", ["none", "secagg", "he+secagg"])
def test_one_spoilt_round_is_undone_at_all_alike(mode: Protection) -> None:
    """Without a guard, one round of one party does the damage; with it, it is as if never been."""
    late: dict[str, Any] = {"spoils": lambda round: round == 3, "rounds": 3, "mode": mode}
    assert off(run(None, **late)) > 0.3 > 0.14 > off(run(None, lie=lambda m: m, **late))
    out = run(GuardSettings(), **late)
    assert [e["refused"] for e in told(out)] == [False, False, True, False]
    assert off(out) < 0.14
    walked = out.results["p0"][1]
    assert walked[2:] == [(3, 1.0), (4, 1.0)]  # a round that makes up for another, at its pace


def test_a_refused_round_can_be_left_out() -> None:
    out = run(GuardSettings(again=False, most=3), spoils=lambda round: round == 2, rounds=4)
    assert [e["refused"] for e in told(out)] == [False, True, False, False]


def test_one_who_spoils_every_round_stops_the_run_or_is_left_out() -> None:
    assert off(run(None, rounds=6)) > 1
    stopped = run(GuardSettings(most=3), catch=True)
    assert isinstance(stopped.error, PartyFailed) and stopped.error.reason == "refused-rounds"
    assert [e["refused"] for e in told(stopped)] == [True] * 4
    found = run(GuardSettings(search=True), parties=EIGHT, mode="none")
    assert off(found) < 0.05
    assert set(told(found)[-1]["among"]) == set(EIGHT) - {BAD}


def test_nobody_is_named_without_a_search() -> None:
    """All took part in all sums, so two refused rounds say nothing about one party."""
    guards: list[Guard] = []
    spoilt: dict[str, Any] = {
        "spoils": lambda round: round in (1, 3),
        "parties": EIGHT[:6],
        "mode": "none",
    }
    out = run(GuardSettings(most=2), rounds=2, guards=guards, **spoilt)
    assert [e["refused"] for e in told(out)] == [True, False, True, False]
    assert all(guard.left_out == () for guard in guards)


def test_what_was_left_over_and_scales_go_back_with_the_round() -> None:
    """The liar's grid would be so coarse that the next honest round is lost in its rounding."""
    loud: dict[str, Any] = {"lie": lambda move: 1e4 * np.cos(np.arange(20)), "rounds": 4}
    loud["spoils"] = lambda round: round == 2
    quiet = run(None, lie=lambda move: move, rounds=4)
    assert off(run(None, **loud)) > 10
    out = run(GuardSettings(), **loud)
    assert off(out) < 1.5 * off(quiet) + 1e-3
    assert told(out)[2]["growth"] < 2


def test_grids_that_grow_are_voted_against() -> None:
    """A move that hurts nobody's records, but makes the next sum's grid coarse."""
    wide: dict[str, Any] = {"lie": lambda move: 30 * move, "rounds": 3}
    wide["spoils"] = lambda round: round == 2
    lenient = run(GuardSettings(tolerance=0.9, max_growth=None), **wide)
    assert [e["refused"] for e in told(lenient)] == [False] * 3
    out = run(GuardSettings(tolerance=0.9), **wide)
    assert [e["refused"] for e in told(out)] == [False, True, False, False]
    assert told(out)[1]["growth"] > 10


def stuffed(paper: NDArray[np.float32]) -> NDArray[np.float32]:
    """Many votes for the round."""
    paper[0, :7] = 1
    return paper


def taken_away(paper: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vote less against the round, wherever it may lie, and one more for it."""
    paper[1, :, GUESSED] -= 1
    paper[0, :, GUESSED] += 1
    return paper


@pytest.mark.usefixtures("guesses_wrongly")
@pytest.mark.parametrize("cheat", [stuffed, taken_away])
def test_whoever_spoils_a_ballot_refuses_the_round(
    cheat: Callable[[NDArray[np.float32]], NDArray[np.float32]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bad party wants its rounds in, which all others are against, and counts more than one."""
    original, cast = guard_module.ballot, iter(range(1000))

    def cast_by(against: bool) -> NDArray[np.float32]:
        paper = original(against)
        return cheat(paper) if FIVE[next(cast) % 5] == BAD else paper  # they answer in order

    monkeypatch.setattr(guard_module, "ballot", cast_by)
    out = run(GuardSettings(most=1), catch=True)
    assert [(e["spoiled"], e["refused"]) for e in told(out)] == [(True, True)] * 2
    assert isinstance(out.error, PartyFailed)


# --- rules of a site about votes on rounds ------------------------------------------------------


def guarded(**fields: object) -> Plan:
    return plan(sections={"guard": fields})


CASES = [
    ("site.votes", policy(votes=False, max_rounds=15), guarded(),
     "asked for votes on rounds; allowed: none", {"votes": True}),
    ("site.search", policy(max_rounds=15), guarded(search=True),
     "asked for sums over halves; allowed: sums over all", {"search": True}),
    ("site.max_growth", policy(max_growth=4.0), plan(),
     "asked for no [guard]; allowed: grids that grow at most 4 times", {"max_growth": None}),
    ("site.max_rounds", POLICY, guarded(),  # five may be repeated
     "asked for 15; allowed: 10 or less", {"max_rounds": 15}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "held", "asked", "said", "allowing"), CASES)
def test_a_rule_refuses_alone_and_its_own_field_allows(
    rule: str, held: SitePolicy, asked: Plan, said: str, allowing: dict[str, object]
) -> None:
    (found,) = refused(held, asked, COMPANY)
    assert found.rule == rule and said in str(found)
    assert rule.rpartition(".")[2] in found.fix and "[site]" in found.fix
    check(policy(held, **allowing), asked, COMPANY, today=TODAY)


def test_rounds_that_are_not_repeated_do_not_count() -> None:
    check(POLICY, guarded(again=False), COMPANY, today=TODAY)


@pytest.mark.parametrize("change", [{"votes": False}, {"search": True}])
def test_a_description_names_the_rule(change: dict[str, object]) -> None:
    assert describe(policy(OPEN, **change)) != describe(OPEN)
