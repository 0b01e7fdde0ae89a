"""What is written in a column, and what questions call it."""

from __future__ import annotations

from typing import Any

import pandas
import pytest

from secure_fl.errors import DataError
from secure_fl.statistics.columns import Written


def test_values_of_unlike_types_are_told_apart_though_python_calls_them_equal() -> None:
    table = pandas.DataFrame(
        {"a": pandas.Series([1, True, "1", 1.0, 0, False, None], dtype=object)}
    )
    found = Written(table).codes("a", ("1", "True", "1.0", "0"))
    assert found.tolist() == [0, 1, 0, 2, 3, 4, 5]  # 4: another value, 5: none


def test_a_column_is_read_once_and_asked_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from secure_fl.statistics import columns

    read: list[str] = []
    texts = columns._texts

    def noted(series: Any, field: str) -> Any:
        read.append(field)
        return texts(series, field)

    monkeypatch.setattr(columns, "_texts", noted)
    written = Written(
        pandas.DataFrame({"sex": ["f", " m ", "", None], "age": [3.0, 4.0, 3.0, None]})
    )
    assert written.codes("sex", ("m", "f")).tolist() == [1, 0, 3, 3]
    assert written.codes("sex", ("f",)).tolist() == [0, 1, 2, 2]
    assert written.codes("age", ("4", "3")).tolist() == [1, 0, 1, 3]
    assert read == ["sex", "age"]


def test_a_row_of_several_entries_is_asked_for_each() -> None:
    rows, found = Written(pandas.DataFrame({"drug": [["a", "b"], ["c"], []]})).entries(
        "drug", ("a", "b")
    )
    assert (rows.tolist(), found.tolist()) == ([0, 0, 1, 2], [0, 1, 2, 3])


def test_no_column_is_an_error_of_this_site() -> None:
    with pytest.raises(DataError, match="no such column"):
        Written(pandas.DataFrame({"a": [1]})).codes("b", ("1",))
