"""Scores over ε: which runs share a line, what is averaged, and when nothing is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from secure_fl.cli.main import main
from secure_fl.display.compare_page import score_chart, scores_over_epsilon
from secure_fl.display.run_history import RunHistory, read_run_history
from tests.support.stories import written


def run(folder: Path, epsilon: float | None, accuracy: float, noise: str = "shared") -> RunHistory:
    """A finished run with this ε and pooled accuracy."""
    file = written(folder, algorithm="probe") / "result.json"
    document = json.loads(file.read_text())
    if epsilon is not None:
        document["privacy"] = {
            **{"noise": noise, "members": epsilon, "model": 0.8 * epsilon, "budget": 9.0},
            **{"unit": "record", "adjacency": "add-remove", "delta": 1e-5, "epsilon": {}},
            **{"overall_epsilon": epsilon, "accountant": "prv", "assumes": "nobody colludes"},
        }
    document["metrics"]["last"]["pooled"]["test"] = {"accuracy": accuracy, "loss": 0.5}
    file.write_text(json.dumps(document))
    return read_run_history(folder)


def test_runs_of_one_method_are_a_line_in_the_order_of_epsilon(tmp_path: Path) -> None:
    given: list[tuple[Any, ...]] = [
        (None, 0.90), (8.0, 0.84), (1.0, 0.70), (1.0001, 0.74), (8.0, 0.6, "local"),
    ]  # fmt: skip
    histories = [run(tmp_path / f"run{k}", *case) for k, case in enumerate(given)]
    lines = scores_over_epsilon(histories)
    assert list(lines) == ["probe", "probe, shared noise", "probe, local noise"]
    shared = [(p.epsilon, round(p.value, 3), p.interval) for p in lines["probe, shared noise"]]
    assert shared == [(1.0, 0.72, None), (8.0, 0.84, (0.8, 0.9))]  # seeds are averaged
    chart = score_chart("scores", histories)
    assert chart is not None and "probe, shared noise, ε = 8: 0.840" in chart.alternative
    assert "probe, ε = ∞: 0.900" in chart.alternative
    assert ">none<" in chart.svg and chart == score_chart("scores", histories)


def test_compare_and_report_draw_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, epsilon in (("strict", 1.0), ("loose", 8.0), ("plain", None)):
        run(tmp_path / name, epsilon, 0.8)
    folders = [str(tmp_path / name) for name in ("strict", "loose", "plain")]
    for command in ("compare", "report"):
        out = tmp_path / command
        main([command, *folders, "--out", str(out)], standalone_mode=False)
        page = (out / "report.html").read_text("utf-8")
        assert page.count('id="scores-epsilon-alternative"') == 1
        assert "Accuracy over ε, test records" in page
    main(["compare", *folders[:1] * 2, "--out", str(tmp_path / "same")], standalone_mode=False)
    assert "scores-epsilon" not in (tmp_path / "same" / "report.html").read_text("utf-8")
