"""`secure-fl init --dp`: the settings file that protects records, for each algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.config.load import load
from tests.support.command_line import ran


@pytest.mark.parametrize(
    ("given", "algorithm", "noise"),
    [
        ((), "probe", "shared"),
        (("--task", "ner"), "fedavg", "local"),
        (("--algorithm", "fedsgd"), "fedsgd", "shared"),
        (("--algorithm", "fedkd"), "fedkd", "local"),
    ],
)
def test_noise_is_shared_where_each_step_is_a_sum(
    given: tuple[str, ...], algorithm: str, noise: str, tmp_path: Path
) -> None:
    found = ran("init", tmp_path, "--dp", 3, "--parties", 4, *given)
    assert "next: secure-fl budget" in found.output
    settings = load(tmp_path / "federation.toml")
    assert settings.algorithm.name == algorithm and settings.training.dp is not None
    assert (settings.training.dp.epsilon, settings.training.dp.noise) == (3.0, noise)
    if noise == "shared":
        assert settings.algorithm.rounds == 60  # each is a step
    shown = ran("budget", tmp_path / "federation.toml")
    assert "ε" in shown.output
