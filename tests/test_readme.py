"""The README's ten lines learn, and every algorithm is listed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARGIN = 0.08  # twice the noise of an accuracy over 3 x 120 notes


def the_ten_lines() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    return str(block)


def test_the_ten_lines_learn(tmp_path: Path) -> None:
    run = [sys.executable, "-c", the_ten_lines()]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > likelier_label() + MARGIN


def likelier_label() -> float:
    """The accuracy of a model that always predicts the label with more test notes."""
    from secure_fl.corpora import make

    shares = []
    for notes in make("ade", parties=3, seed=0, size=240):
        labels = [getattr(example, "label", None) for example in notes.test]
        shares.append(max(labels.count(label) for label in set(labels)) / len(labels))
    return sum(shares) / 3


def test_every_algorithm_is_in_the_table() -> None:
    from secure_fl.algorithms.registry import ALGORITHMS

    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert sorted(listed) == sorted(n for n, e in ALGORITHMS.items() if not e.trains_nothing)
