"""A run whose frames another engine carries: services of sites, and a coordinator in its server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from secure_fl.integrations.hub import Folder, MessageHub
from secure_fl.integrations.program import Trained, model_of
from secure_fl.integrations.site_messages import Turn
from tests.support.carried_pilot import (
    NAMES,
    CarriedPilot,
    LocalCarrier,
    carried_pilot,
    carried_plan,
)

START = {"0": np.zeros((3, 2), np.float32), "1": np.ones(2, np.float32)}


def moved(name: str, round: int, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What a site trains: a step of its own."""
    step = (NAMES.index(name) + 1) / round / 8
    return {key: (value + step).astype(value.dtype) for key, value in arrays.items()}


class Reader:
    """What the server reads: the model that it sends is the newest mean, or the first model."""

    def __init__(self) -> None:
        self.means: dict[int, Mapping[str, Any]] = {}

    def take(self, round: int, mean: Mapping[str, Any]) -> None:
        self.means[round] = mean

    def train(self, name: str, round: int, turn: Turn) -> Trained:
        given = self.means.get(round - 1, START)
        start = model_of(turn, {key: given[key] for key in START})
        weight = NAMES.index(name) + 1
        return Trained(moved(name, round, start), weight, start, {"loss": weight, "other": 1.0})


def expected(rounds: int) -> dict[str, Any]:
    """Federated averaging by hand."""
    mean: dict[str, Any] = dict(START)
    for round in range(1, rounds + 1):
        sent = {name: moved(name, round, mean) for name in NAMES}
        mean = {
            key: np.average([sent[name][key] for name in NAMES], axis=0, weights=[1, 2, 3])
            for key in mean
        }
    return mean


def led(pilot: CarriedPilot, patience: float = 60, **carrier: Any) -> Reader:
    folder, reader = Folder(pilot.hub), Reader()
    carried = LocalCarrier(pilot, **{"train": reader.train, **carrier})
    folder.lead(MessageHub(carried, folder.algorithm, reader), patience)
    return reader


@pytest.mark.parametrize("opened", [False, True])
def test_a_carried_run_gives_the_mean_of_the_sites(tmp_path: Path, opened: bool) -> None:
    with carried_pilot(tmp_path, carried_plan(opened=opened)) as pilot:
        reader = led(pilot)
        assert pilot.ended(), pilot.errors
    mean = expected(3)
    for name in NAMES:
        found = load_file(tmp_path / name / "runs" / "run" / "model.safetensors")
        assert found.keys() == START.keys()
        for key, value in mean.items():
            assert np.abs(found[key] - value).max() < 1e-3
    assert set(reader.means) == ({1, 2, 3} if opened else set())
    for found in reader.means.values():
        assert found.keys() == {"0", "1", "loss"}  # no metric that the plan does not name
