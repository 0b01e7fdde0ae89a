"""The demo's claim: together the hospitals are clearly better than alone, over three seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fl.cli.demo import SETTINGS
from secure_fl.config.load import loads
from secure_fl.federation.federation import Federation


@pytest.mark.slow
def test_together_is_better_than_alone(tmp_path: Path) -> None:
    start = "from secure_fl.cli.main import main; main()"
    command = [sys.executable, "-c", start, "demo", "--quiet", "--out"]
    subprocess.run([*command, str(tmp_path / "demo")], check=True)
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert result["seeds"] == [0, 1, 2]
    assert result["protection"]["mode"] == "he+secagg"
    assert result["margin"]["mean"] > 0.05
    assert result["margin"]["min"] > 0.03
    assert result["privacy_share"] < 0.05
    assert result["federated"]["mean"] < 0.95  # far from 100 %: there is something to see


@pytest.mark.slow
def test_eight_bits_under_encryption_cost_no_accuracy() -> None:
    """Error feedback: the demo's runs in the clear and sealed at 8 bits end within a point."""
    accuracy = {}
    for mode in ("none", "he+secagg"):
        found = []
        for seed in (0, 1, 2):
            text = SETTINGS.format(seed=seed, algorithm="fedavg", rounds=8)
            settings = loads(text.replace('mode = "he+secagg"', f'mode = "{mode}"'))
            found.append(Federation.of(settings, None).run().mean("test")["accuracy"])
        accuracy[mode] = sum(found) / len(found)
    assert abs(accuracy["he+secagg"] - accuracy["none"]) < 0.01
