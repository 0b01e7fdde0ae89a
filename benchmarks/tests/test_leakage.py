"""Runs of several ε, attacked, become one curve."""

from __future__ import annotations

from pathlib import Path

from benchmarks.federations.leakage import audited
from secure_fl.audits.attacks.membership import LIRA, RMIA
from secure_fl.audits.report import trade_off
from secure_fl.audits.report.page import render


def test_audited_runs_become_a_curve(tmp_path: Path) -> None:
    documents = audited(tmp_path, (2.0, None), size=16, rounds=1, epochs=1, models=(4, 2))
    found = trade_off.successes(documents)
    assert [one.attack for one in found] == [LIRA, RMIA] * 2
    assert [one.epsilon is None for one in found] == [False, False, True, True]
    assert 1.5 < (found[0].epsilon or 0) <= 2.0
    assert all(one.value is not None and one.interval is not None for one in found)
    assert "all-epsilon-title" in render(documents)
    assert {p.name for p in tmp_path.glob("*/report.html")} == {"report.html"}
