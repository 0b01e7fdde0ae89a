"""Files of questions: what is wrong in one is said with its place and what is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fl.errors import SettingsError
from secure_fl.statistics.questions import Histogram, loads
from tests.support.raising import raises

ROOT = Path(__file__).parent.parent.parent
COUNT = '[[question]]\nname = "n"\nkind = "count"\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "[[question]]"),
        ('[[questions]]\nname = "n"', "question"),
        ("question = 3", "[[question]]"),
        ('[[question]]\nname = "n"\nkind = "histgram"', "histogram"),
        ('[[question]]\nname = "n"', "kind"),
        (COUNT + "feild = 3", "allowed"),
        (COUNT + COUNT, "'n' a second time"),
        (
            '[[question]]\nname = "n"\nkind = "categories"\nfield = "text"\nvalues = ["x"]',
            "; allowed: a field with few values",
        ),
        ('[[question]]\nname = "n"\nkind = "categories"\nfield = "id"\nvalues = ["x"]', "id"),
        (COUNT + '[question.where]\ntext = "John Smith"', "text"),
        ('[[question]]\nname = "n"\nkind = "categories"\nfield = "a"\nvalues = []', "values"),
        ('[[question]]\nname = "n"\nkind = "histogram"\nfield = "a"\nlow = 3\nhigh = 3', "low"),
        (
            '[[question]]\nname = "n"\nkind = "histogram"\nfield = "a"\nlow = "soon"\nhigh = "x"',
            "2026-01-31",
        ),
        (COUNT.replace("count", "vocabulary") + "epsilon = 1.0", "noise"),
        (COUNT + "epsilon = 0", "above 0"),
    ],
)
def test_what_is_wrong_is_said(text: str, named: str) -> None:
    with raises(SettingsError) as caught:
        loads(text)
    assert named in str(caught.value)


def test_all_faults_are_told_together() -> None:
    with raises(SettingsError, "2 errors"):
        loads(COUNT + "a = 1\n" + COUNT.replace('"n"', '"m"') + "b = 1")


def test_days_are_counted_from_1970() -> None:
    text = '[[question]]\nname = "n"\nkind = "histogram"\nfield = "d"\n'
    (found,) = loads(text + 'low = "1970-01-02"\nhigh = "1971-01-01"')
    assert isinstance(found, Histogram) and found.edges == (1.0, 365.0) and found.dated


def test_a_mistyped_file_is_told_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text('[[question]]\nname = "n"\nkind = "cuont"\n')
    code = (
        "import sys; from secure_fl.cli.main import main\n"
        "try: main(['stats', 'q.toml', '--corpus', 'ade'])\n"
        "except SystemExit as end: assert end.code == 2 and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cuont" in done.stderr
