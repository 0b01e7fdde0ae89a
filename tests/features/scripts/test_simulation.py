"""Scripts at three sites in one process: equal bits, protection, and errors at their calls."""

from __future__ import annotations

import random
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from secure_fl import Script, ScriptCohort, simulate
from secure_fl.errors import (
    CohortError,
    DataError,
    Disagreement,
    RunError,
    SecureFLError,
    SettingsError,
    TooFewParties,
    TrainingError,
)
from secure_fl.features.scripts.cohort import digest
from secure_fl.settings import TrainingSettings
from tests.support.raising import raises

PLAIN = {"mode": "none", "bits": 16}
SEALED = {"mode": "he+secagg", "bits": 16}
RECORDS = (10, 30, 60)


def averaging(cohort: ScriptCohort) -> Any:
    """Means of both libraries, over four rounds, and a count."""
    rng = np.random.default_rng(cohort.index)
    state: dict[str, Any] = {"w": rng.normal(size=(4, 3))}
    for round in cohort.rounds(shared=state):
        local = state["w"] + rng.normal(size=(4, 3)) / round.number
        base = state if round.number > 1 else None
        state["w"] = cohort.mean({"w": local}, weight=RECORDS[cohort.index], base=base)["w"]
        total = cohort.sum({"records": RECORDS[cohort.index], "t": torch.ones(2)})
    cohort.agree(state["w"], "the weights")
    return state["w"], total, random.random(), torch.rand(1).item()


def in_the_clear() -> Any:
    """Compute the result of `averaging` without a cohort."""
    rngs = [np.random.default_rng(k) for k in range(3)]
    ws = [rng.normal(size=(4, 3)) for rng in rngs]
    for number in range(1, 5):
        local = [w + rng.normal(size=(4, 3)) / number for w, rng in zip(ws, rngs, strict=True)]
        ws = [np.average(local, axis=0, weights=RECORDS)] * 3
    return ws[0]


@pytest.mark.parametrize("protection", [PLAIN, SEALED], ids=["none", "sealed"])
def test_sums_and_means_are_those_of_the_sites(protection: dict[str, Any]) -> None:
    done = simulate(averaging, rounds=4, protection=protection)
    weights, total, *_ = done.results["site-1"]
    np.testing.assert_allclose(weights, in_the_clear(), atol=1e-3)
    assert all(np.array_equal(weights, found[0]) for found in done.results.values())
    assert total["records"] == 100 and isinstance(total["records"], int)
    assert torch.equal(total["t"], torch.full((2,), 3.0))
    assert done.document["protection"]["mode"] == protection["mode"]
    assert done.document["status"] == "finished"


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.bool_, np.float16])
def test_means_of_small_types_are_those_of_their_numbers(kind: Any) -> None:
    def main(cohort: ScriptCohort) -> Any:
        values = {"w": np.array([cohort.index == 0, 1], kind)}
        base = {"w": np.array([1, 1], kind)}
        return cohort.mean(values, weight=1e5, base=base)["w"]

    mean = simulate(main, rounds=1, protection=PLAIN).results["site-1"]
    np.testing.assert_allclose(mean, [1 / 3, 1], atol=1e-3)


def test_sums_of_small_types_hold_the_sum() -> None:
    def main(cohort: ScriptCohort) -> Any:
        torch_types = torch.uint8, torch.int32, torch.bool, torch.float16, torch.bfloat16
        values: dict[str, Any] = {
            str(t): torch.tensor([1, 3e4]).clamp(max=127).to(t) for t in torch_types[:1]
        }
        values |= {str(t): torch.tensor([1, 3e4]).to(t) for t in torch_types[1:]}
        values |= {"numpy": np.array([1, 3e4], np.float16)}
        values |= {"count": 16_777_217, "counts": np.array([2**31 - 1, 1], np.int32)}
        return cohort.sum(values)

    sums = simulate(main, rounds=1, protection=SEALED).results["site-1"]
    assert sums["torch.uint8"].tolist() == [3, 381]
    assert sums["torch.int32"].tolist() == [3, 90_000]
    assert sums["torch.bool"].tolist() == [3, 3] and sums["torch.bool"].dtype == torch.int64
    assert sums["torch.float16"].tolist() == [3, 90_000] == sums["numpy"].tolist()
    assert sums["torch.bfloat16"].dtype == torch.float32
    assert sums["count"] == 3 * 16_777_217 and sums["counts"].tolist() == [3 * (2**31 - 1), 3]


@pytest.mark.slow  # three processes import torch
def test_processes_give_the_bits_of_threads() -> None:
    states = random.getstate()
    threads = simulate(averaging, rounds=2, protection=PLAIN, seed=3)
    random.setstate(states)
    processes = simulate(averaging, rounds=2, protection=PLAIN, seed=3, processes=True)
    for name, (weights, total, *drawn) in threads.results.items():
        assert np.array_equal(weights, processes.results[name][0])
        assert total["records"] == processes.results[name][1]["records"]
        assert drawn[0] == processes.results[name][2]


def test_a_site_has_random_states_of_its_own() -> None:
    """Random draws of other scripts between two calls change nothing."""

    def main(cohort: ScriptCohort, extra: int = 0) -> Any:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        drawn = []
        for _ in cohort.rounds():
            drawn += [random.random(), np.random.rand(), torch.rand(1).item()]
            for _ in range(extra * cohort.index):
                random.random(), np.random.rand(), torch.rand(1)
            cohort.sum({"n": 1})
        return drawn

    alone = simulate(main, rounds=3, protection=PLAIN).results
    mixed = simulate(lambda cohort: main(cohort, 5), rounds=3, protection=PLAIN).results
    assert alone["site-1"] == alone["site-2"] == mixed["site-1"] != mixed["site-2"]


def test_the_plan_allows_exactly_what_was_summed() -> None:
    done = simulate(averaging, rounds=2, protection=PLAIN)
    table = tomllib.loads(done.plan)["algorithm"]
    assert table["values"] == {"w": [4, 3], "records": [], "t": [2]}
    again = simulate(averaging, rounds=2, protection=PLAIN, values=table["values"])
    assert np.array_equal(again.results["site-1"][0], done.results["site-1"][0])
    script = Script.model_validate(table)
    assert script.demands(TrainingSettings(), 0).cells == 15


def test_calls_without_a_loop_begin_a_round_when_a_name_comes_again() -> None:
    def main(cohort: ScriptCohort) -> Any:
        first = cohort.sum({"a": 1.0})["a"]
        return first + cohort.sum({"b": 1.0})["b"] + cohort.sum({"a": 2.0})["a"]

    found = simulate(main, rounds=2, protection=PLAIN).results
    assert found["site-1"] == pytest.approx(12, abs=1e-3)
    with raises(SettingsError, "1 rounds", party="site-1"):
        simulate(main, rounds=1, protection=PLAIN)


def calls(what: Any) -> Any:
    """Return a script that makes good calls, and one call at the second site only."""

    def main(cohort: ScriptCohort) -> None:
        for round in cohort.rounds():
            if round.number == 2 and cohort.index == 1:
                what(cohort)
            cohort.mean({"w": np.ones(3)})

    return main


@pytest.mark.parametrize(
    ("what", "kind", "named"),
    [
        (lambda c: c.mean({"v": np.ones(3)}), SettingsError, "'v'"),
        (lambda c: c.mean({"w": np.ones(4)}), SettingsError, "[4]"),
        (lambda c: c.mean({"w": np.array([1, np.nan, 1])}), TrainingError, "w holds NaN"),
        (lambda c: c.mean({"w": torch.full((3,), torch.inf)}), TrainingError, "w holds NaN"),
        (lambda c: c.mean({"w": ["a", "b", "c"]}), SettingsError, "w is of the type list"),
        (lambda c: c.mean(np.ones(3)), SettingsError, "ndarray"),
        (lambda c: c.mean({0: np.ones(3)}), SettingsError, "found 0 as a name"),
        (lambda c: c.mean({"w": np.ones(3)}, weight=1e-9), SettingsError, "1e-09"),
        (lambda c: c.mean({"w": np.ones(3)}, weight="a"), SettingsError, "'a' as a weight"),
        (lambda c: c.mean({"w": np.ones(3)}, base={"w": np.ones((3, 1))}), SettingsError, "[3, 1]"),
        (lambda c: c.mean({"w": np.ones(1)}, base={"w": np.ones(3)}), SettingsError, "base of w"),
        (lambda c: c.mean({"w": np.ones(3)}, base={"v": np.ones(3)}), SettingsError, "base of w"),
        (lambda c: c.sum({"w": np.full(3, 1e-11)}), SettingsError, "w has only values below"),
        (lambda c: c.mean({"w": np.ones(3)}, weight=-1), SettingsError, "-1"),
        (lambda c: c.sum({"sum of weights": 1.0}), SettingsError, "sum of weights"),
        (lambda c: 1 / 0, SecureFLError, "ZeroDivisionError"),
    ],
)
def test_a_bad_call_is_an_error_where_it_is_made(what: Any, kind: Any, named: str) -> None:
    places: list[str] = []

    def noted(cohort: ScriptCohort) -> None:
        try:
            what(cohort)
        except Exception:
            places.append(cohort.name)
            raise

    with raises(kind, named, party="site-2") as caught:
        simulate(calls(noted), rounds=3, values={"w": [3]}, protection=PLAIN)
    assert places == ["site-2"]
    if kind is SecureFLError:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_other_kinds_of_values_keep_their_shapes() -> None:
    def main(cohort: ScriptCohort) -> Any:
        series = pd.Series([1.5, 2.5], ["a", "b"])
        weight: Any = torch.tensor(2.0)
        means = cohort.mean({"list": [1.0, 2.0], "series": series}, weight=weight)
        return means, cohort.sum({"n": [1, 2]})

    means, sums = simulate(main, protection=PLAIN).results["site-1"]
    assert means["list"].tolist() == [1, 2] and means["series"].tolist() == [1.5, 2.5]
    assert sums["n"].tolist() == [3, 6]


@pytest.mark.parametrize(
    ("name", "value"), [('a"b', 1.0), ("", 1.0), ("a" * 201, 1.0), ("a", np.ones((0, 3)))]
)
def test_values_that_no_plan_can_name_are_refused(name: str, value: Any) -> None:
    """After the run, the plan of its sums could not be written, and all results were lost."""
    with raises(SettingsError, "no plan can name", party="site-1"):
        simulate(lambda cohort: cohort.sum({name: value}), protection=PLAIN)


def test_names_of_sites_differ_and_options_keep_the_16_bits() -> None:
    def main(cohort: ScriptCohort) -> float:
        return float(cohort.sum({"n": 1.0})["n"])

    with raises(SettingsError, "'a' is named twice"):
        simulate(main, ["a", "a", "b", "c"])
    done = simulate(main, rounds=1, protection={"mode": "none", "min_cohort": 3})
    assert done.document["protection"]["bits"] == 16


def test_a_name_is_summed_once_in_a_round() -> None:
    def main(cohort: ScriptCohort) -> None:
        for _ in cohort.rounds():
            cohort.sum({"w": 1.0})
            cohort.sum({"w": 1.0})

    with raises(SettingsError, "w is already summed in round 1"):
        simulate(main, rounds=3, protection=PLAIN)


def test_a_call_after_the_last_round_or_the_end_is_refused() -> None:
    kept: list[ScriptCohort] = []

    def main(cohort: ScriptCohort, late: bool = False) -> None:
        kept.append(cohort)
        for _ in cohort.rounds():
            cohort.sum({"w": 1.0})
        if late:
            cohort.sum({"v": 1.0})

    simulate(main, rounds=2, protection=PLAIN)
    with raises(CohortError, "after its end"):
        kept[0].sum({"w": 1.0})
    with raises(SettingsError, "they are over"):
        simulate(lambda cohort: main(cohort, late=True), rounds=2, protection=PLAIN)


def test_sites_that_call_otherwise_are_named() -> None:
    def names(cohort: ScriptCohort) -> None:
        cohort.sum({"v" if cohort.index == 1 else "w": 1.0})

    def weights(cohort: ScriptCohort) -> None:
        cohort.agree({"w": np.full(3, cohort.index == 2)}, "the weights")

    for main, site in ((names, "site-2"), (weights, "site-3")):
        with raises(Disagreement, party=site):
            simulate(main, protection=PLAIN)


def test_too_few_sites_and_other_settings() -> None:
    with raises(TooFewParties):
        simulate(averaging, sites=2)
    with raises(SettingsError, "main cannot be given to a process"):
        simulate(lambda cohort: None, processes=True, protection=PLAIN)
    with raises(SettingsError, "a dictionary", field="values"):
        Script(values=5)  # type: ignore[arg-type]
    with raises(DataError, "add up to 0"):
        simulate(lambda cohort: cohort.mean({"w": 1.0}, weight=0), protection=PLAIN)


class Crash(Exception):  # noqa: N818 - it names what happens
    """A crash."""


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_run_continues_after_its_last_round(tmp_path: Path, at: int) -> None:
    """Calls before the loop are answered from the checkpoint; both states are restored."""

    def main(cohort: ScriptCohort, crash: int = 0) -> Any:
        size = cohort.sum({"size": cohort.index + 1})["size"]
        cohort.agree(size, "the size")
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, size)
        shared: dict[str, Any] = {"model": model}
        own: dict[str, Any] = {"seen": []}
        for round in cohort.rounds(shared, own):
            own["seen"] = [*own["seen"], round.number]
            moved = {n: p + 0.1 * round.number for n, p in model.state_dict().items()}
            if round.number == crash and cohort.index == 2:
                raise Crash
            model.load_state_dict(cohort.mean(moved, base=model.state_dict()))
        return {n: p.numpy().copy() for n, p in model.state_dict().items()}, own["seen"]

    torch.manual_seed(0)
    whole = simulate(main, rounds=4, protection=PLAIN).results
    folder = tmp_path / "run"
    with raises(SecureFLError, "Crash", party="site-3"):
        simulate(lambda c: main(c, at), rounds=4, protection=PLAIN, folder=folder)
    again = simulate(main, rounds=4, protection=PLAIN, folder=folder, resume=True).results
    for name, (weights, seen) in again.items():
        assert seen == [1, 2, 3, 4]
        assert all(np.array_equal(w, whole[name][0][n]) for n, w in weights.items())


def test_a_sum_that_a_script_changes_stays_in_the_checkpoint(tmp_path: Path) -> None:
    def main(cohort: ScriptCohort, crash: int) -> Any:
        counts = cohort.sum({"n": torch.full((3,), 2.0, dtype=torch.float64)})["n"]
        first = counts.tolist()
        counts += 1
        for round in cohort.rounds():
            if round.number == crash:
                raise Crash
            cohort.sum({"m": 1})
        return first

    kept: dict[str, Any] = {"rounds": 3, "protection": PLAIN, "folder": tmp_path / "run"}
    with raises(SecureFLError, "Crash"):
        simulate(partial(main, crash=2), **kept)
    assert simulate(partial(main, crash=0), **kept, resume=True).results["site-1"] == [6, 6, 6]


class Pair(NamedTuple):
    """A named tuple."""

    a: int
    b: int


@pytest.mark.parametrize(
    "value",
    [{(1, 2): 2.0}, Pair(1, 2), {1, 2}, np.array(["a"]), np.random.default_rng(0)],
    ids=["pairs", "named", "set", "texts", "generator"],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_in_round_1(value: Any) -> None:
    """Also without a folder: in a pilot all rounds would be lost."""
    begun: list[int] = []

    def main(cohort: ScriptCohort) -> None:
        state: dict[str, Any] = {"x": 0}
        for round in cohort.rounds(own=state):
            begun.append(round.number)
            cohort.sum({"n": 1})
            state["x"] = value

    with raises(RunError, "a checkpoint cannot hold"):
        simulate(main, rounds=2, protection=PLAIN)
    assert set(begun) == {1}


def test_a_value_that_differs_after_a_restart_is_refused(tmp_path: Path) -> None:
    def main(cohort: ScriptCohort, labels: str, crash: int = 0) -> Any:
        cohort.agree(labels if cohort.index == 1 else "yes, no", "the labels")
        for round in cohort.rounds():
            if round.number == crash:
                raise Crash
            cohort.sum({"n": 1})
        return "done"

    def run(labels: str, crash: int = 0, *, resume: bool = True) -> Any:
        script = partial(main, labels=labels, crash=crash)
        folder = tmp_path / "run"
        return simulate(script, rounds=3, protection=PLAIN, folder=folder, resume=resume).results

    with raises(SecureFLError, "Crash"):
        run("yes, no", 2, resume=False)
    with raises(SettingsError, "the labels", party="site-2"):
        run("no, yes")
    assert run("yes, no")["site-2"] == "done"


def test_equal_numbers_have_equal_digests_in_python_and_numpy() -> None:
    assert digest(1.5) == digest(np.float64(1.5)) != digest(2.5)
    assert len({digest(value) for value in (1, True, "1", b"1", 1.0, None)}) == 6


def test_a_finished_run_without_checkpoints_runs_no_script(tmp_path: Path) -> None:
    def main(cohort: ScriptCohort) -> Any:
        return cohort.sum({"w": 1.0})["w"]

    simulate(main, protection=PLAIN, folder=tmp_path / "run")
    with raises(RunError, "has finished"):
        simulate(main, protection=PLAIN, folder=tmp_path / "run", resume=True)
