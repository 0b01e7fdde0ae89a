"""From pydantic's findings to errors that a person can act on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError

from secure_fl.config.toml import Key, Text, odd_values, without_odd
from secure_fl.errors import SettingsError
from secure_fl.faults import faults, sections
from secure_fl.settings import Section

NONE = "none"  # how a settings file says "nothing" where nothing is not the default
S = TypeVar("S", bound=Section)


def validate(cls: type[S], raw: Mapping[str, Any], at: Key, text: Text, base: Any = None) -> S:
    """Build a section from TOML's values, strictly: "5" is no number and 1 is not true."""
    found = examined(cls, raw, at, text, base)
    if isinstance(found, list):
        raise together(found)
    return found


def examined(
    cls: type[S], raw: Mapping[str, Any], at: Key, text: Text, base: Any = None
) -> S | list[SettingsError]:
    """As `validate`, but all that is wrong is returned."""
    odd = {(*at, *key): f"{found}; no field takes that" for key, found in odd_values(dict(raw))}
    wrong = [text.error(what, key) for key, what in odd.items()]
    # JSON mode: lists may fill tuples, nothing else. What JSON has no word for becomes null.
    plain = json.dumps(_without_none(cls, without_odd(dict(raw))))
    try:
        made = cls.model_validate_json(plain, strict=True, context={"base": base})
    except ValidationError as error:
        found = faults(cls, error.errors(include_url=False), at)
        return wrong + [
            text.error(what, key, fix=fix) for key, what, fix in found if key not in odd
        ]
    return wrong or made


def together(errors: Sequence[SettingsError]) -> SettingsError:
    """One error that lists them all."""
    if len(errors) == 1:
        return errors[0]
    lines = "\n".join(map(_listed, errors))
    return SettingsError(f"{len(errors)} faults\n{lines}", file=errors[0].where.get("file"))


def nullable(annotation: Any) -> bool:
    """Whether "none" means nothing for a field: it may be None, and no text fits it."""
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


def _listed(error: SettingsError) -> str:
    places = [f"{k} {v}" for k, v in error.where.items() if k in ("line", "option")]
    own = error.fix if error.fix != error.advice else ""
    place = ", ".join([*places, str(error.where.get("field"))])
    return f"  {place}: {error.what}" + (f" -> {own}" if own else "")
