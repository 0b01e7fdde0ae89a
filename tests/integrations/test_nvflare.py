"""The sealed sum in jobs of NVFLARE: real filters, messages, services and coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from secure_fl.policy.plan import Plan
from tests.support.carried_pilot import (
    NAMES,
    CarriedPilot,
    carried_pilot,
    carried_plan,
)

pytest.importorskip("nvflare")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from secure_fl.integrations.nvflare import client
from tests.support.nvflare_job import LocalJob, trained

START = {"0": np.zeros((3, 2), np.float32), "1": np.ones(2, np.float32)}


def moved(name: str, round: int, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What a site trains: a step of its own."""
    step = (NAMES.index(name) + 1) / round / 8
    return {key: (value + step).astype(value.dtype) for key, value in arrays.items()}


def train(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
    weight = NAMES.index(name) + 1
    return trained(moved(name, round, arrays), weight, loss=weight)


def differences(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
    """What a script with differences returns."""
    result = train(name, round, arrays)
    result.params = {key: value - arrays[key] for key, value in result.params.items()}
    result.params_type = ParamsType.DIFF
    return result


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


@contextmanager
def job_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, **options: Any
) -> Iterator[tuple[CarriedPilot, LocalJob]]:
    """Run the services of the sites, and wire them and the server by their environment."""
    with carried_pilot(folder, plan) as pilot:
        monkeypatch.setenv("SECURE_FL_SITE", f"{folder}/{{name}}/site.sock")
        monkeypatch.setenv("SECURE_FL_COORDINATOR", str(pilot.hub))
        client._PARTS.clear()
        yield pilot, LocalJob(NAMES, plan, **{"train": train, **options})


@pytest.mark.parametrize(("opened", "trains"), [(False, train), (True, train), (True, differences)])
def test_a_job_gives_the_mean_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool, trains: Any
) -> None:
    with job_of(tmp_path, monkeypatch, carried_plan(opened=opened), train=trains) as (pilot, job):
        model = job.run(START)
        assert pilot.ended(), pilot.errors
    mean = expected(3)
    assert not job.errors and not job.panics
    for key, value in mean.items():
        for name in NAMES:
            found = load_file(tmp_path / name / "runs" / "job" / "model.safetensors")
            assert np.abs(found[key] - value).max() < 1e-3
        assert np.abs(model[key] - (value if opened else START[key])).max() < 1e-3
    losses = [one.metrics["loss"] for one in job.means] if opened else []
    assert np.allclose(losses, np.average([1, 2, 3], weights=[1, 2, 3]), atol=1e-3)
