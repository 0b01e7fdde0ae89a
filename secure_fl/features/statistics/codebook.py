"""Codebooks: the variables and tables of a study, as every site approves them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from secure_fl.algorithms.base import Demands, Entry, WithoutModel, deferred
from secure_fl.settings import Positive, PositiveReal, Section, TrainingSettings

NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,59}$"
Name = Annotated[str, Field(pattern=NAME)]
Bound = float | str  # a number, or a day as "2026-01-31"
OF_LABEL = "label:"  # before a label: whether a record has it, among several
REFUSED = "codebook refused"  # code of the event with a hospital's reason
MOST_CELLS = 10_000  # of all tables
SKETCH = re.compile(r"\d{4}-\d\d-\d\d")


class Variable(Section):
    """[algorithm.variables.NAME]: one column, in fixed categories or bins."""

    column: str | None = None
    """Column of the records. Default: the variable's name."""
    values: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=80)], ...],
                      Field(min_length=1, max_length=200)] | None = None  # fmt: skip
    """Categories. All other values are counted together with missing ones."""
    edges: Annotated[tuple[Bound, ...], Field(min_length=1, max_length=201)] | None = None
    """Edges of bins, in increasing order: numbers, or days as "2026-01-31". A bin contains its
    lower edge. The first and the last bin are open."""
    low: Bound | None = None
    high: Bound | None = None
    bins: Annotated[int, Field(ge=1, le=200)] | None = None
    """Number of bins of equal width from low to high, instead of edges."""

    @model_validator(mode="after")
    def _one_form(self) -> Variable:
        equal = [self.low, self.high, self.bins]
        forms = [self.values is not None, self.edges is not None, any(v is not None for v in equal)]
        if sum(forms) != 1 or (forms[2] and any(v is None for v in equal)):
            raise ValueError("one of values, edges, or low with high and bins: write exactly one")
        if self.values is not None and len(set(self.values)) < len(self.values):
            twice = next(v for v in self.values if self.values.count(v) > 1)
            raise ValueError(f"categories overlap: {twice!r} is there twice; write it once")
        if self.values is None:
            self._check_edges()
        return self

    def _check_edges(self) -> None:
        ends = self.edges or (self.low or 0.0, self.high or 0.0)
        if len({isinstance(end, str) for end in ends}) > 1:
            raise ValueError("edges are all numbers or all days")
        for end in ends:
            if isinstance(end, str) and not SKETCH.fullmatch(end):
                raise ValueError(f"{end!r} is no day; write it as 2026-01-31")
            number(end)
        found = self.points
        if (wrong := np.flatnonzero(np.diff(found) <= 0)).size:
            at = int(wrong[0])
            text = f"{found[at + 1]:g} follows {found[at]:g}"
            raise ValueError(f"bins overlap: {text}; write edges in increasing order")

    @property
    def dated(self) -> bool:
        """True if the edges are days."""
        return isinstance((self.edges or (self.low,))[0], str)

    @property
    def points(self) -> tuple[float, ...]:
        """The edges as numbers; days count from 1970."""
        if self.edges is not None:
            return tuple(map(number, self.edges))
        low, high = number(self.low or 0.0), number(self.high or 0.0)
        return tuple(np.linspace(low, high, (self.bins or 1) + 1).tolist())

    @property
    def size(self) -> int:
        """The number of cells: categories or bins, and one for other and missing values."""
        return (len(self.values) if self.values is not None else len(self.points) + 1) + 1


class Survival(Section):
    """[algorithm.survival.NAME]: Kaplan-Meier curves on the bins of a variable of times."""

    time: str
    """Variable of the time to the event, or to the last observation. Its first edge is 0."""
    event: str
    """Variable with categories."""
    happened: str
    """Category that means that the event happened."""
    group: str | None = None
    """Variable with one curve for each of its categories. Default: one curve."""


class Codebook(WithoutModel):
    """The tables of a study, over the records of all hospitals."""

    name: Literal["statistics"] = "statistics"
    rounds: Literal[1] = 1
    epochs: Literal[1] = 1
    variables: Mapping[Name, Variable]
    tables: Mapping[Name, Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]] = {}
    """Names of one or two variables, for each table."""
    survival: Mapping[Name, Survival] = {}
    min_patients: Positive = 10
    """Smaller counts are hidden, also 0, and each hidden count stays uncertain by as much."""
    records_per_patient: Positive = 1
    """Counted records of each patient: the first ones. The limits above grow with it."""
    epsilon: PositiveReal | None = None
    """Privacy budget of the codebook: each hospital adds noise to all counts, and none is hidden.
    Default: exact counts, of which small ones are hidden."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6

    @field_validator("variables")
    @classmethod
    def _some(cls, found: Mapping[str, Variable]) -> Mapping[str, Variable]:
        if not found:
            raise ValueError("there is no variable; write [algorithm.variables] and one below it")
        return found

    @model_validator(mode="after")
    def _fits(self) -> Codebook:
        if not (self.tables or self.survival):
            raise ValueError('there is no table; write [algorithm.tables] and ages = ["age"]')
        if both := self.tables.keys() & self.survival.keys():
            raise ValueError(f"two tables are called {min(both)!r}; rename one")
        for table, names in self.tables.items():
            self._require_known(f"tables.{table}", names)
            columns = [self.column(name) for name in names]
            if len(set(columns)) < len(columns):
                raise ValueError(f"tables.{table} has one column twice; write two columns")
        for table, curves in self.survival.items():
            self._check_survival(f"survival.{table}", curves)
        if unused := self.variables.keys() - set(sum(self.scopes.values(), ())):
            raise ValueError(f"no table uses {min(unused)!r}; remove the variable, or add a table")
        self._check_columns()
        if (cells := self.cells) > MOST_CELLS:
            raise ValueError(f"{cells} cells, more than {MOST_CELLS}; use coarser variables")
        return self

    def _require_known(self, place: str, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self.variables:
                known = ", ".join(self.variables)
                raise ValueError(f"{place}: there is no variable {name!r}; write one of {known}")

    def _check_survival(self, place: str, curves: Survival) -> None:
        used = [curves.time, curves.event, *([curves.group] if curves.group else [])]
        self._require_known(place, tuple(used))
        if len({self.column(name) for name in used}) < len(used):
            raise ValueError(f"{place} has one column twice; write different columns")
        time, event = self.variables[curves.time], self.variables[curves.event]
        if time.values is not None or time.dated or time.points[0] != 0:
            raise ValueError(f"{place}: the bins of {curves.time!r} do not cover the time from 0 "
                             "on; write numbers as edges, 0 first")  # fmt: skip
        if event.values is None or curves.happened not in event.values:
            raise ValueError(f"{place}: {curves.happened!r} is no category of {curves.event!r}; "
                             "write one of its values")  # fmt: skip
        if curves.group is not None and self.variables[curves.group].values is None:
            raise ValueError(f"{place}: {curves.group!r} has no categories; write values")

    def _check_columns(self) -> None:
        """Refuse a column that is numbers in one variable, and names or days in another."""
        for column, found in self.forms.items():
            if len(found) > 1:
                raise ValueError(f"the column {column!r} has {' and '.join(sorted(found))}; "
                                 "write one of them")  # fmt: skip

    def column(self, variable: str) -> str:
        """Return the column of a variable."""
        return self.variables[variable].column or variable

    @property
    def forms(self) -> dict[str, set[str]]:
        """The forms of each column: categories, days or numbers; a codebook has one of each."""
        found: dict[str, set[str]] = {}
        for name, one in self.variables.items():
            form = "categories" if one.values is not None else "days" if one.dated else "numbers"
            found.setdefault(self.column(name), set()).add(form)
        return found

    @property
    def scopes(self) -> Mapping[str, tuple[str, ...]]:
        """The variables of each table; of curves: groups, times, events."""
        curves = {
            name: (*([one.group] if one.group else []), one.time, one.event)
            for name, one in self.survival.items()
        }
        return {**self.tables, **curves}

    @property
    def cells(self) -> int:
        """The number of counts in the sum: it depends on the codebook alone."""
        sizes = (self.shape(names) for names in self.scopes.values())
        return sum(int(np.prod(size)) for size in sizes)

    def shape(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of cells of variables."""
        return tuple(self.variables[name].size for name in names)

    @property
    def least(self) -> int:
        """The smallest count that is released."""
        return self.min_patients * self.records_per_patient

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Return the demands of a codebook: two sums, and no training."""
        return Demands(exchanges=1, passes=1, steps=0, batch=1, cells=self.cells, drawn=1.0)


def number(bound: Bound) -> float:
    """Return a number, or a day counted from 1970 on."""
    if isinstance(bound, str):
        return float((date.fromisoformat(bound) - date(1970, 1, 1)).days)
    return float(bound)


ENTRY = Entry(
    Codebook,
    deferred("secure_fl.features.statistics.program:run_codebook"),
    trains_nothing=True,
    records="secure_fl.features.statistics.tables:silos_of",
    summary="tables of a codebook over all hospitals' records",
)
