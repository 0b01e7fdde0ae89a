"""Flower's client apps and strategies over sealed sums, with real messages of Flower."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.carried_pilot import NAMES, CarriedPilot, carried_pilot, carried_plan

pytest.importorskip("flwr")

from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedYogi

from secure_fl.integrations.flower import SealedStrategy
from tests.support.flower_grid import LocalGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
VALUES = {"0": (20,), "1": (1,), "train_loss": ()}
ROUNDS = 3
GRID = 1e-3


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ClientApp, ClientApp, Any]]:
    """The example's client, the same without our mod, and its module of records."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from sealed_app import client_app, task

    plain = ClientApp()
    plain.train()(client_app.train)
    yield client_app.app, plain, task
    for name in [name for name in sys.modules if name.startswith("sealed_app")]:
        del sys.modules[name]


@pytest.fixture
def pilot(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CarriedPilot]:
    """Running sites; the parameter says whether means are opened to the coordinator."""
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "{site}" / "site.sock"))
    plan = carried_plan(ROUNDS, opened=getattr(request, "param", False), **VALUES)
    with carried_pilot(tmp_path, plan) as made:
        monkeypatch.setenv("SECURE_FL_COORDINATOR", str(made.hub))
        yield made


opened = pytest.mark.parametrize("pilot", [True], indirect=True)


def start(strategy: Any, app: ClientApp, task: Any, **grid: Any) -> tuple[Any, LocalGrid]:
    place = LocalGrid(app, NAMES, **grid)
    arrays = ArrayRecord(task.initial_model())
    return strategy.start(grid=place, initial_arrays=arrays, num_rounds=ROUNDS), place


def all_of(**more: Any) -> dict[str, Any]:
    return {"min_available_nodes": 3, "min_train_nodes": 3, "fraction_evaluate": 0.0, **more}


def off(one: Mapping[str, Any], record: ArrayRecord) -> float:
    return max(float(np.abs(one[name] - record[name].numpy()).max()) for name in record)


def test_sites_get_the_model_of_plain_averaging_and_the_server_none(
    pilot: CarriedPilot, apps: Any, tmp_path: Path
) -> None:
    sealed, plain, task = apps
    expected, _ = start(FedAvg(**all_of()), plain, task)
    result, grid = start(SealedStrategy(FedAvg(**all_of())), sealed, task)
    assert pilot.ended(), pilot.errors
    for name in NAMES:
        found = load_file(tmp_path / name / "runs" / "run" / "model.safetensors")
        assert off(found, expected.arrays) < GRID
    assert not result.arrays and not result.train_metrics_clientapp
    for at, message in grid.seen:  # nothing but sealed bytes comes from a site
        if at.startswith("from"):
            assert list(message.content) == ["secure_fl"]
            assert not message.content.array_records and not message.content.metric_records


@opened
@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedYogi])
def test_strategies_that_need_only_the_mean_give_what_they_give_in_plain_flower(
    pilot: CarriedPilot, apps: Any, kind: type[Any]
) -> None:
    sealed, plain, task = apps
    expected, _ = start(kind(**all_of()), plain, task)
    result, _ = start(SealedStrategy(kind(**all_of())), sealed, task)
    assert pilot.ended(), pilot.errors
    found = {name: result.arrays[name].numpy() for name in result.arrays}
    assert off(found, expected.arrays) < GRID
    metrics = result.train_metrics_clientapp[ROUNDS]
    assert (
        abs(metrics["train_loss"] - expected.train_metrics_clientapp[ROUNDS]["train_loss"]) < GRID
    )
