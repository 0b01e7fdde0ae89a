"""Intervals, votes and thresholds, without training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from secure_fl.features.personal import comparison
from secure_fl.features.personal.comparison import (
    DRAWS,
    FEWEST,
    Difference,
    Rows,
    count_votes,
    draws,
    resampled,
    sentence,
    vote_on,
    voters_of,
)
from secure_fl.features.personal.curves import (
    NOTHING,
    THRESHOLDS,
    CurveSums,
    LossCurves,
    LossSums,
    RiskSums,
    TrueOdds,
    losses_at,
    probability,
    true_odds,
)
from secure_fl.learning.metric_counts import from_pieces, pieces
from secure_fl.learning.tasks.classification import Classification
from secure_fl.learning.tasks.multilabel import MultiLabel
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine, federate

Curves = TypeVar("Curves", bound=CurveSums)

TASK = Classification("classification", labels=("ade", "no-ade"), max_length=8)
WANTED = 0.9


def rows_of(right: NDArray[np.bool_]) -> Rows:
    """The rows of a model that is right on these records; half of them have each label."""
    gold = torch.arange(len(right)) % 2
    answers = torch.where(torch.from_numpy(right), gold, 1 - gold)
    z = torch.nn.functional.one_hot(answers, 2).float() * 4
    return TASK.rows([z], [{"labels": gold}])


def compared(ours: NDArray[np.bool_], other: NDArray[np.bool_], seed: int = 0) -> Difference:
    drawn = draws(len(ours), np.random.default_rng(seed))
    return Difference.of(*resampled(TASK, [rows_of(x) for x in (ours, other)], drawn))


def test_a_difference_is_paired_and_repeatable() -> None:
    rng = np.random.default_rng(1)
    base = rng.random(400) < 0.7
    ours = base.copy()
    ours[np.flatnonzero(~base)[:12]] = True
    found = compared(ours, base)
    assert found == compared(ours, base) != compared(ours, base, seed=1)
    assert found.value == pytest.approx(12 / 400)
    # Only the 12 records on which the models differ vary: an unpaired interval is four times wider.
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.sqrt(12 / 400**2), rel=0.15)
    assert vote_on(found, 400) == "better" and vote_on(compared(base, ours), 400) == "worse"


def test_draws_are_made_one_by_one_so_that_they_fit_into_memory() -> None:
    records = 50_000
    drawn = draws(records, np.random.default_rng(0))
    assert all(one.shape == (records,) and one.sum() == records for one in islice(drawn, 3))
    few = draws(20, np.random.default_rng(0))
    once = np.random.default_rng(0).multinomial(20, np.full(20, 1 / 20), DRAWS)
    assert (np.stack([*few])[1:] == once).all()


def test_intervals_contain_the_true_difference_about_as_often_as_they_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "DRAWS", 200)
    rng, hits, trials = np.random.default_rng(0), 0, 40
    for seed in range(trials):
        ours, other = rng.random(120) < 0.8, rng.random(120) < 0.7
        found = compared(ours, other, seed)
        hits += found.low <= 0.1 <= found.high
    assert hits >= 0.88 * trials


def test_few_records_and_equal_models_decide_nothing() -> None:
    right, wrong = np.ones(FEWEST - 1, bool), np.zeros(FEWEST - 1, bool)
    assert vote_on(compared(right, wrong), FEWEST - 1) == "undecided"
    same = np.arange(50) % 3 > 0
    assert vote_on(compared(same, same), 50) == "undecided"


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_sealed_votes_are_what_the_hospitals_cast(mode: str) -> None:
    cast = {"a": "better", "b": "worse", "c": "better", "d": None, "e": "undecided"}

    async def program(cohort: Cohort) -> object:
        async for _ in cohort.rounds(1):
            pass
        voters = await voters_of(cohort, cast[cohort.me] is not None)
        return voters, await count_votes(cohort, cast[cohort.me], voters)  # type: ignore[arg-type]

    counted = {"better": 2, "worse": 1, "undecided": 1}
    found = federate(dict.fromkeys(cast, program), mode=mode)
    assert set(map(repr, found.results.values())) == {repr((4, counted))}
    assert "at 2 of 4 hospitals" in sentence(counted) and "at 1 it is worse" in sentence(counted)


@pytest.mark.parametrize("false", [[-1.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
def test_a_false_ballot_leaves_no_count(false: list[float]) -> None:
    async def program(cohort: Cohort) -> object:
        async for _ in cohort.rounds(1):
            pass
        voters = await voters_of(cohort, True)
        if cohort.me == "c":
            await cohort.sum({comparison.BALLOT: np.array(false, np.float32)}, together=True)
            return None
        return voters, await count_votes(cohort, "undecided", voters)

    found = federate(dict.fromkeys("abc", program), mode="none").results
    assert found["a"] == found["b"] == (3, None)


def test_no_curve_is_opened_over_fewer_hospitals_than_were_counted() -> None:
    """Hospital c leaves during the vote; a would read the curve of b, as d and e add zeros."""
    dev = {"a": 40, "b": 30, "c": 25, "d": 0, "e": 0}

    async def program(cohort: Cohort) -> object:
        records = dev[cohort.me]
        voters = await voters_of(cohort, records > 0)
        votes = await count_votes(cohort, "better" if records else None, voters)
        own = TrueOdds(records, np.ones(records), np.ones(records)) if records else None
        sums = await RiskSums.of(own).over(cohort)
        return voters, votes, sums and sums.records - dev["a"]

    found = federate(
        dict.fromkeys(dev, program),
        mode="he+secagg",
        engine=lambda s: LossyEngine(s, lose={"c": 4}),
    )
    assert found.results["a"] == (3, None, None)


def drawn(rng: np.random.Generator, level: float, records: int) -> TrueOdds:
    """Records of a hospital whose model gives true labels these log-odds."""
    return TrueOdds(records, rng.normal(level, 1.5, records), np.ones(records))


def summed(sums: Sequence[Curves]) -> Curves:
    """Add the sums of hospitals as the sealed sum does, piece by piece."""
    parts = [pieces(one.counts()) for one in sums]
    names = parts[0]
    total = {n: np.stack([p[n] for p in parts]).sum(0, dtype=np.float64) for n in names}
    return type(sums[0]).from_counts(from_pieces(total))


def sealed(sums: Mapping[str, Curves], own: Collection[str], mode: Protection) -> dict[str, Any]:
    """Add these sums by a federation; `own`: the hospitals that have dev records."""

    async def program(cohort: Cohort) -> Curves | None:
        async for _ in cohort.rounds(1):
            pass
        await voters_of(cohort, cohort.me in own)
        return await sums[cohort.me].over(cohort)

    return federate(dict.fromkeys(sums, program), mode=mode).results


def added(hospitals: list[TrueOdds]) -> RiskSums:
    return summed([RiskSums.of(one) for one in hospitals])


def test_own_thresholds_reach_the_coverage_where_a_pooled_one_misses_it() -> None:
    levels = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    rng = np.random.default_rng(0)
    dev = [drawn(rng, level, 2500) for level in levels]
    test = [drawn(rng, level, 20000) for level in levels]
    sums = added(dev)
    pooled = [one.coverage(sums.pooled(WANTED)) for one in test]
    own = [t.coverage(sums.own(d, WANTED)) for d, t in zip(dev, test, strict=True)]
    assert max(abs(coverage - WANTED) for coverage in pooled) > 0.05
    assert max(abs(coverage - WANTED) for coverage in own) < 0.02
    assert np.mean(pooled) == pytest.approx(WANTED, abs=0.01)


def test_hospitals_that_are_alike_share_a_threshold_and_few_records_lean_on_it() -> None:
    rng = np.random.default_rng(3)
    alike = [drawn(rng, 2.0, 300) for _ in range(6)]
    sums = added(alike)
    apart = [abs(sums.own(one, WANTED) - sums.pooled(WANTED)) for one in alike]
    alone = [abs(added([one]).pooled(WANTED) - sums.pooled(WANTED)) for one in alike]
    assert apart.count(0.0) >= 3
    assert sum(apart) < sum(alone)
    assert all(one <= single for one, single in zip(apart, alone, strict=True))
    assert sums.records == 1800

    unlike = [drawn(rng, level, 2000) for level in (0.5, 1.5, 2.5, 3.5)]
    both = added([*unlike, few := drawn(rng, 0.5, 30)])
    few_weight, many_weight = (both.weight(one, WANTED) for one in (few, unlike[0]))
    assert 0.0 <= few_weight < many_weight < 1.0 and many_weight > 0.98


def test_losses_are_counted_at_every_threshold() -> None:
    own = TrueOdds(4, np.array([-9.0, 0.0, 1.0, 20.0]), np.ones(4))
    assert own.losses()[[0, -1]].tolist() == [1.0, 3.0]
    assert own.losses()[THRESHOLDS == 0.0] == 1.0  # a label at the threshold is an answer
    assert own.coverage(0.0) == 0.75
    assert probability(RiskSums.of(own).pooled(WANTED)) == 0.0  # all labels are answers


@pytest.mark.parametrize("at", [0.03, 0.7, 1.0, 1.99])
def test_records_with_equal_odds_are_covered_too(at: float) -> None:
    """A model that has barely learned has few values of odds, all between two grid points."""
    own = TrueOdds(300, np.repeat([-at, at], [60, 240]), np.ones(300))
    assert own.coverage(added([own]).pooled(WANTED)) >= WANTED


def test_true_odds_are_those_of_the_probabilities() -> None:
    z, labels = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 2])
    one = true_odds(TASK, [z], [{"labels": labels}])
    chances = z.double().softmax(-1).numpy()[[0, 1], [0, 2]]
    assert probability(one.odds[0]) == pytest.approx(chances[0])
    assert probability(one.odds[1]) == pytest.approx(chances[1])
    several = MultiLabel("multilabel", labels=("x", "y", "z"))
    truth = torch.tensor([[True, False, True], [False, False, False]])
    many = true_odds(several, [z], [{"labels": truth}])
    assert many.odds.tolist() == [2.0, 1.0] and many.share.tolist() == [0.5, 0.5]
    assert many.records == 2 and many.coverage(1.5) == 0.75  # a record without labels loses none


def test_risk_curves_are_summed_under_seal_with_hospitals_that_have_none() -> None:
    rng = np.random.default_rng(0)
    own = {name: drawn(rng, level, 50) for name, level in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    found = sealed({n: RiskSums.of(own.get(n)) for n in (*own, "d")}, own, "he+secagg")["d"]
    expected = added(list(own.values()))
    assert isinstance(found, RiskSums)
    for name, vector in expected.counts().items():
        assert np.allclose(found.counts()[name], vector, rtol=1e-12)


# --- temperatures ---------------------------------------------------------------------------------


def curves_of(rng: np.random.Generator, records: int, true: float) -> LossCurves:
    """Records of a hospital at which a temperature of `true` calibrates the model."""
    z = rng.normal(0, 2.0, (records, 2)).astype(np.float32)
    chances = 1 / (1 + np.exp((z[:, 0] - z[:, 1]) / true))
    labels = torch.from_numpy((rng.random(records) < chances).astype(np.int64))
    return LossCurves.of(TASK, [torch.from_numpy(z)], [{"labels": labels}])


def test_own_temperatures_calibrate_where_the_pooled_one_does_not() -> None:
    rng, true = np.random.default_rng(0), (0.5, 1.0, 1.5, 3.0)
    own = [curves_of(rng, 3000, T) for T in true]
    sums = summed([one.sums() for one in own])
    assert 1.0 < sums.pooled < 2.0
    for one, T in zip(own, true, strict=True):
        assert sums.own(one) == pytest.approx(T, rel=0.1)
    assert abs(np.log(sums.pooled / 3.0)) > 0.5


def test_hospitals_that_are_alike_share_a_temperature_and_few_records_lean_on_it() -> None:
    rng = np.random.default_rng(1)
    alike = [curves_of(rng, 300, 2.0) for _ in range(6)]
    sums = summed([one.sums() for one in alike])
    assert sum(sums.weight(one) == 0.0 for one in alike) >= 3
    assert sums.pooled == pytest.approx(2.0, rel=0.1)
    other, few, single = (curves_of(rng, n, 0.5) for n in (2000, 20, 1))
    both = summed([*(one.sums() for one in (*alike, other, few, single))])
    assert both.weight(single) == 0.0 and both.own(single) == pytest.approx(both.pooled)
    assert both.weight(few) < both.weight(other) < 1.0 and both.weight(other) > 0.9


def test_the_lowest_point_of_a_curve_is_the_temperature_that_a_search_finds() -> None:
    from scipy.optimize import minimize_scalar

    rng = np.random.default_rng(2)
    z = torch.from_numpy(rng.normal(0, 3.0, (500, 3)).astype(np.float32))
    several = MultiLabel("multilabel", labels=("x", "y", "z"))
    truth = torch.from_numpy(rng.random((500, 3)) < 1 / (1 + np.exp(-z.numpy() / 1.7)))
    given = [z], [{"labels": truth}]
    found = minimize_scalar(
        lambda x: losses_at(several, *given, float(np.exp(x))).mean(), bounds=(-2, 2)
    )
    sums = LossCurves.of(several, *given).sums()
    assert sums.pooled == pytest.approx(float(np.exp(found.x)), rel=2e-3)


def test_loss_curves_are_summed_under_seal_with_hospitals_that_have_none() -> None:
    rng = np.random.default_rng(0)
    own = {name: curves_of(rng, 40, T) for name, T in (("a", 0.7), ("b", 1.0), ("c", 2.0))}
    sums = {name: curves.sums() for name, curves in own.items()} | {"d": NOTHING}
    found = sealed(sums, own, "he+secagg")["d"]
    assert isinstance(found, LossSums) and found.records == 120
    assert np.allclose(found.losses, sum(one.rows.sum(0) for one in own.values()), rtol=1e-12)


def test_losses_that_no_records_have_leave_no_temperature() -> None:
    levels = {"a": 1.0, "b": 1.0, "c": -9.0}
    false = {n: LossSums(1.0, np.full(NOTHING.losses.size, x)) for n, x in levels.items()}
    assert not any(sealed(false, false, "none").values())
