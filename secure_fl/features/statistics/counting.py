"""Partitions of a column's values, tables of counts over them, and one hospital's counts.

A codebook names the finest partition of each column. A release merges cells of it into blocks. A
record without a readable value is in the last cell of its variable, so a codebook covers any
records. A column that no codebook should name is refused; only this hospital knows the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from secure_fl.data.records import SEPARATOR
from secure_fl.errors import DataError
from secure_fl.features.statistics.codebook import OF_LABEL, Codebook, Variable
from secure_fl.features.statistics.tables import PRIVATE, RecordTable

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Partition:
    """A map from a column's values to blocks: by edges of numbers, or by named values.

    Every other value, and a missing one, is in the block `rest`.
    """

    edges: tuple[float, ...] | None  # increasing; block k has the numbers from edge k-1 to edge k
    values: Mapping[str, int]  # block of each named value; empty for numbers
    rest: int

    @property
    def size(self) -> int:
        """The number of blocks."""
        named = len(self.edges) if self.edges is not None else max(self.values.values(), default=0)
        return max(named, self.rest) + 1

    def merged(self, blocks: Sequence[int]) -> Partition:
        """Merge blocks: `blocks` has the new block of each one; neighbours stay in their order."""
        rest = blocks[self.rest]
        if self.edges is None:
            return Partition(None, {v: blocks[b] for v, b in self.values.items()}, rest)
        kept = (e for k, e in enumerate(self.edges) if blocks[k] != blocks[k + 1])
        return Partition(tuple(kept), {}, rest)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a site's note."""
        edges = None if self.edges is None else list(self.edges)
        return {"edges": edges, "values": dict(self.values), "rest": self.rest}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Partition:
        """Read the JSON form."""
        edges = found["edges"]
        return cls(None if edges is None else tuple(edges), found["values"], found["rest"])


@dataclass(frozen=True, slots=True)
class Tabulation:
    """The counts of one table over blocks of its columns, and the released ones among them."""

    columns: tuple[str, ...]
    partitions: tuple[Partition, ...]
    counts: Integers  # one axis for each column
    shown: Flags

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a site's note."""
        return {
            "columns": list(self.columns),
            "partitions": [one.to_json() for one in self.partitions],
            "counts": self.counts.tolist(),
            "shown": self.shown.tolist(),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Tabulation:
        """Read the JSON form."""
        return cls(
            tuple(found["columns"]),
            tuple(map(Partition.from_json, found["partitions"])),
            np.array(found["counts"], np.int64),
            np.array(found["shown"], bool),
        )


def atoms_of(partitions: Sequence[Partition]) -> tuple[int, list[Integers]]:
    """Return the number of atoms of a column, and the block of each atom in every partition.

    The atoms are the coarsest partition that refines all the given ones.
    """
    points = sorted({e for one in partitions for e in one.edges or ()})
    names = sorted({value for one in partitions for value in one.values})
    maps = []
    for one in partitions:
        if one.edges is not None:
            found = np.searchsorted(one.edges, [-np.inf, *points], side="right").tolist()
        else:
            found = [one.values.get(name, one.rest) for name in names]
        maps.append([*found, one.rest])
    if points and names:
        raise ValueError("a column is coded by numbers and by names")
    distinct = np.unique(np.array(maps), axis=1)
    return distinct.shape[1], [row.astype(np.int64) for row in distinct]


LONGEST, MOST_WORDS = 64, 6  # of a category; longer values are texts
NAMES_FROM = 10  # fewer distinct values are categories, also of few patients


def counts_of(codebook: Codebook, table: RecordTable) -> tuple[Integers, dict[str, int]]:
    """Count the records in each cell of all tables, one table after the other.

    Also count the records with no readable value of each variable, for this hospital's log.
    """
    rows = _counted_rows(codebook, table)
    codes = {
        name: codes_of(codebook.column(name), variable, table, exact=codebook.epsilon is None)
        for name, variable in codebook.variables.items()
    }
    counts = []
    for scope in codebook.scopes.values():
        shape = codebook.shape(scope)
        cells = np.ravel_multi_index([codes[name][rows] for name in scope], shape)
        counts.append(np.bincount(cells, minlength=int(np.prod(shape))))
    unread = {n: int((codes[n] == v.size - 1).sum()) for n, v in codebook.variables.items()}
    return np.concatenate(counts).astype(np.int64), unread


def partition_of(variable: Variable) -> Partition:
    """Return the finest partition of a variable: its cells."""
    if variable.values is None:
        return Partition(variable.points, {}, variable.size - 1)
    named = {value: place for place, value in enumerate(variable.values)}
    return Partition(None, named, variable.size - 1)


def codes_of(column: str, variable: Variable, table: RecordTable, *, exact: bool) -> Integers:
    """Return the cell of each record; refuse a missing column.

    All members learn of a refusal, so no patient's values may decide about it. With `exact` counts,
    identifiers and texts of many patients are refused: members learn counts of listed values.
    """
    series = _column(table, column)
    if variable.values is not None:
        written = _written(series)
        if exact:
            _require_categories(written, column, table)
        cells = pd.Index(variable.values).get_indexer(pd.Index(written))
        missing = cells < 0
    else:
        read = _numbers(series, dated=variable.dated)
        cells, missing = np.searchsorted(variable.points, read, side="right"), np.isnan(read)
    return np.where(missing, variable.size - 1, cells).astype(np.int64)


def _counted_rows(codebook: Codebook, table: RecordTable) -> Integers:
    """Return the rows that count: the first records of each patient."""
    if not table.grouped:
        return np.arange(len(table))
    nth = pd.Series(table.patients).groupby(table.patients).cumcount()
    return np.flatnonzero((nth < codebook.records_per_patient).to_numpy())


def _column(table: RecordTable, column: str) -> Any:
    label = column.removeprefix(OF_LABEL)
    if label not in ("", column) and "label" in table.frame:
        return table.frame["label"].map(lambda cell: _has(cell, label))
    if column in PRIVATE:
        raise DataError(
            "this column has texts or identifiers, which no codebook counts",
            fix="count lengths instead: words or characters",
            field=column,
        )
    if column not in table.frame:
        found = ", ".join(map(str, table.frame)) or "none"
        raise DataError(
            "there is no such column, or it has texts or identifiers",
            fix=f"rename a column, or correct the codebook; columns that count: {found}",
            field=column,
        )
    return table.frame[column]


def labels_in(cell: Any) -> list[Any]:
    """Return the labels of a record, without empty ones; none for an unlabelled record."""
    if isinstance(cell, str):
        cell = [name.strip() for name in SEPARATOR.split(cell)]
    given = cell if isinstance(cell, list | tuple | np.ndarray) else ()
    return [name for name in given if name != ""]


def _has(cell: Any, label: str) -> str:
    """Write whether a record has a label among several; empty for an unlabelled record."""
    known = isinstance(cell, str | list | tuple | np.ndarray)
    return str(label in labels_in(cell)).lower() if known else ""


def _written(series: Any) -> Sequence[str]:
    """Return values as a codebook writes them: true, 3 for 3.0, text without outer spaces.

    Each value by itself: one 2.5 in a column must not change how all others are written.
    """
    if not pd.api.types.is_datetime64_any_dtype(series):
        series = series.map(_as_written)
    return list(series.astype("string").str.strip().fillna(""))


def _as_written(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    number = isinstance(value, int | float | np.integer | np.floating)
    return str(int(value)) if number and float(value).is_integer() else value


def _require_categories(written: Sequence[str], column: str, table: RecordTable) -> None:
    """Refuse texts, and a column with nearly as many values as patients."""
    texts = pd.Series(written)
    given = texts[texts != ""]
    words = given.str.count(r"\s+") + 1
    if len(given) < NAMES_FROM:
        return
    if given.str.len().quantile(0.9) > LONGEST or words.quantile(0.9) > MOST_WORDS:
        raise DataError(
            "this column has texts, which no codebook counts",
            fix="count lengths instead: words or characters",
            field=column,
        )
    people = len(np.unique(table.patients[(texts != "").to_numpy()]))
    if (values := given.nunique()) >= max(NAMES_FROM, people / 2):
        raise DataError(
            f"{values} different values of {people} patients: they are identifiers",
            fix="remove the variable from the codebook, or count it in bins",
            field=column,
        )


def _numbers(series: Any, *, dated: bool) -> NDArray[np.float64]:
    """Return numbers, or days since 1970; other values are NaN."""
    if dated:
        days = pd.to_datetime(series, errors="coerce", format="ISO8601", utc=True)
        since = (days - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
        return np.asarray(np.floor(since.to_numpy(dtype=np.float64, na_value=np.nan)))
    read = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(read) & ~pd.isna(series), read, np.nan)  # a missing day is a number
