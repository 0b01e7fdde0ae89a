"""Kaplan-Meier and log-rank equal lifelines' on pooled tables; merged times are noted."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test

from secure_fl.features.statistics.codebook import Codebook
from secure_fl.features.statistics.opening import open_codebook
from secure_fl.settings import ProtectionSettings
from tests.support.tables import hospitals

STEPS = 10  # so few that a step has events and censored patients of each group
CLEAR = ProtectionSettings(mode="none")


def asked(least: int, groups: tuple[str, ...] = ()) -> tuple[dict[str, Any], pd.DataFrame]:
    tables = hospitals(size=80)
    for table in tables.values():
        table["days"] //= 40 // STEPS
    variables: dict[str, Any] = {
        "days": {"low": 0, "high": STEPS, "bins": STEPS},
        "died": {"values": ("1", "0")},
    }
    curves: Any = {"time": "days", "event": "died", "happened": "1"}
    if groups:
        variables["sex"] = {"values": groups}
        curves["group"] = "sex"
    codebook = Codebook(variables=variables, survival={"s": curves}, min_patients=least)
    found = open_codebook(codebook, tables, protection=CLEAR)
    return found.tables["s"], pd.concat(list(tables.values()))


def at(points: list[list[float]], time: float) -> float:
    """Return a curve's value after the step that ends at a time."""
    return next((value for when, value in reversed(points) if when <= time), 1.0)


@pytest.mark.parametrize("groups", [("f", "m"), ()])
def test_curves_and_the_test_are_those_of_lifelines(groups: tuple[str, ...]) -> None:
    """A bin from t to t+1 has the events of day t, so its step ends at t+1."""
    one, pooled = asked(1, groups)
    for label, points in one["curves"].items():
        own = pooled if not groups else pooled[pooled.sex == label]
        if len(own):
            fit = KaplanMeierFitter().fit(own.days, own.died)
            expected = fit.survival_function_at_times(range(STEPS)).to_numpy()
            found = [at(points, time + 1) for time in range(STEPS)]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    if len(groups) < 2:
        assert "log-rank p" not in one["figures"]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = multivariate_logrank_test(pooled.days, pooled.sex, pooled.died)
    figures = one["figures"]
    assert figures["log-rank statistic"] == pytest.approx(test.test_statistic, rel=1e-12)
    assert figures["log-rank p"] == pytest.approx(test.p_value, rel=1e-12)


def test_times_are_merged_until_each_step_has_enough_patients() -> None:
    one, pooled = asked(10)
    (points,) = one["curves"].values()
    assert any("merged" in note for note in one["notes"])
    assert len({time for time, _ in points}) < pooled.days.nunique()
    fit = KaplanMeierFitter().fit(pooled.days, pooled.died)
    assert at(points, 6) == pytest.approx(float(fit.predict(5)), abs=0.08)


@pytest.mark.parametrize(("rare", "count"), [(4, 0), (20, 1)])
def test_an_event_that_is_counted_with_others_has_no_curve(rare: int, count: int) -> None:
    """With 4 deaths, "death" and "alive" are one category: all patients would have died."""
    frame = pd.DataFrame({"died": ["death"] * rare + ["alive"] * 80})
    frame["days"] = np.arange(len(frame)) % STEPS
    variables: dict[str, Any] = {
        "days": {"low": 0, "high": STEPS, "bins": 1},
        "died": {"values": ("death", "alive")},
    }
    curves: Any = {"time": "days", "event": "died", "happened": "death"}
    codebook = Codebook(variables=variables, survival={"s": curves})
    found = open_codebook(codebook, {f"h{k}": frame[k::3] for k in range(3)}, protection=CLEAR)
    one = found.tables["s"]
    assert len(one["curves"]) == count and bool(one["figures"]) == bool(count)
    told = "no curve: few records have some values of died, so 'death' is counted with others"
    assert any(told in note for note in one["notes"]) != bool(count)
