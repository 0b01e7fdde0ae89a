"""A hospital's own log names a reversed positive class, and a model that has not learned."""

from __future__ import annotations

from pathlib import Path

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.settings import TaskSettings
from secure_fl.testing.hospitals import LABELS, frozen
from tests.support.local_pilot import local_pilot, plan_of


def test_join_reports_both_and_the_coordinator_hears_of_neither(tmp_path: Path) -> None:
    assert LABELS == ("ade", "no-ade")
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), training=frozen()))
    pilot.lead().run()
    warned = [event for event in pilot.events if event["event"] == "warning"]
    texts = {(one["party"], one["code"]): one["text"] for one in warned}
    for name in pilot.members:
        assert "scores of 'no-ade'" in texts[name, "positive class"]
        assert "has not learned" in texts[name, "not learned"]
    assert {party for party, _ in texts} == set(pilot.members)
    scored = [one for one in pilot.events if one["event"] == "scores"]
    assert {one["scored_class"] for one in scored} == {"no-ade"}


def test_a_named_class_and_a_model_that_learns_need_no_warning(tmp_path: Path) -> None:
    task = TaskSettings(labels=LABELS, positive="ade", max_length=32)
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), task=task, training=frozen()))
    pilot.lead().run()
    codes = [event.get("code") for event in pilot.events if event["event"] == "warning"]
    assert "positive class" not in codes
