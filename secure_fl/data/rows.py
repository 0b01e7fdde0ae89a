"""Rows of any file: named values, places, and the columns of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from secure_fl.errors import DataError
from secure_fl.settings import Section

NAMED = 12  # labels in a message

Field = Literal[
    "id", "patient", "text", "pair", "label", "tokens", "tags", "history", "candidates", "clicks"
]


class Columns(Section):
    """Columns of the fields. Default: the first of the usual names that exists."""

    id: str | None = None
    patient: str | None = None
    """Patient of a record. A patient is in one split only; codebooks and DP count patients.
    Default: every record is a patient of its own."""
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    tokens: str | None = None
    tags: str | None = None
    history: str | None = None
    candidates: str | None = None
    clicks: str | None = None


DEFAULT_NAMES: Mapping[Field, tuple[str, ...]] = MappingProxyType(
    {
        "id": ("id", "idx", "guid"),
        "patient": (),  # only the settings can name a column of patients
        "text": ("text", "text1", "sentence", "sentence1", "premise", "prompt"),
        "pair": ("pair", "text2", "sentence2", "hypothesis", "completion"),
        "label": ("label", "labels", "score"),
        "tokens": ("tokens", "words"),
        "tags": ("tags", "ner_tags"),
        "history": ("history",),
        "candidates": ("candidates",),
        "clicks": ("clicks",),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """The named values of one record, and its place in its file (counted from 1)."""

    values: Mapping[str, object]
    file: str
    number: int
    unit: Literal["line", "row"] = "line"
    header: int | None = None  # the line that names the columns of all rows

    def error(self, what: str, *, field: str | None = None, fix: str = "") -> DataError:
        """An error that names this place."""
        return DataError(what, fix=fix, file=self.file, **{self.unit: self.number}, field=field)


def _name(row: Row, field: Field, columns: Columns) -> str | None:
    chosen: str | None = getattr(columns, field)
    for name in DEFAULT_NAMES[field] if chosen is None else (chosen,):
        if name in row.values:
            return name
    if chosen is not None:
        raise _missing(row, field, (chosen,))
    return None


def optional(row: Row, field: Field, columns: Columns) -> object:
    """A field's value; `None` if the file has no column for it."""
    name = _name(row, field, columns)
    return None if name is None else row.values[name]


def required(row: Row, field: Field, columns: Columns) -> object:
    """A field's value; refuse a file without a column for it."""
    name = _name(row, field, columns)
    if name is None:
        raise _missing(row, field, DEFAULT_NAMES[field])
    return row.values[name]


def _missing(row: Row, field: Field, wanted: Sequence[str]) -> DataError:
    existing = ", ".join(shown(name) for name in row.values) or "none"
    alike = [name for name in row.values if name.strip().lower() in {w.lower() for w in wanted}]
    fix = f"{shown(alike[0])} differs in upper and lower case or spaces; " if alike else ""
    fix += (
        f"call it {' or '.join(wanted)}, or name yours: below [data] or [[data.set]], "
        f'columns = {{ {field} = "..." }}; --column {field}=... for commands; '
        f"Columns({field}=...) in Python"
    )
    row = row if row.header is None else replace(row, number=row.header)
    return row.error(f"there is no such column; columns: {existing}", field=field, fix=fix)


def of_patient(patient: str, record: str) -> str:
    """The id of a patient's record: the patient, "/", and the record."""
    return f"{patient.replace('/', '_')}/{record}"


def patient_of(id: str) -> str:
    """The patient in a record's id; a record without a patient is its own."""
    return id.partition("/")[0]


def shown(name: str) -> str:
    """A column's name or a label for display, withheld if it could be a record's text."""
    return name if is_name(name) else f"(a name of {len(name)} characters, withheld)"


def named(labels: Sequence[str]) -> str:
    """List labels for a message, and count those beyond the first ones."""
    more = len(labels) - NAMED
    return ", ".join(labels[:NAMED]) + (f" and {more} more" if more > 0 else "")


def is_name(text: str) -> bool:
    """True for a short text without spaces, as names are and sentences are not."""
    return re.fullmatch(r"[A-Za-z_][\w.-]{0,31}|\d{1,2}", text) is not None
