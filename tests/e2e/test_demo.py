"""The demo's claim: together the hospitals are clearly better than alone, over three seeds."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fl.cli.demo_runs import together
from secure_fl.federation.federation import Federation


@pytest.mark.slow
def test_together_is_better_than_alone(tmp_path: Path) -> None:
    start = "from secure_fl.cli.main import main; main()"
    command = [sys.executable, "-c", start, "demo", "--quiet", "--seeds", "3"]
    subprocess.run([*command, "--out", str(tmp_path / "demo")], check=True)
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert result["seeds"] == [0, 1, 2]
    assert result["protection"]["mode"] == "he+secagg"
    assert result["margin"]["mean"] > 0.05
    assert result["margin"]["min"] > 0.03
    assert result["privacy_share"] < 0.1
    assert abs(result["price"]["mean"]) < 0.02  # sealing costs time, not accuracy
    assert result["sealed"]["mean"] < 0.97  # below 100 %: there is something to see
    clear, sealed, fedkd = result["audit"]
    assert clear["update_read"] > 0.99 > 0.1 > sealed["update_read"]  # the headline
    assert clear["words_guessed"] > 0.5  # so words are no headline on this corpus
    assert clear["words_recovered"] > 0.95 > 0.1 > sealed["words_recovered"]
    assert (clear["status"], sealed["status"]) == ("beyond policy", "within policy")
    assert fedkd["update_read"] < 0.3
    page = (tmp_path / "demo" / "report.html").read_text()
    assert len(page) < 1e6
    for title in ("each alone", "FedAvg in the clear", "FedAvg sealed", "FedKD sealed"):
        assert title in page


@pytest.mark.slow
def test_eight_bits_under_encryption_cost_no_accuracy() -> None:
    """Error feedback: the demo's runs in the clear and sealed at 8 bits end within a point.

    Of one seed they are up to two points apart, either way: what was rounded takes another path.
    """
    accuracy: dict[str, float] = {}
    for way in together()[:2]:
        asked = [way.settings(seed, rounds=8) for seed in range(8)]
        made = [Federation.of(settings, progress=False).run() for settings in asked]
        accuracy[way.folder] = sum(one.pooled("test")["accuracy"] for one in made) / len(made)
    assert abs(accuracy["sealed"] - accuracy["clear"]) < 0.01


@pytest.mark.slow
def test_the_page_is_there_after_a_minute_and_a_half_of_one_core(tmp_path: Path) -> None:
    """From nothing to pictures: processor seconds, for these tests do not have a machine alone."""
    command = [sys.executable, "-m", "secure_fl", "demo", "--quiet", "--out", str(tmp_path / "d")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert (tmp_path / "d" / "report.html").is_file() and spent < 90, spent
