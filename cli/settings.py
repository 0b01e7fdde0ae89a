"""`secure-fl settings`: reference of all fields of settings files and site policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from secure_fl.errors import nearest

if TYPE_CHECKING:
    from secure_fl.settings import Section

POLICY = "site"  # sections from here on belong to a hospital's own file
HEAD = """\
# Settings

Every field with its type and default (–: no default; blank: required). Errors in a file name the
line and the allowed values. `secure-fl settings training.dp` shows one section.

Environment variables:

- `SECURE_FL_PASSPHRASE` opens key files without a prompt.
- `SECURE_FL_KEYS` is the folder of keys if `--keys` is not given.
- `SECURE_FL_DEBUG=1` shows tracebacks.
- `SECURE_FL_SCRYPT_LOG_N` sets the cost of guessing a passphrase, for files written from then on.
"""
SITE = """\
# A site's policy

A hospital's own file, `site.toml` ([pilot.md](pilot.md#rules)). The tables `[site.dp]`,
`[site.noise]`, `[site.statistics]` ([statistics.md](statistics.md)) and `[site.approval]`
([pilot.md](pilot.md#approvals-on-record)) belong to `[site]`."""


def sections() -> Mapping[str, type[Section]]:
    """Return the sections of all files by their printed names."""
    from secure_fl import settings
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.config import data as config_data
    from secure_fl.config.build import RunSettings
    from secure_fl.data.rows import Columns
    from secure_fl.features import load
    from secure_fl.policy import policy_file

    return {
        "run": RunSettings,
        "task": settings.TaskSettings,
        "data, a built-in corpus": config_data.CorpusData,
        "data, one source": config_data.SourceData,
        "data.columns": Columns,
        "[data.party]": config_data.PartyFiles,
        "model": settings.ModelSettings,
        "model.adapter": settings.AdapterSettings,
        "training": settings.TrainingSettings,
        "training.dp": settings.DPSettings,
        "protection": settings.ProtectionSettings,
        "protection.noise": settings.NoiseSettings,
        **load("settings"),
        "policy": settings.PolicySettings,
        **{f"algorithm, {name}": entry.settings for name, entry in ALGORITHMS.items()},
        POLICY: policy_file.SitePolicy,
        "site.dp": policy_file.DPLimits,
        "site.noise": policy_file.NoiseLimits,
        **_of_features(),
        "site.approval": policy_file.ApprovalRule,
        "[data.set]": policy_file.DataSet,
        "keys": policy_file.KeysSettings,
    }


def _of_features() -> dict[str, type[Section]]:
    """Return the tables below [site] that features add."""
    from secure_fl.field_errors import sections as sections_in
    from secure_fl.policy.site_rules import site_rules

    return {
        f"site.{name}": section
        for rules in site_rules()
        for name, field in rules.fields.model_fields.items()
        for section in sections_in(field.annotation)
    }


@click.command(
    epilog="""\b
Examples:
  secure-fl settings                 the names of all sections
  secure-fl settings training.dp
  secure-fl settings fedid           one algorithm
  secure-fl docs settings            all sections, as a page"""
)
@click.argument("name", required=False)
def settings(name: str | None) -> None:
    """Explain the fields of a section: type, default and meaning."""
    if name is None:
        click.echo("\n".join(sections()))
        return
    named = _named(name)
    if not named:
        known = list(dict.fromkeys(map(_typed, sections())))
        raise click.UsageError(f"there is no section {name!r}: {nearest(name, known)}")
    for title, section in named.items():
        click.echo(f"[{title}]")
        for d in describe_fields(section):
            field = f"{d.name} = {d.default}" if d.default not in ("", NO_DEFAULT) else d.name
            required = "" if d.default else "; required"
            click.echo(f"  {field:<34} {d.allowed}{required}{': ' * bool(d.help)}{d.help}")


def _named(name: str) -> Mapping[str, type[Section]]:
    """Return the sections with this name: "dp" is a table of "training" and of "site"."""

    def names(title: str) -> tuple[str, ...]:
        typed = _typed(title)
        return title, title.split(",")[0], typed, typed.rpartition(".")[2]

    return {title: section for title, section in sections().items() if name in names(title)}


def _typed(title: str) -> str:
    """Return what a user types for a section: no brackets, and an algorithm's bare name."""
    kind, _, name = title.strip("[]").partition(", ")
    return name if kind == "algorithm" else kind


def page() -> str:
    """Return all sections as Markdown."""
    return "\n".join([HEAD, *_parts()]).rstrip() + "\n"


def _parts() -> Iterator[str]:
    for title, section in sections().items():
        if title == POLICY:
            yield f"{SITE}\n"
        yield f"## `[{title}]`\n"
        yield f"{(section.__doc__ or '').strip().splitlines()[0]}\n"
        yield "| field | type | default | |"
        yield "| --- | --- | --- | --- |"
        for d in describe_fields(section):
            cells = (f"`{d.name}`", d.allowed, d.default, d.help)
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
        yield ""


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
    """Describe the fields in their order; fields of a table are in a section of their own."""
    from secure_fl.settings import Section

    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        property_schema = schema["properties"][name]
        if isinstance(field.default, Section) or _is_section(property_schema, schema):
            yield _table(section, name)
            continue
        default = "" if field.is_required() else _value(field.default)
        allowed = _allowed(property_schema, schema)
        yield FieldDescription(name, allowed, default, _help(section, name))


def _table(section: type[Section], name: str) -> FieldDescription:
    """Describe a field that holds a table by the section with the table's fields."""
    from secure_fl.field_errors import sections as sections_in

    inner = set(sections_in(section.model_fields[name].annotation))
    titles = [_typed(title) for title, one in sections().items() if one in inner]
    see = f"fields: see {' or '.join(titles)}" if titles else ""
    return FieldDescription(
        name, "table", NO_DEFAULT, " ".join([_help(section, name), see]).strip()
    )


def _help(section: type[Section], name: str) -> str:
    """Return a field's docstring, or the inherited one if a subclass only changes the default."""
    from secure_fl.settings import Section

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
    from secure_fl.config.toml import literal

    if value is None:
        return NO_DEFAULT
    return literal(list(value) if isinstance(value, tuple) else value)
