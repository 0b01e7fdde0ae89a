"""`secure-fl init --dp`: the settings file that protects records, for each algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from secure_fl.cli.main import main
from secure_fl.config.load import load


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
    arguments = ["init", str(tmp_path), "--dp", "3", "--parties", "4", *given]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0 and "next: secure-fl budget" in found.output
    settings = load(tmp_path / "federation.toml")
    assert settings.algorithm.name == algorithm and settings.training.dp is not None
    assert (settings.training.dp.epsilon, settings.training.dp.noise) == (3.0, noise)
    if noise == "shared":
        assert settings.algorithm.rounds == 60  # each is a step
    shown = CliRunner().invoke(main, ["budget", str(tmp_path / "federation.toml")])
    assert shown.exit_code == 0 and "ε" in shown.output
