"""Scores over all hospitals' records: sealed, always over the same ones, and what ends a run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl import FedAdam, FedAvg, FedID, FedKD, InclusiveFL, Local, Silo, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.errors import SettingsError
from secure_fl.events import EventLog
from secure_fl.features.pooled_scores import feature
from secure_fl.features.pooled_scores.feature import Pooling
from secure_fl.federation.result import Result
from secure_fl.learning.tasks.classification import label_name
from secure_fl.party.context import Members, RoundSums, SumRequest
from secure_fl.party.hooks import Snapshot
from secure_fl.party.summing import Summing
from secure_fl.policy.describe import describe
from secure_fl.policy.rules import check
from secure_fl.runs.result_document import summarise
from secure_fl.testing.hospitals import LABELS, frozen, hosted, silos, small
from tests.support.equality import equal, weights
from tests.support.joining import FOUR, LATE, stopped
from tests.support.killing import Killed, after, at_event, kill_when
from tests.support.policy_plans import COMPANY, OPEN, TODAY, plan, policy, refused
from tests.support.raising import raises
from tests.support.sampling import mostly_slow


def unequal(seed: int = 0) -> list[Silo]:
    """One hospital has two test records, one has none for dev, and one has many."""
    few, none, many = silos(size=96, seed=seed)
    return [
        Silo(few.name, few.train[:16], few.dev[:2], few.test[:2]),
        Silo(none.name, none.train[:16], (), none.test[:6]),
        Silo(many.name, many.train[:16], many.dev, many.test),
    ]


def own(result: Result, split: str, round: int) -> list[dict[str, Any]]:
    """What each hospital measured at home."""
    return [
        entry
        for entry in result.document["history"]
        if "pooled" not in entry and (entry["split"], entry["round"]) == (split, round)
    ]


@pytest.mark.parametrize("mode", mostly_slow(["none", "secagg", "he+secagg"], "none", "he+secagg"))
def test_a_sealed_sum_gives_the_accuracy_over_all_records(mode: Any) -> None:
    result = small(mode=mode, silos=unequal()).run()
    for split in ("dev", "test"):
        entries = own(result, split, 2)
        cells = [(f"truly {label}", k) for k, label in enumerate(LABELS)]
        hits = sum(entry["counts"][row][k] for entry in entries for row, k in cells)
        records = [entry["counts"]["loss"][0] for entry in entries]
        pooled = result.pooled(split)
        assert pooled["accuracy"] == hits / sum(records)
        assert pooled["loss"] == pytest.approx(
            np.average([entry["loss"] for entry in entries], weights=records), rel=1e-6
        )
    assert result.pooled()["accuracy"] != result.mean()["accuracy"]
    told = [e for e in result.document["history"] if e.get("pooled") and e["round"] == 2]
    assert len(told) == 6  # at each hospital, for dev and test
    assert {e["accuracy"] for e in told if e["split"] == "test"} == {result.pooled()["accuracy"]}


@pytest.mark.parametrize(
    "algorithm",
    [FedKD(rounds=2, student_layers=1), InclusiveFL(rounds=2, tiers={"all": 1}), FedAdam(rounds=2)],
)
def test_what_was_summed_is_what_adding_the_hospitals_counts_gives(algorithm: Algorithm) -> None:
    """In one process both are known: the sum's metrics and those from everybody's own counts."""
    sealed = small(algorithm, "he+secagg", silos=unequal()).run()
    told = {(e["split"], e["round"]) for e in sealed.document["history"] if e.get("pooled")}
    assert told == {(split, r) for split in ("dev", "test") for r in (1, 2)}
    apart = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", pooled_scores=False)
    alone = small(algorithm, "he+secagg", silos=unequal(), training=apart).run()
    assert not any(e.get("pooled") for e in alone.document["history"])
    for which in ("last", "best"):
        found, expected = (r.document["metrics"][which]["pooled"] for r in (sealed, alone))
        assert found.keys() == expected.keys()
        for split, values in found.items():
            assert values == pytest.approx(expected[split], rel=1e-5)


def test_the_best_round_is_that_of_all_records_and_not_of_the_hospitals_mean() -> None:
    """Many records get better where two get worse."""
    result = small(FedAvg(rounds=6, epochs=2), silos=unequal(3)).run()
    dev = {
        e["round"]: e["accuracy"]
        for e in result.document["history"]
        if e.get("pooled") and e["split"] == "dev"
    }
    best = result.document["metrics"]["best"]["round"]
    assert dev[best] == max(dev.values()) and best == min(r for r in dev if dev[r] == dev[best])


def test_nothing_is_summed_where_scores_stay_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local learning, a host's run and settings that say so: no sum of scores is ever begun."""
    asked: list[str] = []
    original = Summing.sum

    async def spy(self: Summing, request: SumRequest) -> Any:
        asked.extend(name for name in request.values if name.startswith("scores/"))
        return await original(self, request)

    monkeypatch.setattr(Summing, "sum", spy)
    small().run()
    assert asked  # they are summed where nothing forbids it
    asked.clear()
    apart = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", pooled_scores=False)
    for federation in (small(training=apart), small(Local(rounds=1)), hosted(FedID(rounds=1))):
        result = federation.run()
        assert not any(e.get("pooled") for e in result.document["history"])
        assert result.document["metrics"]["last"]["pooled"]  # of a simulation, from all counts
        assert not asked


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


# --- differences ----------------------------------------------------------------------------------


class Forgetful(Pooling):
    """Sums counts over whoever is here, round by round."""

    async def end(self, round: int, sums: RoundSums, members: Members) -> None:
        self._over = frozenset()
        await super().end(round, sums, members)


@pytest.mark.parametrize("protected", [False, True])
def test_no_two_sums_of_scores_differ_by_one_hospital(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hospital joins: the others' next sum less the last one would be its test labels."""
    opened: list[tuple[int, dict[str, Any]]] = []
    original = Summing.sum

    async def spy(self: Summing, request: SumRequest) -> Any:
        sums = await original(self, request)
        if sums and any(name.startswith("scores/") for name in request.values):
            opened.append((self.round, sums))
        return sums

    monkeypatch.setattr(Summing, "sum", spy)
    if not protected:
        monkeypatch.setattr(feature, "Pooling", Forgetful)
    stopped(tmp_path, after(3), algorithm=FedAvg(rounds=4))
    result = small(FedAvg(rounds=4), silos=list(FOUR), folder=tmp_path, resume=True).run()
    by_round = dict(opened)
    assert set(by_round) == ({1, 2, 3} if protected else {1, 2, 3, 4})
    late = next(silo for silo in FOUR if silo.name == LATE)
    if not protected:  # the attack works
        truth = [sum(label_name(e) == label for e in late.test) for label in LABELS]
        at = [f"scores//test/0/0000/truly {label}" for label in LABELS]
        assert [(by_round[4][n] - by_round[3][n]).sum() for n in at] == truth
    told = {(e["party"], e["round"]) for e in events(tmp_path) if e["event"] == "scores_not_pooled"}
    assert told == ({(silo.name, 4) for silo in FOUR} if protected else set())
    assert result.document["metrics"]["last"]["round"] == 4


# --- early stopping -------------------------------------------------------------------------------


def patient(patience: int = 2, **fields: Any) -> TrainingSettings:
    return TrainingSettings(
        learning_rate=2e-3, batch_size=16, device="cpu", patience=patience, **fields
    )


def rounds_of(result: Result) -> list[int]:
    return sorted({e["round"] for e in result.document["history"]})


@pytest.mark.parametrize("mode", mostly_slow(["none", "he+secagg"], "he+secagg"))
def test_a_run_without_progress_ends_and_delivers_the_best_round(mode: Any) -> None:
    still = frozen().model_copy(update={"patience": 2})
    result = small(FedAvg(rounds=9), mode, training=still).run()
    assert rounds_of(result) == [1, 2, 3]  # the first was best, and two were not better
    learning = small(FedAdam(rounds=12), mode, training=patient()).run()
    best, last = (learning.document["metrics"][which]["round"] for which in ("best", "last"))
    assert last < 12 and last == best + 2
    until = small(FedAdam(rounds=12), mode, training=patient())
    until.until = best
    assert equal(weights(until.run()), weights(learning))  # the state after the best round


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [(FedAdam(rounds=12), "none"), (FedKD(rounds=12, student_layers=1), "he+secagg")],
)
def test_a_run_that_stops_early_resumes_bit_for_bit(
    tmp_path: Path, algorithm: Algorithm, mode: Any
) -> None:
    few = partial(small, algorithm, mode, training=patient(), silos=silos(size=24))
    whole = few().run()
    rounds = rounds_of(whole)[-1]
    assert rounds < 12
    run = partial(few, folder=tmp_path)
    for moment in (at_event(60), after(1), after(rounds - 1)):
        started = (tmp_path / "settings.toml").exists()
        with pytest.raises(Killed):
            run(listener=kill_when(moment), resume=started).run()
    again = run(resume=True).run()
    assert again.document["history"] == whole.document["history"]
    assert again.models.keys() == whole.models.keys()
    assert all(equal(weights(again, name), weights(whole, name)) for name in whole.models)


def test_who_joins_late_is_handed_the_best_round(tmp_path: Path) -> None:
    adam, wait = FedAdam(rounds=6), patient(patience=6)
    stopped(tmp_path, after(3), algorithm=adam, training=wait)
    result = small(adam, silos=list(FOUR), training=wait, folder=tmp_path, resume=True).run()
    pooled = {e["round"] for e in result.document["history"] if e.get("pooled")}
    assert pooled == {1, 2, 3} and rounds_of(result)[-1] == 6
    best = {e["party"]: e["round"] for e in events(tmp_path) if e["event"] == "best_round"}
    assert best.keys() == {silo.name for silo in FOUR}
    assert {*best.values()} == {result.document["model_round"]} and best[LATE] <= 3


def test_a_hospital_that_joined_after_the_best_round_reports_it() -> None:
    late = EventLog("late")
    for round in (4, 5):
        late.metrics(round, {"accuracy": 0.5 + round / 100}, {}, split="dev")
    assert summarise([late], "accuracy")["best"]["round"] == 5
    metrics = summarise([late], "accuracy", best=2)
    assert metrics["last"]["round"] == 5 and metrics["last"]["mean"]["dev"]["accuracy"] == 0.55
    assert metrics["best"]["round"] == 2 and metrics["best"]["party"] == {}


def test_a_run_ends_when_no_more_scores_are_pooled(tmp_path: Path) -> None:
    """A fourth hospital joins after round 3: no later round has a pooled score."""
    adam, wait = FedAdam(rounds=7), patient(patience=3)
    stopped(tmp_path, after(3), algorithm=adam, training=wait)
    run = small(adam, silos=list(FOUR), training=wait, folder=tmp_path, resume=True).run()
    best = {e["round"] for e in events(tmp_path) if e["event"] == "best_round"}
    assert len(best) == 1 and rounds_of(run)[-1] == best.pop() + 3


@pytest.mark.parametrize(
    "made",
    [
        lambda: small(Local(rounds=2), training=patient()),
        lambda: hosted(FedID(rounds=1), training=patient()),
        lambda: small(training=patient(pooled_scores=False)),
    ],
)
def test_patience_needs_a_score_that_all_know(made: Any) -> None:
    with raises(SettingsError, field="training.patience"):
        made()


def test_snapshots_do_not_change_with_what_they_are_of() -> None:
    class Thing:
        def __init__(self) -> None:
            self.state = {"x": np.zeros(2)}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    thing = Thing()
    snapshot = Snapshot({"thing": thing})
    snapshot.restore()
    assert thing.state["x"].tolist() == [0, 0]  # nothing was taken
    snapshot.take()
    thing.state["x"] += 1
    snapshot.restore()
    assert thing.state["x"].tolist() == [0, 0]


def test_histories_and_plots_have_the_pooled_scores() -> None:
    result = small(FedAvg(rounds=1)).run()
    assert result.to_frame()["pooled"].any()
    assert "all records, test" in [line.get_label() for line in result.plot().axes[0].lines]


# --- the rule of a site about sums of scores ----------------------------------------------------


def test_scores_are_summed_only_where_the_site_allows_it() -> None:
    held, asked = policy(pooled_scores=False), plan(pooled_scores=True)
    (found,) = refused(held, asked, COMPANY)
    assert found.rule == "site.pooled_scores"
    assert "asked for sums of scores; allowed: scores that stay here" in str(found)
    assert "pooled_scores" in found.fix and "[site]" in found.fix
    check(policy(held, pooled_scores=True), asked, COMPANY, today=TODAY)
    check(held, plan(pooled_scores=False), COMPANY, today=TODAY)


def test_a_description_names_the_rule() -> None:
    assert describe(policy(OPEN, pooled_scores=False)) != describe(OPEN)
