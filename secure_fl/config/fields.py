"""Descriptions of settings: the fields of a section, with allowed values, default and docstring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from secure_fl.config.toml import literal
from secure_fl.settings import Section

NO_DEFAULT = "–"  # the default is None: the field has no value
_TYPES = {"integer": "integer", "number": "number", "string": "string", "object": "table"}


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One field of a section."""

    name: str
    allowed: str
    default: str  # "" if the field is required
    help: str


def describe_fields(section: type[Section]) -> Iterator[FieldDescription]:
    """Describe the fields that hold values, in their order; nested sections are left to others."""
    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        property_schema = schema["properties"][name]
        if isinstance(field.default, Section) or _is_section(property_schema, schema):
            continue
        default = "" if field.is_required() else _value(field.default)
        allowed = _allowed(property_schema, schema)
        yield FieldDescription(name, allowed, default, _help(section, name))


def _help(section: type[Section], name: str) -> str:
    """Return a field's docstring, or the inherited one if a subclass only changes the default."""
    bases = (base.model_fields for base in section.__mro__ if issubclass(base, Section))
    texts = (fields[name].description for fields in bases if name in fields)
    return " ".join(next(filter(None, texts), "").split())


def _is_section(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Check if a field holds a table with fields of its own, or may hold one."""
    options = schema.get("anyOf", [schema])
    return any("properties" in _resolved(option, root) for option in options)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    definition: Mapping[str, Any] = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return definition


def _allowed(schema: Mapping[str, Any], root: Mapping[str, Any], plural: str = "") -> str:
    schema = _resolved(schema, root)
    if "anyOf" in schema:
        options = [s for s in schema["anyOf"] if s.get("type") != "null"]
        return " or ".join(dict.fromkeys(_allowed(option, root, plural) for option in options))
    if "const" in schema or "enum" in schema:
        return ", ".join(_value(v) for v in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "string")
    if kind == "boolean":
        return "true, false"
    if kind == "array" and "prefixItems" in schema:
        return f"list: {', '.join(_allowed(item, root) for item in schema['prefixItems'])}"
    if kind == "array":
        return f"list of {_allowed(schema['items'], root, 's')}"
    return " ".join(filter(None, [_TYPES[kind] + plural, _bounds(schema)]))


def _bounds(schema: Mapping[str, Any]) -> str:
    """Write limits as an interval if there are two, as in [0, 1)."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    left = f"[{low:g}" if low is not None else f"({above:g}" if above is not None else ""
    right = f"{high:g}]" if high is not None else f"{below:g})" if below is not None else ""
    if left and right:
        return f"in {left}, {right}"
    if left:
        return ("≥ " if low is not None else "> ") + left[1:]
    return (("≤ " if high is not None else "< ") + right[:-1]) if right else ""


def _value(value: Any) -> str:
    if value is None:
        return NO_DEFAULT
    return literal(list(value) if isinstance(value, tuple) else value)
