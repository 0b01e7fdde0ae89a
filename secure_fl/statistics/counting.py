"""A site's counts for a question: the cells of its records, and sums over cells.

Every question's cells are known before anybody counts; nothing here looks at another site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import DataError
from secure_fl.statistics import columns
from secure_fl.statistics.columns import Written
from secure_fl.statistics.questions import (
    Categories,
    CrossTable,
    Histogram,
    Question,
    Survival,
)

Integers = NDArray[np.int64]
BELOW, ABOVE, MISSING = -3, -2, -1  # the cells behind a histogram's bins


class Places(NamedTuple):
    """Rows of a table and the cells they lie in; a row of several entities lies in several."""

    rows: Integers
    cells: Integers


@dataclass(frozen=True, slots=True)
class Counted:
    """One site's numbers, before they are summed."""

    records: Integers  # in each cell
    patients: Integers  # different ones, in each cell
    moments: Integers  # Σx and Σx² of a histogram's records, in units of its grain

    @property
    def counts(self) -> Mapping[str, Integers]:
        """Return the addends of the cells."""
        return {"records": self.records, "patients": self.patients}


def cells(question: Question) -> int:
    """How many cells a question has."""
    match question:
        case Categories():
            return len(question.values) + 2
        case Histogram():
            return question.bins + 3
        case CrossTable():
            return (len(question.row_values) + 1) * (len(question.column_values) + 1)
        case Survival():
            return (question.steps + 1) * 2 * len(question.groups) + 1
        case _:
            return 1


def count(question: Question, written: Written, *, once: bool = False) -> Counted:
    """Count a site's records; `once`: one record of each patient, so that noise protects it."""
    rows, at = place(question, written)
    whose = columns.patients(written.table)[rows]
    if once:
        _, first = np.unique(whose, return_index=True)
        rows, at, whose = rows[first], at[first], whose[first]
    moments = np.zeros(0, np.int64)
    if isinstance(question, Histogram):
        moments = _moments(question, written.table, rows[at < question.bins])
    return Counted(
        np.bincount(at, minlength=cells(question)), distinct(whose, at, cells(question)), moments
    )


def distinct(whose: Integers, at: Integers, size: int) -> Integers:
    """How many different patients lie in each cell."""
    pairs = np.unique(np.stack([at, whose]), axis=1)
    return np.bincount(pairs[0], minlength=size)


def place(question: Question, written: Written) -> Places:
    """The cell of each record that the question is about."""
    chosen = selected(question, written)
    if isinstance(question, Categories):
        rows, at = written.entries(question.field, question.values)
        rows, at = np.unique(np.stack([rows, at]), axis=1)  # once a record
        return Places(rows[chosen[rows]], at[chosen[rows]])
    rows = np.flatnonzero(chosen)
    find: Callable[[Any, Written], Integers] = CELLS.get(type(question), _one)
    return Places(rows, find(question, written)[rows])


def selected(question: Question, written: Written) -> NDArray[np.bool_]:
    """Which records satisfy the question's conditions."""
    chosen = np.ones(len(written.table), bool)
    for field, values in question.where.items():
        wanted = (values,) if isinstance(values, str) else values
        chosen &= written.codes(field, wanted) < len(wanted)
    return chosen


def grain(question: Histogram) -> float:
    """The unit that values are rounded to before they are summed; whole numbers stay as they are.

    Others keep two digits more than the power of ten of a bin's width.
    """
    low, high = question.edges
    return float(min(1.0, 10.0 ** (np.floor(np.log10((high - low) / question.bins)) - 2)))


def _one(question: Question, written: Written) -> Integers:
    """Put all records in one cell; the question's columns must exist."""
    for field in question.fields:
        columns.column(written.table, field)
    return np.zeros(len(written.table), np.int64)


def _binned(question: Histogram, written: Written) -> Integers:
    values = _values(question, written.table)
    low, high = question.edges
    edges = np.linspace(low, high, question.bins + 1)
    at = np.searchsorted(edges, values, side="right") - 1
    at[values == high] = question.bins - 1
    n = cells(question)
    at[values < low], at[values > high] = n + BELOW, n + ABOVE
    at[np.isnan(values)] = n + MISSING
    return at.astype(np.int64)


def _values(question: Histogram, table: Any) -> NDArray[np.float64]:
    column = columns.column(table, question.field)
    return columns.numbers(column, question.field, dated=question.dated)


def _moments(question: Histogram, table: Any, rows: Integers) -> Integers:
    unit = grain(question)
    whole = np.rint((_values(question, table)[rows] - question.edges[0]) / unit).astype(np.int64)
    return np.array([whole.sum(), whole @ whole])


def _crossed(question: CrossTable, written: Written) -> Integers:
    sides = []
    for field, values in (
        (question.rows, question.row_values),
        (question.columns, question.column_values),
    ):
        found = written.codes(field, values)
        sides.append(np.minimum(found, len(values)))  # others and missing ones together
    return sides[0] * (len(question.column_values) + 1) + sides[1]


def _survived(question: Survival, written: Written) -> Integers:
    """Group, time and whether it happened; in the last cell, records that lack one of them."""
    times = columns.numbers(columns.column(written.table, question.time), question.time)
    happened = written.codes(question.event, ("0", "1", "false", "true"))
    if ((happened == 4) | (times < 0)).any():
        what = "an event is neither 0 nor 1 (false, true), or a time is below 0"
        raise DataError(what, fix="correct these records", field=question.event)
    group = np.zeros(len(times), np.int64)
    if question.group is not None:
        group = written.codes(question.group, question.groups)
    late = times > question.horizon
    known = ~(np.isnan(times) | (happened > 3) | (group >= len(question.groups)))
    at = np.ceil(np.where(late | np.isnan(times), question.horizon, times) / question.step - 1e-9)
    event = (happened % 2 == 1) & ~late
    place = (group * (question.steps + 1) + at.astype(np.int64)) * 2 + event
    return np.where(known, place, cells(question) - 1).astype(np.int64)


CELLS: Mapping[type[Question], Callable[[Any, Written], Integers]] = MappingProxyType(
    {Histogram: _binned, CrossTable: _crossed, Survival: _survived}
)
