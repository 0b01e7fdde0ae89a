"""What is wrong with a section's values, in words: the same for settings files and for Python.

Every fault has a place, what was found and what is allowed, and what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Place: TypeAlias = tuple[str | int, ...]

_WANTED: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "int_parsing": "a whole number",
        "float_type": "a number",
        "float_parsing": "a number",
        "string_type": 'text in quotes, as in "text"',
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "tuple_type": "a list, as in [1, 2]",
        "model_type": "a table",
        "dict_type": "a table",
        "model_attributes_type": "a table",
        "greater_than": "a number above {gt:g}",
        "greater_than_equal": "a number from {ge:g} on",
        "less_than": "a number below {lt:g}",
        "less_than_equal": "a number up to {le:g}",
        "literal_error": "{expected}",
        "string_too_short": "text that is not empty",
        "string_pattern_mismatch": "1 to 64 letters, digits, '.', '_' or '-', "
        "a letter or digit first",
        "too_short": "at least {min_length} of them",
        "value_error": "{error}",
    }
)


def faults(
    cls: type[BaseModel], errors: list[ErrorDetails], at: Place = ()
) -> Iterator[tuple[Place, str, str]]:
    """Where, what and what to do: one of each field, for a union reports its members in turn."""
    by_key: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        by_key.setdefault(_real(cls, error["loc"]), []).append(error)
    for key, found in by_key.items():
        first = found[0]
        name = str(key[-1]) if key else ""
        if first["type"] == "extra_forbidden":
            allowed = list(_class_at(cls, key[:-1]).model_fields)
            yield (*at, *key), "there is no such field", nearest(name, allowed)
        elif first["type"] == "missing":
            yield (*at, *key), "this field is missing", f"add {name} = ..."
        else:
            wanted = " or ".join(dict.fromkeys(_wanted(error) for error in found))
            yield (*at, *key), f"found {_shown(first['input'])}; allowed: {wanted}", _meant(first)


def nearest(name: str, allowed: list[str]) -> str:
    """Suggest the nearest name, and list all."""
    near = get_close_matches(name, allowed, n=1, cutoff=0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"allowed: {', '.join(allowed)}"


def sections(annotation: Any) -> Iterator[type[Any]]:
    """Find the section classes that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from sections(inner)


def _wanted(error: ErrorDetails) -> str:
    template = _WANTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else error["msg"]


def _meant(error: ErrorDetails) -> str:
    """The word of a few that was probably meant."""
    allowed = re.findall("'([^']+)'", error.get("ctx", {}).get("expected", ""))
    near = get_close_matches(str(error["input"]), allowed, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near and error["type"] == "literal_error" else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"the table {text}" if isinstance(value, dict) else text


def _real(cls: type[BaseModel], place: tuple[str | int, ...]) -> Place:
    """Drop what pydantic adds to a place to tell the members of a union apart."""
    key: Place = ()
    here: type[BaseModel] | None = cls
    for part in place:
        if isinstance(part, int):
            key = (*key, part)
        elif here is not None:
            key = (*key, part)
            field = here.model_fields.get(part)
            here = next(sections(field.annotation), None) if field else None
    return key


def _class_at(cls: type[BaseModel], key: Place) -> type[BaseModel]:
    for part in key:
        if isinstance(part, str):
            cls = next(sections(cls.model_fields[part].annotation))
    return cls
