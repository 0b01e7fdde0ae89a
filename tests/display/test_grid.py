"""Tables lose no character and exceed no width."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from secure_fl.display.grid import Grid
from tests.support.screens import drawn

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
