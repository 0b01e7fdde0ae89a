"""Tables lose no character and exceed no width."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from secure_fl.cli import show
from secure_fl.display.grid import Grid
from tests.support.screens import drawn, require_screen

words = st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=1, max_size=14)
texts = st.lists(words, min_size=1, max_size=4).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(40, 130))
def test_no_character_is_lost_at_any_width(data: st.DataObject, columns: int, width: int) -> None:
    row = st.lists(texts, min_size=columns, max_size=columns)
    heads, rows = data.draw(row), data.draw(st.lists(row, min_size=1, max_size=4))
    shown = drawn(Grid("", heads, rows), width)
    assert max(map(cell_len, shown.splitlines())) <= width
    given = Counter("".join([*heads, *(cell for row in rows for cell in row)]).replace(" ", ""))
    assert Counter(re.sub(r"\s", "", shown)) == given


def result() -> dict[str, Any]:
    scores = {"dev": {"accuracy": 0.69}, "test": {"accuracy": 0.755}}
    names = ("north", "st-elsewhere-university-hospital", "west")
    found = {
        "round": 8,
        "pooled": scores,
        "mean": scores,
        "party": dict.fromkeys(names, scores),
    }
    return {
        "main_metric": "accuracy",
        "parties": names,
        "metrics": {"last": found, "best": found | {"round": 5}},
        "bytes": {name: {"up": 549_700, "down": 552_500} for name in names},
        "seconds": {"party": {name: {"train": 1.82} for name in names}},
    }


def test_a_runs_result() -> None:
    require_screen("result", show.result_table(result(), "fedavg over the hospitals"))
