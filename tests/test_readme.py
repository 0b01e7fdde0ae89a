"""What the README promises: the ten lines learn, the page is short, every algorithm is listed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOISE = 0.04  # of an accuracy over 3 x 120 notes, on another processor


def the_ten_lines() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    return str(block)


def accuracy_of(code: str, folder: Path) -> tuple[float, str]:
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[0]), done.stdout


def claimed(sentence: str) -> float:
    (figure,) = re.findall(sentence, " ".join(README.split()))
    return float(figure)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 90
    statements = [line for line in the_ten_lines().splitlines() if line and line[0] not in " )]"]
    assert len(statements) <= 10


def test_the_ten_lines_learn_what_the_page_says(tmp_path: Path) -> None:
    accuracy, printed = accuracy_of(the_ten_lines(), tmp_path)
    likelier = claimed(r"always saying the likelier label, ([\d.]+)\.")
    assert accuracy == pytest.approx(claimed(r"an accuracy of ([\d.]+) on"), abs=NOISE)
    assert accuracy > likelier + 2 * NOISE
    assert "parties are needed" in printed and "'label': 'ade'" in printed


@pytest.mark.slow
def test_a_hospital_alone_learns_less(tmp_path: Path) -> None:
    alone = the_ten_lines().replace("FedAvg", "Local").rsplit("\n", 2)[0]
    accuracy, _ = accuracy_of(alone, tmp_path)
    assert accuracy == pytest.approx(claimed(r"for itself reaches ([\d.]+);"), abs=NOISE)


def test_the_likelier_label_is_counted() -> None:
    from secure_fl.corpora import make

    shares = []
    for notes in make("ade", parties=3, seed=0, size=240):
        labels = [getattr(example, "label", None) for example in notes.test]
        shares.append(max(labels.count(label) for label in set(labels)) / len(labels))
    assert round(sum(shares) / 3, 2) == claimed(r"the likelier label, ([\d.]+)\.")


def test_every_algorithm_is_in_the_table() -> None:
    from secure_fl.algorithms.registry import ALGORITHMS

    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert sorted(listed) == sorted(n for n, e in ALGORITHMS.items() if not e.trains_nothing)
