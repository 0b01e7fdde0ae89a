"""The worked example of docs/evaluation.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _tuning = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(code, {})  # noqa: S102 - what readers are told to run
    said = capsys.readouterr().out
    assert "<Evaluation over 3 hospitals, test accuracy: short" in said and "interval" in said
