"""Reads the meaning of every settings and policy field off the source of its class.

The comment behind a field in the source is its explanation, so there is one place for both.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from secure_fl.config.toml import literal
from secure_fl.settings import Section

NOTHING = "–"  # left out, a field holds nothing
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class Described:
    """One field."""

    name: str
    allowed: str
    default: str  # "" if it must be given
    comment: str


def described(section: type[Section]) -> Iterator[Described]:
    """The fields of a section that are values, in their order; sections in it stand alone."""
    schema = section.model_json_schema()
    comments: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, Section) and base is not Section:
            comments |= _comments(base)
    for name, field in section.model_fields.items():
        if isinstance(field.default, Section) or _is_section(schema["properties"][name], schema):
            continue
        required = field.is_required()
        default = "" if required else _value(field.default)
        allowed = _allowed(schema["properties"][name], schema)
        yield Described(name, allowed, default, comments.get(name, ""))


@lru_cache(maxsize=64)
def _comments(section: type[Section]) -> Mapping[str, str]:
    """Name -> the comment behind its line, and those on the lines right below it."""
    source = inspect.getsource(section)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found: dict[str, str] = {}
    name = ""
    for number, line in enumerate(source.splitlines(), 1):
        if begun := re.match(r"    ([a-z][a-z0-9_]*): ", line):
            name = begun[1]
        elif not line.startswith("    #"):
            name = ""
        if name and number in comments:
            text = comments[number].replace("None:", "left out:")
            found[name] = f"{found.get(name, '')} {text}".strip()
    return found


def _is_section(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether a field holds a table of its own, or may."""
    options = schema.get("anyOf", [schema])
    return any("properties" in _resolved(option, root) for option in options)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return found


def _allowed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    schema = _resolved(schema, root)
    if "anyOf" in schema:
        options = [s for s in schema["anyOf"] if s.get("type") != "null"]
        return " or ".join(dict.fromkeys(_allowed(option, root) for option in options))
    if "const" in schema or "enum" in schema:
        return ", ".join(_value(v) for v in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "text"))
    if kind == "array":
        each = schema.get("prefixItems", [schema.get("items", {})])  # of a pair, each has its own
        return f"a list: {', '.join(_allowed(one, root) for one in each)}"
    words = {"integer": "a number", "number": "a real", "boolean": "true, false", "string": "text"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in BOUNDS.items() if name in schema]
    return " ".join([words.get(kind, kind), *bounds])


def _value(value: Any) -> str:
    if value is None:
        return NOTHING
    return literal(list(value) if isinstance(value, tuple) else value)
