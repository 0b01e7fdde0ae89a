"""From pydantic's findings to errors that a person can act on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from secure_fl.config.toml import Key, Text, dotted
from secure_fl.errors import SettingsError
from secure_fl.settings import Section

NONE = "none"  # how a settings file says "nothing" where nothing is not the default
S = TypeVar("S", bound=Section)

_WANTED: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "string_type": 'text in quotes, as in "text"',
        "bool_type": "true or false",
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
    }
)


def validate(cls: type[S], raw: Mapping[str, Any], at: Key, text: Text, base: Any = None) -> S:
    """Build a section from TOML's values, strictly: "5" is no number and 1 is not true."""
    plain = json.dumps(_without_none(cls, raw))  # JSON mode: lists may fill tuples, nothing else
    try:
        return cls.model_validate_json(plain, strict=True, context={"base": base})
    except ValidationError as error:
        faults = list(_merged(cls, error.errors(include_url=False), at))
    if len(faults) == 1:
        key, what, fix = faults[0]
        raise text.error(what, key, fix=fix)
    shown = [_listed(text, *found) for found in faults]
    raise SettingsError(f"{len(shown)} faults\n" + "\n".join(shown), file=text.file)


def sections(annotation: Any) -> Iterator[type[Section]]:
    """Find the section classes that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from sections(inner)


def nullable(annotation: Any) -> bool:
    """Whether "none" means nothing for a field: it may be None, and no text fits it."""
    parts = list(_parts(annotation))
    return type(None) in parts and str not in parts


def nearest(name: str, allowed: list[str]) -> str:
    """Suggest the nearest name, and list all."""
    near = get_close_matches(name, allowed, n=1, cutoff=0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"allowed: {', '.join(allowed)}"


def _parts(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        return
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        yield from _parts(part)


def _without_none(cls: type[Section], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read "none" as nothing, in a section and in those inside it."""
    plain = {}
    for name, value in raw.items():
        field = cls.model_fields.get(name)
        inner = list(sections(field.annotation)) if field else []
        if field and value == NONE and nullable(field.annotation):
            value = None
        elif inner and isinstance(value, dict):
            value = _without_none(inner[0], value)
        elif inner and isinstance(value, list):
            value = [_without_none(inner[0], v) if isinstance(v, dict) else v for v in value]
        plain[name] = value
    return plain


def _merged(
    cls: type[Section], errors: list[ErrorDetails], at: Key
) -> Iterator[tuple[Key, str, str]]:
    """One finding per field: a union reports each of its members in turn."""
    by_key: dict[Key, list[ErrorDetails]] = {}
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
            yield (*at, *key), f"found {_shown(first['input'])}; allowed: {wanted}", ""


def _wanted(error: ErrorDetails) -> str:
    template = _WANTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else error["msg"]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"the table {text}" if isinstance(value, dict) else text


def _real(cls: type[Section], place: tuple[str | int, ...]) -> Key:
    """Drop what pydantic adds to a place to tell the members of a union apart."""
    key: Key = ()
    here: type[Section] | None = cls
    for part in place:
        if isinstance(part, int):
            key = (*key, part)
        elif here is not None:
            key = (*key, part)
            field = here.model_fields.get(part)
            here = next(sections(field.annotation), None) if field else None
    return key


def _class_at(cls: type[Section], key: Key) -> type[Section]:
    for part in key:
        if isinstance(part, str):
            cls = next(sections(cls.model_fields[part].annotation))
    return cls


def _listed(text: Text, key: Key, what: str, fix: str) -> str:
    error = text.error(what, key, fix=fix)
    places = [f"{k} {v}" for k, v in error.where.items() if k in ("line", "option")]
    return f"  {', '.join([*places, dotted(key)])}: {what}" + (f" -> {fix}" if fix else "")
