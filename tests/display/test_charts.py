"""Charts: well-formed SVG that a page embeds, with colours by name and a title for each point."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from secure_fl.display.charts import NAMES, Bar, Curve, bar_chart, chart, line_chart, standalone
from secure_fl.display.figures import number

RISING = [(float(k), 0.5 + 0.05 * k) for k in range(1, 8)]


def test_a_chart_is_well_formed_and_names_its_points() -> None:
    text = chart("c", [Curve("a <b> & $x$", RISING)], "round", "Score", number)
    figure = ElementTree.fromstring(text)  # noqa: S314 - our own
    titles = [e.text for e in figure.iter("title")]
    assert titles == [f"a <b> & $x$: {number(y)} at {x:g}" for x, y in RISING]
    ids = [e.get("id") for e in figure.iter() if e.get("id")]
    assert len(ids) == len(set(ids)) and "c-alternative" in ids
    assert not re.search("#0[1-9]0[1-9]", text)  # every colour is a name of the style
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(NAMES.values())


def test_many_faint_lines_share_one_name_and_long_ones_are_thinned() -> None:
    faint = [Curve(f"h{k}", [(float(x), k) for x in range(500)], faint=True) for k in range(7)]
    long = Curve("all", [(float(x), x / 500) for x in range(500)])
    text = chart("c", [long, *faint], "round", "Score", number, levels={"limit": 3.0})
    assert "each of 7 hospitals" in text and "h1" not in text and "limit" in text
    assert 100 < text.count("<title>") <= 201


def test_bars_have_their_values_and_intervals() -> None:
    bars = [Bar("model", 0.5, (0.4, 0.6)), Bar("at north", 0.7, faint=True)]
    drawn = bar_chart("b", bars, "Scores", number, top=1.0)
    assert drawn is not None and drawn.alternative == "model: 0.500."
    assert "0.700" in drawn.svg and "at north" in drawn.svg
    assert bar_chart("b", [], "Scores", number) is None


def test_a_file_brings_its_own_colours_for_light_and_dark() -> None:
    drawn = line_chart("c", [Curve("a", RISING)], "round", "Score", number)
    assert drawn is not None
    text = standalone(drawn)
    ElementTree.fromstring(text)  # noqa: S314 - our own
    assert "--s1:" in text and "prefers-color-scheme: dark" in text


@pytest.mark.parametrize(
    "module", ["secure_fl", "secure_fl.display.run_page", "secure_fl.cli.main"]
)
def test_matplotlib_is_loaded_by_the_first_chart_only(module: str) -> None:
    code = f"import sys, {module}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
