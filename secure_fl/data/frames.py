"""Rows of what is in memory already: data frames of pandas, data sets of `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from secure_fl.data.hub import loaded_rows
from secure_fl.data.rows import Row
from secure_fl.errors import DataError


def frame_rows(frame: Any) -> Iterator[Row]:
    """The rows of a data frame; what is missing in it is nothing here."""
    if not (hasattr(frame, "to_dict") and hasattr(frame, "columns")):
        raise DataError(
            f"found {type(frame).__name__}, allowed is a data frame of pandas",
            fix="a dict or a list of dicts becomes one by pandas.DataFrame(...)",
        )
    missing = frame.isna().to_dict("records")
    for number, (values, gone) in enumerate(zip(frame.to_dict("records"), missing, strict=True), 1):
        # A cell that holds a list is never missing, and pandas says so of each of its entries.
        known = {
            str(name): None if gone[name] is True else _plain(value)
            for name, value in values.items()
        }
        yield Row(known, "the data frame", number, "row")


def set_rows(found: Any) -> Iterator[Row]:
    """The rows of a data set, one split of it."""
    if not hasattr(found, "features"):
        raise DataError(
            f"found {type(found).__name__}, allowed is a datasets.Dataset",
            fix='take one split, as in datasets.load_from_disk(FOLDER)["train"]',
        )
    yield from loaded_rows(found, "the data set")


def _plain(value: Any) -> object:
    """A value of numpy's as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value
