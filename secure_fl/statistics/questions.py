"""Questions, and the file that lists them as [[question]] tables.

    [[question]]
    name = "labels"
    kind = "categories"
    field = "label"
    values = ["ade", "no-ade"]

All values and edges are in the question: bins that followed from the records would tell of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from pydantic import Field, model_validator

from secure_fl.config import toml as config_toml
from secure_fl.config.data import PartyName
from secure_fl.config.toml import Text
from secure_fl.config.validation import joined, section_or_errors
from secure_fl.errors import SettingsError, nearest
from secure_fl.settings import PositiveReal, Section

FREE_TEXT = frozenset({"text", "pair", "tokens", "prompt", "completion", "history", "candidates"})
NAMES = frozenset({"id", "patient"})  # no question is about one record
MOST_CELLS = 1 << 16
Values: TypeAlias = Annotated[tuple[str, ...], Field(min_length=1, max_length=512)]
Bound: TypeAlias = float | str  # a number, or a day as "2026-01-31"


class Question(Section):
    """Common fields of questions."""

    name: PartyName
    kind: str
    where: Mapping[str, str | Values] = {}
    """Only records with one of these values in a field."""
    epsilon: PositiveReal | None = None
    """Epsilon per patient of the added noise. Default: an exact answer."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields it asks for, conditions included."""
        return tuple(self.where)

    @property
    def categorical(self) -> tuple[str, ...]:
        """The fields whose values it names."""
        return tuple(self.where)

    @model_validator(mode="after")
    def _no_free_text(self) -> Question:
        for field in self.categorical:
            if field in FREE_TEXT | NAMES:
                raise ValueError(
                    f'a field with few values: "{field}" is a record\'s own text or name, and '
                    "a question that names its values asks for single records"
                )
        return self


class Count(Question):
    """How many records and patients there are."""


class Categories(Question):
    """How often each value of a field occurs; of entities, each type."""

    field: str
    values: Values

    @property
    def fields(self) -> tuple[str, ...]:
        """Its field, and conditions."""
        return (self.field, *self.where)

    @property
    def categorical(self) -> tuple[str, ...]:
        """Its field, and conditions."""
        return self.fields


class Histogram(Question):
    """Numbers or days in bins of equal width; mean, variance and quantiles follow."""

    field: str
    """A number, a day, or words or characters: the lengths of texts."""
    low: Bound
    high: Bound
    bins: Annotated[int, Field(ge=1, le=512)] = 20

    @property
    def fields(self) -> tuple[str, ...]:
        """Its field, and conditions."""
        return (self.field, *self.where)

    @property
    def edges(self) -> tuple[float, float]:
        """The bounds; dates as days since 1970."""
        return number(self.low), number(self.high)

    @property
    def dated(self) -> bool:
        """True for a question about dates."""
        return isinstance(self.low, str)

    @model_validator(mode="after")
    def _a_range(self) -> Histogram:
        if isinstance(self.low, str) != isinstance(self.high, str):
            raise ValueError("low and high both numbers, or both days")
        try:
            low, high = self.edges
        except ValueError:
            raise ValueError('days as "2026-01-31"') from None
        if not low < high < math.inf or low == -math.inf:
            raise ValueError("low below high, both finite")
        return self


class CrossTable(Question):
    """How often two values occur together."""

    rows: str
    row_values: Values
    columns: str
    column_values: Values

    @property
    def fields(self) -> tuple[str, ...]:
        """Both fields, and conditions."""
        return (self.rows, self.columns, *self.where)

    @property
    def categorical(self) -> tuple[str, ...]:
        """Both fields, and conditions."""
        return self.fields

    @model_validator(mode="after")
    def _small_enough(self) -> CrossTable:
        if len(self.row_values) * len(self.column_values) > MOST_CELLS:
            raise ValueError(f"at most {MOST_CELLS} cells")
        return self


class Vocabulary(Question):
    """How many different words the hospitals' texts hold together, by a sketch."""

    buckets: Annotated[int, Field(ge=256, le=1 << 18)] = 1 << 14

    @property
    def fields(self) -> tuple[str, ...]:
        """The texts, of which nothing but a sketch leaves."""
        return ("text", *self.where)


class Survival(Question):
    """Kaplan-Meier curves by groups, and the log-rank test, from a table of times and events."""

    time: str
    event: str
    """1 or true: the event occurred. 0 or false: observed without event until then."""
    group: str | None = None
    groups: Values = ("all",)
    horizon: PositiveReal
    """Later times count as observed until the horizon."""
    step: PositiveReal = 1.0
    """Times are rounded up to multiples of it; whole days stay exact."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Times, events, groups, and conditions."""
        group = () if self.group is None else (self.group,)
        return (self.time, self.event, *group, *self.where)

    @property
    def categorical(self) -> tuple[str, ...]:
        """The group, and conditions."""
        return (*(() if self.group is None else (self.group,)), *self.where)

    @property
    def steps(self) -> int:
        """How many times there are, 0 apart."""
        return math.ceil(self.horizon / self.step - 1e-9)

    @model_validator(mode="after")
    def _few_steps(self) -> Survival:
        if self.group is not None and self.groups == ("all",):
            raise ValueError("groups = [...], the values of the group's field")
        if (self.steps + 1) * 2 * len(self.groups) > MOST_CELLS:
            raise ValueError(f"a longer step: at most {MOST_CELLS} cells")
        return self


class Duplicates(Question):
    """How many records of one hospital another one holds, too."""

    buckets: Annotated[int, Field(ge=256, le=1 << 18)] = 1 << 15

    @property
    def fields(self) -> tuple[str, ...]:
        """The texts, of which nothing but a sketch leaves."""
        return ("text", *self.where)


KINDS: Mapping[str, type[Question]] = MappingProxyType(
    {
        "count": Count,
        "categories": Categories,
        "histogram": Histogram,
        "table": CrossTable,
        "vocabulary": Vocabulary,
        "survival": Survival,
        "duplicates": Duplicates,
    }
)
SKETCHES = ("vocabulary", "duplicates")  # of which no noise is made


def number(bound: Bound) -> float:
    """A number, or a day counted from 1970 on."""
    if isinstance(bound, str):
        return float((date.fromisoformat(bound) - date(1970, 1, 1)).days)
    return float(bound)


def load(path: str | Path) -> tuple[Question, ...]:
    """Read a file of questions; every fault has its line and what is allowed."""
    file = Path(path)
    content = config_toml.read(
        file, "questions", missing="check the path", instead="give the TOML file, not the data"
    )
    return loads(content, str(file))


def loads(content: str, file: str | None = None) -> tuple[Question, ...]:
    """Read questions from a text."""
    tree = config_toml.parse(content, file)
    text = Text(file, config_toml.lines(content))
    for name in tree:
        if name != "question":
            fix = nearest(name, ["question"])
            raise text.error("there is no such section", (name,), fix=fix)
    return of_tables(tree.get("question"), text)


def of_tables(raws: Any, text: Text) -> tuple[Question, ...]:
    """Questions as TOML holds them; `text` is where they stand."""
    if not raws or not isinstance(raws, list) or not all(isinstance(raw, dict) for raw in raws):
        fix = 'write [[question]], and below it name = "...", kind = "..." and its fields'
        raise SettingsError("there is no question", fix=fix, file=text.file, field="question")
    asked: list[Question] = []
    errors: list[SettingsError] = []
    for place, raw in enumerate(raws):
        found = _question(raw, place, text)
        if isinstance(found, list):
            errors += found
        elif found.name in [one.name for one in asked]:
            key = ("question", place, "name")
            errors.append(text.error(f"found {found.name!r} a second time", key))
        else:
            asked.append(found)
    if errors:
        raise joined(errors)
    return tuple(asked)


def _question(raw: Mapping[str, Any], place: int, text: Text) -> Question | list[SettingsError]:
    key = ("question", place)
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        what = "this field is missing" if kind is None else f"found {str(kind)[:60]!r}"
        return [text.error(what, (*key, "kind"), fix=nearest(str(kind), list(KINDS)))]
    for field, found in config_toml.odd_values(dict(raw)):
        fix = 'days stand in quotes, as in "2026-01-31"'
        return [text.error(f"{found}; no field takes that", (*key, *field), fix=fix)]
    made = section_or_errors(KINDS[kind], raw, key, text)
    if isinstance(made, list) or made.epsilon is None or kind not in SKETCHES:
        return made
    return [text.error("no noise is made for sketches", (*key, "epsilon"), fix="leave it out")]


def described(questions: Sequence[Question]) -> str:
    """Describe the questions, one line each, equal at all sites."""
    return "\n".join(question.model_dump_json() for question in questions)
