"""Guarded federations of models: rounds that one hospital spoils, resume, and bad input."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from secure_fl import (
    FedAdam,
    FedAvg,
    Federation,
    FedID,
    FedKD,
    InclusiveFL,
    Local,
    Scaffold,
    TrainingSettings,
)
from secure_fl.algorithms.base import Algorithm, Entry
from secure_fl.algorithms.fedavg import fedavg
from secure_fl.algorithms.registry import BUILT_IN
from secure_fl.errors import DataError, SecureFLError, SettingsError
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.testing.hospitals import hosted, silos, small
from tests.support.equality import equal, weights
from tests.support.event_documents import into
from tests.support.killing import Killed, after, kill_when, within
from tests.support.raising import raises

BAD = "hospital-2"
GUARD = GuardSettings(most=2)
STEADY = TrainingSettings(
    learning_rate=2e-3, batch_size=16, device="cpu", schedule="constant"
)  # later rounds move as far as earlier ones, and so can spoil as much


class Spoilt(FedAvg):
    """FedAvg with a hospital that makes all be of the rarer class, in some rounds."""

    name: Literal["spoilt"] = "spoilt"  # type: ignore[assignment]
    spoilt: tuple[int, ...] = (2,)

    @classmethod
    def entry(cls) -> Entry:
        return replace(BUILT_IN["fedavg"], settings=cls, program=spoilt)


async def spoilt(cohort: Cohort, site: Site, cfg: Spoilt) -> None:
    await fedavg(Liar(cohort, cfg.spoilt) if site.name == BAD else cohort, site, cfg)  # type: ignore[arg-type]


class Liar:
    """A cohort that is told something else in some rounds."""

    def __init__(self, cohort: Cohort, spoilt: tuple[int, ...]) -> None:
        self._cohort, self._spoilt = cohort, spoilt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cohort, name)

    async def sum(self, values: dict[str, Any], **options: Any) -> Any:
        if self._cohort._summing.round in self._spoilt:
            push = 9 * values["records"] * torch.tensor([1.0, -1.0])  # of three: by three
            values = {**values, "classifier.bias": push}
        return await self._cohort.sum(values, **options)


def told(events: list[dict[str, Any]], party: str = "hospital-1") -> dict[int, bool]:
    """Which rounds were refused."""
    return {
        e["round"]: e["refused"] for e in events if (e["event"], e["party"]) == ("guard", party)
    }


def guarded(
    algorithm: Algorithm, mode: Any = "none", guard: GuardSettings | None = GUARD, **options: Any
) -> Federation:
    sections = {} if guard is None else {"guard": guard}
    return small(algorithm, mode, sections=sections, training=STEADY, **options)


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_a_spoilt_round_harms_without_a_guard_and_is_undone_with_it(mode: Any) -> None:
    events: list[dict[str, Any]] = []
    harmed = guarded(Spoilt(rounds=2), mode, guard=None).run().pooled("test")["loss"]
    result = guarded(Spoilt(rounds=2), mode, listener=into(events)).run()
    assert told(events) == {1: False, 2: True, 3: False}
    assert result.pooled("test")["loss"] < harmed - 0.1
    rounds = {entry["round"] for entry in result.document["history"]}
    assert rounds == {1, 3}  # of the undone round nothing is measured
    assert result.document["guard"] == {"refused": [2], "left_out": []} | {
        "settings": GUARD.model_dump(mode="json")
    }
    assert small(FedAvg(rounds=1)).run().document["guard"] is None


@cache
def uninterrupted(mode: Any) -> Any:
    return guarded(Spoilt(rounds=2), mode).run()


@pytest.mark.parametrize(
    ("moment", "mode"), [(within(2), "he+secagg"), (after(2), "he+secagg"), (within(3), "none")]
)
def test_a_guarded_run_resumes_bit_for_bit(tmp_path: Path, moment: Any, mode: Any) -> None:
    whole = uninterrupted(mode)
    with pytest.raises(Killed):
        guarded(Spoilt(rounds=2), mode, folder=tmp_path, listener=kill_when(moment)).run()
    events: list[dict[str, Any]] = []
    again = guarded(
        Spoilt(rounds=2), mode, folder=tmp_path, resume=True, listener=into(events)
    ).run()
    assert again.document["guard"] == whole.document["guard"]
    assert again.document["history"] == whole.document["history"]
    assert equal(weights(again), weights(whole))


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(rounds=2),
        FedAdam(rounds=2),
        Scaffold(rounds=2, average=0.5),
        FedKD(rounds=2, student_layers=1),
        InclusiveFL(rounds=2, tiers={"all": 1}),
    ],
)
def test_an_honest_run_is_what_it_is_without_a_guard(algorithm: Algorithm) -> None:
    bare, events = guarded(algorithm, guard=None).run(), list[dict[str, Any]]()
    result = guarded(algorithm, listener=into(events)).run()
    assert told(events) == {1: False, 2: False}
    assert all(equal(weights(result, name), weights(bare, name)) for name in bare.models)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAdam(rounds=2),
        Scaffold(rounds=2, average=0.5),
        FedKD(rounds=2, student_layers=1),
        InclusiveFL(rounds=2, tiers={"all": 1}),
    ],
)
def test_all_of_a_refused_round_is_undone(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are against round 1: what follows begins where the run began, but with other batches."""
    from secure_fl.features.guard import guard

    seen: list[float] = []

    def against_the_first(before: Any, after: Any, errors: float) -> float:
        seen.append(float(before.sum()))
        return 1.0 if len(seen) <= 3 else -1.0

    monkeypatch.setattr(guard, "harm", against_the_first)
    events: list[dict[str, Any]] = []
    result = guarded(algorithm, listener=into(events), silos=silos(size=16)).run()
    assert told(events) == {1: True, 2: False, 3: False}
    assert seen[:3] == seen[3:6] != seen[6:]  # the state before round 2 is that before round 1
    assert {entry["round"] for entry in result.document["history"]} == {2, 3}


# --- bad input ------------------------------------------------------------------------------------


def test_every_hospital_needs_dev_records() -> None:
    first, second, third = silos()
    with raises(DataError, party=second.name, split="dev"):
        guarded(FedAvg(), silos=[first, replace(second, dev=()), third]).run()


@pytest.mark.parametrize(
    ("field", "guard", "algorithm"),
    [
        ("guard.share", GuardSettings(share=0.9), FedAvg()),  # all votes: never reached
        ("guard.share", GuardSettings(share=0.3), FedAvg()),  # one vote: a stop button
        ("guard.search", GuardSettings(search=True), FedAvg()),  # halves of three
        ("guard.search", GuardSettings(search=True), InclusiveFL(tiers={"all": 1})),
        ("guard.search", GuardSettings(search=True), FedKD(factors="per_party")),
        ("guard.most", GuardSettings(most=5, again=False), FedAvg(rounds=5)),
        ("guard", GUARD, Local()),
    ],
)
def test_a_guard_that_could_not_work_is_refused(
    field: str, guard: GuardSettings, algorithm: Algorithm
) -> None:
    with raises(SettingsError, field=field):
        small(algorithm, sections={"guard": guard})


def test_a_host_s_run_cannot_be_guarded() -> None:
    with raises(SettingsError, "fedavg", field="guard"):
        hosted(FedID(rounds=1), sections={"guard": GUARD})


def test_a_run_that_is_refused_too_often_stops_and_says_so() -> None:
    with pytest.raises(SecureFLError) as caught:
        guarded(Spoilt(rounds=2, spoilt=(2, 3)), guard=GuardSettings(most=1)).run()
    assert caught.value.code == "refused-rounds"
