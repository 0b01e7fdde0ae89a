"""Attack success over ε: what is drawn, what is not, and how far any attack could get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from secure_fl.audits.attacks.membership import LIRA
from secure_fl.audits.document import AuditDocument, encode
from secure_fl.audits.report import trade_off
from secure_fl.audits.report.page import render
from secure_fl.audits.roles import PUBLIC
from secure_fl.cli.main import main
from tests.support.documents import document, finding, privacy, trial
from tests.support.stories import written

RATE: dict[str, Any] = {"n": 400, "threshold": 0.6, "measure": "AUC of members against outsiders"}


def of(
    epsilon: float | None, auc: float, *, control: float = 0.9, delta: float = 1e-5
) -> AuditDocument:
    """A run with this ε, and one membership attack on it."""
    statement = privacy()[0]
    bound = (
        ()
        if epsilon is None
        else (msgspec.structs.replace(statement, epsilon=epsilon, delta=delta),)
    )
    result = [finding(value, **RATE) for value in (control, auc, 0.5)]
    return document(trials=(trial(LIRA, PUBLIC, *result),), privacy=bound, matrix=())


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.0), (2.0, 0.1), (8.0, 1e-5)])
def test_the_most_that_epsilon_allows_is_the_area_under_its_curve(
    epsilon: float, delta: float
) -> None:
    x = np.linspace(0, 1, 200_001)
    above = np.maximum(
        0, np.maximum(1 - delta - np.exp(epsilon) * x, (1 - delta - x) / np.exp(epsilon))
    )
    area = float(np.mean((above[1:] + above[:-1]) / 2))
    assert trade_off.largest_auc(epsilon, delta) == pytest.approx(1 - area, abs=1e-6)
    assert trade_off.largest_auc(1e4, 0.0) == 1.0


def test_runs_are_in_the_order_of_their_epsilon_and_drawn_with_intervals() -> None:
    documents = [of(None, 0.8), of(8.0, 0.7), of(1.0, 0.55)]
    assert [one.epsilon for one in trade_off.successes(documents)] == [1.0, 8.0, None]
    rows = trade_off.table(documents).rows
    assert [row[1] for row in rows] == ["1", "8", "∞ (no bound)"]
    assert rows[0][3] == "0.550 [0.530, 0.570]" and rows[0][4] == "0.731" and rows[2][4] == "1"
    plot = trade_off.plot(documents, "all-epsilon")
    assert plot is not None and plot.alternative.count("membership (LiRA)") == 3
    assert "all-epsilon-title" in render(documents)


def test_no_promise_is_above_the_line_that_epsilon_allows() -> None:
    documents = [of(1.0, 0.55), of(4.0, 0.9, delta=0.3), of(4.0, 0.9), of(None, 0.8)]
    results = trade_off.successes(documents)
    line = dict(trade_off.allowed_line(results, [1.0, 4.0]))
    assert line == {x: trade_off.largest_auc(x, 0.3) for x in (1.0, 4.0)}
    assert all(one.allowed <= line[one.epsilon] for one in results if one.epsilon is not None)
    chart = trade_off.plot(documents, "several")
    assert chart is not None and "δ = 0.3" in chart.alternative
    equal = trade_off.plot([of(1.0, 0.55), of(4.0, 0.9)], "one")
    assert equal is not None and "δ" not in equal.alternative


def test_what_came_to_no_verdict_is_never_drawn_as_no_leakage() -> None:
    documents = [of(1.0, 0.5, control=0.5), of(8.0, 0.7)]
    plot = trade_off.plot(documents, "all-epsilon")
    assert plot is not None and plot.alternative.count("membership (LiRA)") == 1
    assert [row[-1] for row in trade_off.table(documents).rows] == ["inconclusive", "leaks"]
    assert trade_off.plot([of(1.0, 0.5, control=0.5), of(None, 0.5, control=0.5)], "none") is None


def test_there_is_no_curve_of_one_promise_or_of_none() -> None:
    for documents in ([of(1.0, 0.5)], [of(1.0, 0.5)] * 2, [of(None, 0.5)] * 2, [document()] * 2):
        assert not trade_off.comparable(documents)
    assert "all-epsilon" not in render([of(1.0, 0.5)] * 2)
    hospital = msgspec.structs.replace(privacy()[0], unit="hospital")
    complete = msgspec.structs.replace(of(1.0, 0.5), privacy=(hospital,))
    assert [one.epsilon for one in trade_off.successes([complete])] == [None]  # bounds no record


def test_compare_shows_the_curve_of_runs_that_were_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [written(tmp_path / name) for name in ("strict", "loose", "plain", "not-audited")]
    for run, audited in zip(runs, [of(1.0, 0.55), of(8.0, 0.7), of(None, 0.8)], strict=False):
        (run / "audit.json").write_bytes(encode(audited))
    out = tmp_path / "page"
    main(["compare", *map(str, runs), "--out", str(out)], standalone_mode=False)
    screen, page = capsys.readouterr().out, (out / "report.html").read_text("utf-8")
    assert "0.550 [0.530, 0.570]" in page and "Attack success over ε" in screen
    assert page.count('id="epsilon-alternative"') == 1
    assert "strict, membership (LiRA): 0.550" in page and "1. of" not in page
    main(["compare", str(runs[0]), str(runs[3])], standalone_mode=False)
    assert "over ε" not in capsys.readouterr().out
