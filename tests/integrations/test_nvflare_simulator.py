"""The example in NVFLARE's own simulator: its processes, connections and workflow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import this_code

pytest.importorskip("nvflare")

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
MODEL = "example/server/simulate_job/app_server/FL_global_model.pt"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def simulate(folder: Path, *options: str, timeout: float = 600) -> str:
    """Run the example in a folder, and return its output."""
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | this_code()
    done = subprocess.run(
        [sys.executable, "job.py", *options], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def model(folder: Path, mode: str) -> Mapping[str, Any]:
    """Load the model of the server."""
    import torch

    found = torch.load(folder / "build" / mode / MODEL, weights_only=False)["model"]
    return {name: np.asarray(value) for name, value in found.items()}


def test_the_example_ends_in_the_model_of_nvflare_alone(tmp_path: Path) -> None:
    """With three changed lines, and no arrays in what the server aggregates."""
    sealed, plain = simulate(tmp_path), simulate(tmp_path, "--plain")
    assert "The model is in" in sealed and "The model is in" in plain, sealed + plain
    found, expected = model(tmp_path, "sealed"), model(tmp_path, "plain")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() < 1e-3
    assert sealed.count("Empty result from client") == 9  # 3 sites, 3 rounds
    assert "Aggregated 3/3 results" in plain and "Aggregated" not in sealed
