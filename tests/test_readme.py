"""README.md: its program learns, it fits on a landing page, and it loads nothing from elsewhere."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from secure_fl.algorithms.registry import ALGORITHMS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARGIN = 0.08  # twice the standard error of an accuracy over 150 notes, plus some


def test_the_ten_lines_learn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.S)
    monkeypatch.chdir(ROOT)
    exec(program, {})  # noqa: S102
    shown = capsys.readouterr().out
    assert float(shown.split()[0]) > share_of_the_most_frequent_label() + MARGIN
    assert "'label': 'ade'" in shown


def share_of_the_most_frequent_label() -> float:
    with (ROOT / "examples" / "notes.csv").open(encoding="utf-8", newline="") as file:
        labels = Counter(row["label"] for row in csv.DictReader(file))
    return max(labels.values()) / labels.total()


def test_every_algorithm_is_in_the_table() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert sorted(listed) == sorted(n for n, e in ALGORITHMS.items() if not e.trains_nothing)
