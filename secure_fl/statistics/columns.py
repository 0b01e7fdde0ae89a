"""Columns of a table as numbers: codes of named values, lengths, days, times. All by arrays.

What does not fit is an error of this site's own data: it is told here, and never what a cell holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from secure_fl.errors import DataError

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
LONGEST, MOST_WORDS = 64, 6  # of a value with a name; what is longer is a text


def column(table: pd.DataFrame, field: str) -> Any:
    """A column, or the error of a site that has none."""
    if field not in table:
        fix = f"rename a column, or map it in data.columns; found: {', '.join(map(str, table))}"
        raise DataError("there is no such column", fix=fix, field=field)
    return table[field]


class Written:
    """A table's columns as they are written in questions: read once, however many ask."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self._known: dict[str, tuple[Integers, Any]] = {}

    def codes(self, field: str, values: Sequence[str]) -> Integers:
        """Return each row's index among these values; then come other values, and missing ones."""
        if field not in self._known:
            self._known[field] = _factors(column(self.table, field), field)
        return _among(*self._known[field], values)

    def entries(self, field: str, values: Sequence[str]) -> tuple[Integers, Integers]:
        """The same of every entry of lists: the rows that they stand in, and their codes."""
        series = several(column(self.table, field))
        return series.index.to_numpy(), _among(*_factors(series, field), values)


def _factors(series: Any, field: str) -> tuple[Integers, Any]:
    """Number the values as texts, because 1 and true have equal hashes; -1: missing."""
    found, names = pd.factorize(_texts(series, field))
    return np.asarray(found, np.int64), names


def _among(found: Integers, names: Any, values: Sequence[str]) -> Integers:
    known = pd.Index(values).get_indexer(names)
    known = np.where(known < 0, len(values), known)
    return np.append(known, len(values) + 1)[found].astype(np.int64)  # -1 is the last


def several(series: Any) -> Any:
    """One row for each entry of lists, numbered as the rows that they stand in."""
    series = series.reset_index(drop=True)
    lists = series.map(lambda value: isinstance(value, list | tuple | np.ndarray))
    return series.explode() if bool(lists.any()) else series


def numbers(series: Any, field: str, *, dated: bool = False) -> Floats:
    """Return numbers, or days since 1970; missing values are NaN."""
    filled = series.where(series.notna() & (series.astype(str).str.strip() != ""))
    if dated:
        days = pd.to_datetime(filled, errors="coerce", format="ISO8601", utc=True)
        _require_read(filled, days, field, "days as 2026-01-31")
        since = (days - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
        return np.asarray(np.floor(since.to_numpy(dtype=np.float64, na_value=np.nan)))
    read = pd.to_numeric(filled, errors="coerce")
    _require_read(filled, read, field, "numbers")
    found = read.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(found), found, np.nan)


def patients(table: pd.DataFrame) -> Integers:
    """Number the patient of each row; without a column of patients, every row is one."""
    if "patient" not in table:
        return np.arange(len(table))
    found, _ = pd.factorize(table["patient"])
    nobody = found < 0
    if nobody.any():
        what = f"{int(nobody.sum())} records do not say whose they are"
        raise DataError(what, fix="fill the column of patients", field="patient")
    return np.asarray(found, np.int64)


def _texts(series: Any, field: str) -> Any:
    """Values as they are written in questions: true, 3 for 3.0, text without spaces around it."""
    if pd.api.types.is_bool_dtype(series):
        return series.map({True: "true", False: "false"})
    if pd.api.types.is_numeric_dtype(series):
        whole = series.dropna() % 1 == 0
        if whole.all():
            series = series.astype("Int64")
        return series.astype("string")
    texts = series.astype("string").str.strip()
    texts = texts.where(texts != "")
    if _is_text(texts.dropna()):
        what = "this column holds texts, and no question names their values"
        raise DataError(what, fix="ask for its lengths: words or characters", field=field)
    return texts


def _is_text(texts: Any) -> bool:
    if texts.empty:
        return False
    words = texts.str.count(r"\s+") + 1
    return bool(texts.str.len().quantile(0.9) > LONGEST or words.quantile(0.9) > MOST_WORDS)


def _require_read(given: Any, read: Any, field: str, wanted: str) -> None:
    """Refuse a column of another type: taken for missing, its values would bend the answer."""
    odd = int((given.notna() & read.isna()).sum())
    if odd:
        what = f"{odd} of {int(given.notna().sum())} values are no {wanted}"
        raise DataError(what, fix="correct them, or leave them empty", field=field)
