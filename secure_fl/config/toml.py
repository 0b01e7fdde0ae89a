"""TOML text of settings: reading, line numbers of fields, overrides and writing."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeAlias

from secure_fl.errors import SettingsError, nearest
from secure_fl.files import TooLarge, read_bounded

Key: TypeAlias = tuple[str | int, ...]  # a field: names, and numbers from 0 in lists of tables
Table: TypeAlias = dict[str, Any]

_LIMIT = 1 << 20  # bytes; no settings file is larger
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True, slots=True)
class SettingsText:
    """Origin of settings: an error about a field names the line, or the option."""

    file: str | None = None
    lines: Mapping[Key, int] = field(default_factory=dict)
    options: Mapping[Key, str] = field(default_factory=dict)  # fields set on the command line

    def error(self, what: str, key: Key, *, fix: str = "") -> SettingsError:
        """Build an error about a field, with its line or the option that set it."""
        parents = [key[:end] for end in range(len(key), 0, -1)]
        around = [*parents, *(k for k in self.options if k[: len(key)] == key)]
        option = next((self.options[k] for k in around if k in self.options), None)
        line = None if option else next((self.lines[k] for k in parents if k in self.lines), None)
        places = {"file": self.file, "line": line, "option": option, "field": dotted(key)}
        return SettingsError(what, fix=fix, **places)

    def check_sections(self, tree: Table, known: Sequence[str], needed: Mapping[str, str]) -> None:
        """Refuse unknown sections and values outside sections; `needed`: section -> its fix."""
        for name, value in tree.items():
            if name not in known:
                raise self.error("there is no such section", (name,), fix=nearest(name, known))
            if not isinstance(value, dict):
                what = f"found {value!r}; allowed: a table"
                raise self.error(what, (name,), fix=f"write [{name}] on a separate line")
        for name, fix in needed.items():
            if name not in tree:
                raise self.error(f"the section [{name}] is missing", (name,), fix=fix)


def dotted(key: Key) -> str:
    """Return a field as people write it; tables of a list count from 1."""
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in key)


def read(file: Path, what: str, *, missing: str, instead: str) -> str:
    """Return the text of a TOML file, or raise an error with a fix."""
    try:
        return read_bounded(file, _LIMIT).decode("utf-8-sig")
    except FileNotFoundError:
        wrong, fix = "there is no such file", missing
    except TooLarge:
        wrong, fix = f"this is too long for {what}", instead
    except UnicodeDecodeError as error:
        wrong, fix = f"byte {error.start + 1} is not UTF-8", "save the file as UTF-8"
    except OSError as error:
        wrong, fix = f"cannot be read: {error.strerror}", "give a TOML file that you can read"
    raise SettingsError(wrong, fix=fix, file=str(file))


def parse(text: str, file: str | None) -> Table:
    """Parse TOML; an error names the line."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line, column = (place[1], place[2]) if place else (None, None)
        line = line or str(text.count("\n") + 1)
        what = f"this is not TOML: {_PLACE.sub('', str(error))}"
        fix = 'write name = value; strings in quotes: "...", lists as [...], tables as [name]'
        raise SettingsError(what, fix=fix, file=file, line=line, column=column) from None
    except RecursionError:
        raise SettingsError("this is nested too deeply", file=file) from None
    return tree


def lines(text: str) -> dict[Key, int]:
    """Find the first line of each table and field in valid TOML text, counted from 1."""
    numbers: dict[Key, int] = {}
    sizes: dict[Key, int] = {}
    table: Key = ()
    for number, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _header(parsed, sizes)
            numbers.setdefault(table, number)
        else:
            for key, _ in _fields(parsed):
                numbers[table + key] = number
    return numbers


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Split text into headers and assignments: the shortest pieces that are valid TOML."""
    rows = text.replace("\r\n", "\n").split("\n")
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and not _is_toml("\n".join(rows[start:end])):
            end += 1
        statement = "\n".join(rows[start:end])
        if statement.strip() and not statement.lstrip().startswith("#"):
            yield start + 1, statement
        start = end


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _header(parsed: Table, sizes: dict[Key, int]) -> Key:
    """Resolve [a.b] or [[a.b]] to a field; `sizes` counts the tables of each list."""
    key: Key = ()
    value: Any = parsed
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = (*key, name)
        if isinstance(value, list):
            sizes[key] = sizes.get(key, -1) + 1
        if key in sizes:
            key = (*key, sizes[key])
    return key


def _fields(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """List every nested field with its value, outer ones first."""
    parts: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    for name, inner in parts:
        yield (*key, name), inner
        yield from _fields(inner, (*key, name))


def override(tree: Table, assignment: str, place: Callable[[Key, str], Any]) -> tuple[Key, str]:
    """Set `a.b=value` in a tree; return the field, and the option as the user wrote it.

    The value is TOML, or a string without quotes. `place` can change strings before storage.
    """
    option = f"--set {assignment}"
    name, equals, text = assignment.partition("=")
    parts = [part.strip() for part in name.split(".")]
    if not equals or not all(parts):
        fix = "write --set section.field=value, as in --set algorithm.rounds=5"
        raise SettingsError("this is not an assignment", fix=fix, option=option)
    key: Key = ()
    table: Any = tree
    for part in parts[:-1]:
        key, table = _descend(table, key, part, option)
    if not isinstance(table, dict):
        raise SettingsError(f"{dotted(key)} is not a table", option=option, field=name.strip())
    key = (*key, parts[-1])
    value = _value(text.strip(), option)
    table[parts[-1]] = place(key, value) if isinstance(value, str) else value
    return key, option


def _descend(table: Any, key: Key, part: str, option: str) -> tuple[Key, Any]:
    if isinstance(table, list):  # tables of a list are addressed by their `name`
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in table]
        if part not in names:
            known = ", ".join(str(name) for name in names if name) or "none"
            what = f"{dotted(key)} has no table named {part!r}; found: {known}"
            raise SettingsError(what, option=option, field=dotted(key))
        index = names.index(part)
        return (*key, index), table[index]
    if not isinstance(table, dict):
        raise SettingsError(f"{dotted(key)} is not a table", option=option)
    return (*key, part), table.setdefault(part, {})


def _value(text: str, option: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ("[", "{", '"', "'"):
            what = f"the value is not TOML: {_PLACE.sub('', str(error))}"
            raise SettingsError(
                what, fix="quote it for your shell: 'a.b=[\"c\"]'", option=option
            ) from None
        return text
    return parsed["value"] if len(parsed) == 1 else text


def odd_values(tree: Table) -> Iterator[tuple[Key, str]]:
    """Find values that TOML allows and no field takes: dates, NaN and infinity."""
    for key, value in _fields(tree):
        if isinstance(value, date | datetime | time):
            yield key, f"found the date or time {value}"
        elif isinstance(value, float) and not math.isfinite(value):
            yield key, f"found {value}"


def write(tree: Mapping[str, Any], table: str = "") -> str:
    """Write nested mappings as TOML: plain fields first, then their tables."""
    plain, tables = [], []
    for name, value in tree.items():
        key = _name(name)
        if isinstance(value, Mapping):
            path = f"{table}{key}"
            tables.append(f"\n[{path}]\n{write(value, path + '.')}")
        elif _is_tables(value):
            path = f"{table}{key}"
            tables.extend(f"\n[[{path}]]\n{write(entry, path + '.')}" for entry in value)
        else:
            plain.append(f"{key} = {literal(value)}\n")
    return "".join([*plain, *tables])


def _is_tables(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(entry, Mapping) for entry in value)
    )


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else literal(name)


def _visible(char: str) -> str:
    """Escape characters with which a text could control the terminal that shows it."""
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def literal(value: Any) -> str:
    """Return a value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # TOML has JSON's escapes
        return "".join(map(_visible, json.dumps(value, ensure_ascii=False)))
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_name(k)} = {literal(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return repr(value)
