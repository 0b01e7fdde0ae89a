"""The controls beside distillation: who trains in them, what is scored, and where they stand."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
import torch

from benchmarks.checkpoint import BUILT_IN, Checkpoint
from benchmarks.datasets import Spread, silos
from benchmarks.evidence import finished
from benchmarks.evidence.cells import Cell, Place, key_of, run
from benchmarks.evidence.controls import mean_scores, who_trains
from benchmarks.evidence.tables.fedid_skewed import BESIDE, CONTROLS, METHODS, SETTINGS, skewed
from secure_fl.algorithms.baselines.reference_points import Local
from secure_fl.config.data import HOST
from secure_fl.data.examples import Text
from secure_fl.federation.federation import Federation
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings

HERE = Place(None, Checkpoint(BUILT_IN, BUILT_IN))
SPREAD = Spread(
    ("built-in ade",), 3, train=64, dev=8, test=24, public=0.5, labelled=0.25, alpha=0.5
)
TRAINING: dict[str, Any] = {"learning_rate": 2e-3, "batch_size": 8, "device": "cpu"}


def cell(name: str, **changes: Any) -> Cell:
    given: dict[str, Any] = {
        "model": {"layers": 1},
        "training": TRAINING,
        "protection": {"mode": "none"},
        "max_length": 16,
    }
    return Cell("ade", name, 0, SPREAD, {"name": name, "rounds": 2}, **given | changes)


def scored(outcome: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = outcome["metrics"]["last"]["party"][HOST]["test"]
    assert found == outcome["metrics"]["last"]["mean"]["test"]
    return found


def test_a_host_alone_learns_from_its_own_labels_only() -> None:
    one = cell("centralized", control="host alone")
    members = silos(SPREAD, None, 0)
    (alone,) = who_trains("host alone", members)
    assert (alone.name, alone.role) == (HOST, "party")
    assert [e.id for e in alone.train] == [e.id for e in members[-1].train]
    found = run(one, HERE)
    assert scored(found)["accuracy"] > 0 and found["records"]["train"] > len(alone.train)


def test_the_mean_prediction_is_that_of_hospitals_that_trained_alone() -> None:
    one = cell("local", control="mean prediction")
    members = silos(SPREAD, None, 0)
    parties, host = who_trains("mean prediction", members), members[-1]
    assert HOST not in {silo.name for silo in parties} and len(parties) == 3
    task = TaskSettings(labels=("ade", "no-ade"), max_length=16)
    result = Federation(
        parties,
        Local(rounds=2),
        task=task,
        model=ModelSettings(layers=1),
        training=TrainingSettings(**TRAINING),
    ).run()
    asked = [e for e in host.test if isinstance(e, Text)]
    shares = []
    for name, model in result.models.items():
        x = result.tasks[name].encode(asked, result.tokenizers[name]).batch(range(len(asked)))
        with torch.no_grad():
            shares.append(result.tasks[name].forward(model.eval(), x).softmax(-1))
    gold = torch.tensor([result.task.labels.index(str(e.label)) for e in asked])
    right = torch.stack(shares).mean(0).argmax(-1) == gold
    expected = pytest.approx(float(right.float().mean()))
    assert mean_scores(result, host)["last"]["mean"]["test"]["accuracy"] == expected
    assert scored(run(one, HERE))["accuracy"] == expected


def test_a_control_is_another_cell_and_finds_no_other_outcome() -> None:
    plain, control = cell("centralized"), cell("centralized", control="host alone")
    assert key_of(plain, HERE) != key_of(control, HERE)
    outcome = run(control, HERE)
    others = {name: value for name, value in outcome.items() if name != "control"}
    for one, own, other in ((control, outcome, others), (plain, others, outcome)):
        assert finished.wanted(one).fits(finished.said(own))
        assert not finished.wanted(one).fits(finished.said(other))


def test_what_stands_in_one_setting_has_the_same_records_and_passes() -> None:
    cells = list(skewed(0))
    assert [group for group, _ in groupby(cells, lambda c: c.group)] == [s.title for s in SETTINGS]
    for setting, (_, found) in zip(SETTINGS, groupby(cells, lambda c: c.group), strict=True):
        here = list(found)
        assert {*CONTROLS, *METHODS} <= {c.method for c in here}
        assert len({c.spread for c in here}) == 1 and here[0].spread.alpha == setting.alpha
        assert len({c.algorithm["rounds"] * c.algorithm["epochs"] for c in here}) == 1
        assert len({str((c.training, c.model)) for c in here}) == 1
        assert all(not c.depths for c in here) or setting.depths
    assert set(BESIDE) <= {c.method for c in cells}
    assert not {replace(c, group="").title for c in cells} & set(CONTROLS)


def test_outcomes_of_fedid_from_before_its_mends_are_of_its_printed_form() -> None:
    """The kept cells say nothing of settings that came later, and judged by a batch of labels."""
    one = cell("fedid")
    said = dict(finished.said(run(one, HERE)))
    old = {
        "name": "fedid",
        "feedback": "scalar",
        "feedback_batch": None,
        "batches_per_exchange": 1,
    }
    found = finished.said({**said, "algorithm": old})["algorithm"]
    assert found == old | {
        "alone": 0,
        "own_shares": "kept",
        "labelled": False,
        "feedback_scale": "printed",
        "feedback_batch": TRAINING["batch_size"],
    }
    assert finished.said({**said, "control": ""})["algorithm"] == said["algorithm"]
