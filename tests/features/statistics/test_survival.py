"""Kaplan-Meier and log-rank equal lifelines' on pooled tables; merged times are said to be."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test

from secure_fl.statistics.answers import Answer
from secure_fl.statistics.asking import ask
from secure_fl.statistics.questions import Survival
from secure_fl.statistics.rules import StatisticsRules
from tests.support.tables import hospitals

OPEN = StatisticsRules(min_patients=1)


def asked(least: int, **changes: object) -> tuple[Answer, pd.DataFrame]:
    tables = hospitals(size=80)
    question = Survival.model_validate(
        {"name": "s", "kind": "survival", "time": "days", "event": "died", "horizon": 40} | changes
    )
    rules = StatisticsRules(min_patients=least)
    (answer,) = ask([question], tables, rules=rules)
    return answer, pd.concat(list(tables.values()))


def at(points: tuple[tuple[float, float], ...], time: float) -> float:
    """A curve's value at a time."""
    return [value for when, value in points if when <= time][-1]


@pytest.mark.parametrize("groups", [("f", "m"), ("f",), ("m", "f", "x")])
def test_curves_and_the_test_are_those_of_lifelines(groups: tuple[str, ...]) -> None:
    answer, pooled = asked(1, group="sex", groups=groups)
    pooled = pooled[pooled.sex.isin(groups)]
    for label, points in answer.curves:
        own = pooled[pooled.sex == label]
        if len(own):
            fit = KaplanMeierFitter().fit(own.days, own.died)
            expected = fit.survival_function_at_times(range(41)).to_numpy()
            found = [at(points, time) for time in range(41)]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
            assert dict(answer.figures)[f"{label}: median"] == fit.median_survival_time_
    figures = dict(answer.figures)
    if len(set(pooled.sex)) < 2:
        assert "log-rank p" not in figures
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = multivariate_logrank_test(pooled.days, pooled.sex, pooled.died)
    assert figures["log-rank statistic"] == pytest.approx(test.test_statistic, rel=1e-12)
    assert figures["log-rank p"] == pytest.approx(test.p_value, rel=1e-12)


def test_who_is_watched_beyond_the_horizon_is_censored_there() -> None:
    answer, pooled = asked(1, horizon=20)
    fit = KaplanMeierFitter().fit(pooled.days.clip(upper=20), pooled.died * (pooled.days <= 20))
    assert at(answer.curves[0][1], 20) == pytest.approx(float(fit.predict(20)), abs=1e-12)


def test_times_are_merged_until_each_step_is_of_enough() -> None:
    answer, pooled = asked(10)
    (_, points) = answer.curves[0]
    assert any("merged" in said for said in answer.said)
    assert len({time for time, _ in points}) < pooled.days.nunique() / 2
    fit = KaplanMeierFitter().fit(pooled.days, pooled.died)
    assert at(points, 20) == pytest.approx(float(fit.predict(20)), abs=0.08)
