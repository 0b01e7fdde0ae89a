"""Validation of sections that were read from TOML: errors name the line or option."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError

from secure_fl.config.toml import Key, SettingsText, odd_values
from secure_fl.errors import SettingsError
from secure_fl.field_errors import error_list, field_errors, sections
from secure_fl.settings import Section

NONE = "none"  # a settings file writes this for None if None is not the default
S = TypeVar("S", bound=Section)


def validate(
    cls: type[S], raw: Mapping[str, Any], at: Key, text: SettingsText, base: Any = None
) -> S:
    """Build a section from TOML's values, strictly: "5" is not a number, 1 is not true."""
    section = section_or_errors(cls, raw, at, text, base)
    if isinstance(section, list):
        raise joined(section)
    return section


def section_or_errors(
    cls: type[S], raw: Mapping[str, Any], at: Key, text: SettingsText, base: Any = None
) -> S | list[SettingsError]:
    """Build a section as `validate` does, but return all errors."""
    odd = {(*at, *key): f"{value}; no field takes that" for key, value in odd_values(dict(raw))}
    errors = [text.error(what, key) for key, what in odd.items()]
    # JSON mode lets lists fill tuples and converts nothing else. Dates become null.
    plain = json.dumps(_without_none(cls, raw), default=lambda _: None)
    try:
        section = cls.model_validate_json(plain, strict=True, context={"base": base})
    except ValidationError as error:
        others = field_errors(cls, error.errors(include_url=False), at)
        return errors + [
            text.error(what, key, fix=fix) for key, what, fix in others if key not in odd
        ]
    return errors or section


def joined(errors: Sequence[SettingsError]) -> SettingsError:
    """Join errors into one that lists them."""
    if len(errors) == 1:
        return errors[0]
    text = error_list((_place(e), e.what, e.fix if e.fix != e.advice else "") for e in errors)
    return SettingsError(text, file=errors[0].where.get("file"))


def nullable(annotation: Any) -> bool:
    """Check if "none" means None for a field: None is allowed, and strings are not."""
    parts = list(_parts(annotation))
    return type(None) in parts and str not in parts


def _parts(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        return
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        yield from _parts(part)


def _without_none(cls: type[Section], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Replace "none" by None, in a section and its nested sections."""
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


def _place(error: SettingsError) -> str:
    places = [f"{k} {v}" for k, v in error.where.items() if k in ("line", "option")]
    return ", ".join([*places, str(error.where.get("field"))])
