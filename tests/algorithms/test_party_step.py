"""What a round of FedID writes down of itself, and in which units feedback is sent."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch

from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedid.feedback import FeedbackUnits
from secure_fl.algorithms.fedid.party_step import (
    EnsembleDrift,
    StepInputs,
    StepMetrics,
    step_losses,
)
from secure_fl.events import EventLog
from secure_fl.learning.site import Site
from secure_fl.testing.hospitals import HOST, hosted, members
from tests.support.event_documents import into
from tests.support.hands import AS_PRINTED, NAMES, site_of


def told(what: StepMetrics | EnsembleDrift) -> dict[str, Any]:
    """The event that comes of it."""
    events: list[dict[str, Any]] = []
    site: Site = site_of(members()[0])
    site.recorder = EventLog(NAMES[0], into(events), round=3)
    what.report(site)
    (event,) = events
    assert event.pop("party") == NAMES[0] and event.pop("round") == 3
    return event


def test_feedback_has_a_root_mean_square_of_1_over_the_round() -> None:
    units, printed = FeedbackUnits("unit"), FeedbackUnits("printed")
    first, second = torch.tensor([3e-4, -4e-4]), torch.tensor([1e-3])
    assert torch.equal(printed.of(first), first)
    assert float(units.of(first).square().mean()) == pytest.approx(1)
    size = sqrt((9e-8 + 16e-8 + 1e-6) / 3)
    assert float(units.of(second)) == pytest.approx(1e-3 / size)
    assert torch.equal(FeedbackUnits("unit").of(torch.zeros(3)), torch.zeros(3))


def test_a_watch_says_how_large_feedback_is_beside_distillation_and_how_far_a_party_went() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    y, own = torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    h = torch.tensor([[1.0, -1.0], [2.0, 0.0]])
    given, p = StepInputs(y, own, h), z.detach().softmax(-1)
    watch = StepMetrics()
    cfg = FedID(feedback="exact", feedback_weight=3.0, host_learning_rate=0.1)
    watch.add(z, given, step_losses(z, given, 0.25, cfg))
    distilled = (p - y) / 2
    fed_back = 3.0 * p * (h - (h * p).sum(-1, keepdim=True)) / 2
    event = told(watch)
    assert event["means"].pop("feedback_to_distill") == pytest.approx(
        float(fed_back.norm() / distilled.norm()), rel=1e-5
    )
    assert event == {"event": "public_steps", "means": {"as_sent": 1.0, "as_ensemble": 0.5}}
    plain = StepMetrics()
    plain.add(z, given, step_losses(z, given, 0.25, FedID(feedback_weight=3.0)))
    assert "feedback_to_distill" not in told(plain)


def test_drift_is_how_many_records_change_their_class_and_how_many_share_one() -> None:
    drift = EnsembleDrift(5)
    classes = torch.eye(2)
    drift.add(torch.tensor([0, 1, 2, 3]), classes[torch.tensor([0, 1, 1, 1])])
    assert told(drift) == {"event": "ensemble", "commonest": 0.75}
    drift.add(torch.tensor([3, 0, 4]), classes[torch.tensor([1, 1, 1])])
    assert told(drift) == {"event": "ensemble", "commonest": 1.0, "changed": 0.5}
    assert "changed" not in told(drift)


def test_a_run_tells_of_every_round_in_the_members_own_logs() -> None:
    events: list[dict[str, Any]] = []
    cfg = FedID(**AS_PRINTED, rounds=2, feedback_weight=1.0)
    hosted(cfg, silos=members(size=8), listener=into(events)).run()
    steps = [e for e in events if e["event"] == "public_steps"]
    ensembles = [e for e in events if e["event"] == "ensemble"]
    assert [(e["party"], e["round"]) for e in ensembles] == [(HOST, 1), (HOST, 2)]
    assert {(e["party"], e["round"]) for e in steps} == {(n, r) for n in NAMES for r in (1, 2)}
    assert all(
        0 < e["means"]["feedback_to_distill"] < 0.2 for e in steps
    )  # as printed, next to nothing
    unit = cfg.model_copy(update={"feedback_scale": "unit"})
    events.clear()
    hosted(unit, silos=members(size=8), listener=into(events)).run()
    found = [e["means"]["feedback_to_distill"] for e in events if e["event"] == "public_steps"]
    assert all(0.2 < ratio < 20 for ratio in found)
