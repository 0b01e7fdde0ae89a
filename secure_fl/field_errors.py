"""Translation of pydantic's errors into sentences, the same for settings files and Python.

Every field error has a place, the value that was found with what is allowed, and a fix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from secure_fl.errors import nearest

Place: TypeAlias = tuple[str | int, ...]

_ALLOWED: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "int_parsing": "an integer",
        "float_type": "a number",
        "float_parsing": "a number",
        "string_type": 'a string in quotes, as in "text"',
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "tuple_type": "a list, as in [1, 2]",
        "model_type": "a table",
        "dict_type": "a table",
        "model_attributes_type": "a table",
        "greater_than": "a number above {gt:g}",
        "greater_than_equal": "a number of at least {ge:g}",
        "less_than": "a number below {lt:g}",
        "less_than_equal": "a number of at most {le:g}",
        "literal_error": "{expected}",
        "string_too_short": "a string that is not empty",
        "string_pattern_mismatch": "1 to 64 letters, digits, '.', '_' or '-', "
        "starting with a letter or digit",
        "too_short": "at least {min_length} entries",
        "value_error": "{error}",
    }
)


class FieldError(NamedTuple):
    """An error of one field."""

    place: Place
    what: str
    fix: str


def field_errors(
    cls: type[BaseModel], errors: list[ErrorDetails], at: Place = ()
) -> Iterator[FieldError]:
    """Translate errors, one for each field: pydantic reports each member of a union."""
    by_key: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        by_key.setdefault(_field_place(cls, error["loc"]), []).append(error)
    for key, of_field in by_key.items():
        first = of_field[0]
        inside = (other for other in by_key if len(other) > len(key) and other[: len(key)] == key)
        if first["type"] == "too_short" and any(inside):
            continue  # pydantic counts the valid entries only
        if first["type"] == "extra_forbidden":
            within = _class_at(cls, key[:-1])
            allowed = list(within.model_fields) if within is not None else []
            what, fix = "there is no such field", nearest(str(key[-1]), allowed)
            fix = _in_a_section_above(cls, (*at, *key), len(at)) or fix
        elif first["type"] == "missing":
            what, fix = "this field is missing", f"add {key[-1]} = ..."
        else:
            allowed_values = " or ".join(dict.fromkeys(map(_allowed, of_field)))
            what = f"{_found(first)}; allowed: {allowed_values}"
            fix = _suggestion(first)
        yield FieldError((*at, *key), what, fix)


def error_list(errors: Iterable[tuple[str, str, str]]) -> str:
    """List several errors, each with its place, what is wrong, and the fix."""
    lines = [f"  {place}: {what}" + (f" -> {fix}" if fix else "") for place, what, fix in errors]
    return "\n".join([f"{len(lines)} errors", *lines])


def sections(annotation: Any) -> Iterator[type[Any]]:
    """Find the section classes in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from sections(inner)


def _allowed(error: ErrorDetails) -> str:
    template = _ALLOWED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else error["msg"]


def _suggestion(error: ErrorDetails) -> str:
    """Suggest the allowed word that is most similar."""
    allowed = re.findall("'([^']+)'", error.get("ctx", {}).get("expected", ""))
    near = get_close_matches(str(error["input"]), allowed, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near and error["type"] == "literal_error" else ""


def _found(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "value_error" and isinstance(value, dict):  # a rule about several fields
        return "these values do not fit together"
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"found the table {text}" if isinstance(value, dict) else f"found {text}"


def in_python(cls: type[BaseModel], place: Place, what: str) -> str:
    """Rephrase a problem of a file for a program, where a table is an object."""
    if not what.endswith("allowed: a table"):
        return what
    kind = _class_at(cls, place)
    settings = f"{kind.__name__}(...) or " if kind is not None else ""
    return what.removesuffix("a table") + f"{settings}a dictionary"


def _field_place(cls: type[BaseModel], place: tuple[str | int, ...]) -> Place:
    """Remove the parts that pydantic adds to a place to distinguish members of a union."""
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


def _in_a_section_above(cls: type[BaseModel], key: Place, first: int) -> str:
    """Describe the section around an unknown field's one that has a field of this name, if any."""
    for end in reversed(range(first, len(key) - 1)):
        above = _class_at(cls, key[first:end])
        if above is not None and key[-1] in above.model_fields:
            name = ".".join(str(part) for part in (*key[:end], key[-1]))
            return f"did you mean {name}?"
    return ""


def _class_at(cls: type[BaseModel], key: Place) -> type[BaseModel] | None:
    """Return the class of settings at a place; None: the place is a plain mapping."""
    here: type[BaseModel] | None = cls
    for part in key:
        if isinstance(part, str):
            field = here.model_fields.get(part) if here is not None else None
            here = next(sections(field.annotation), None) if field is not None else None
    return here
