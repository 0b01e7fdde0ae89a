"""What `init` and `settings` say of algorithms, kept as JSON: their registry would load torch.

The JSON is written from the registry, and a test holds it against that:
`CATALOGUE=write python -m pytest tests/cli/test_catalogue.py`. Algorithms of other packages are
described when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_origin

from secure_fl.errors import SettingsError

if TYPE_CHECKING:
    from secure_fl.algorithms.base import Entry

FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True, slots=True)
class Listed:
    """One algorithm, as far as commands speak of it without running it."""

    summary: str
    has_host: bool
    sums_nothing: bool
    trains_nothing: bool
    title: str  # the first line of its settings' docstring
    values: Mapping[str, Any]  # its fields with a default, as a settings file holds them
    fixed: tuple[str, ...]  # fields that allow one value only
    fields: tuple[Mapping[str, str], ...]  # name, allowed, default, help


def names() -> list[str]:
    """All algorithms that are installed, in the registry's order."""
    from secure_fl.algorithms.plugins import installed

    return [*_kept(), *installed(frozenset(_kept()))]


def listed(name: str) -> Listed:
    """What is kept of an algorithm; one of another package is loaded."""
    if (found := _kept().get(name)) is not None:
        return found
    from secure_fl.algorithms.registry import ALGORITHMS

    return of_entry(name, ALGORITHMS[name])


def of_entry(name: str, entry: Entry) -> Listed:
    """Read an algorithm's description off its entry."""
    from secure_fl.config.fields import describe_fields

    section = entry.settings
    fields = section.model_fields
    made = section.model_construct(name=name).model_dump(mode="json")
    return Listed(
        summary=entry.summary,
        has_host=entry.has_host,
        sums_nothing=entry.sums_nothing,
        trains_nothing=entry.trains_nothing,
        title=(section.__doc__ or "").strip().splitlines()[0],
        values={field: value for field, value in made.items() if value is not None},
        fixed=tuple(n for n, field in fields.items() if get_origin(field.annotation) is Literal),
        fields=tuple(asdict(one) for one in describe_fields(section)),
    )


def text_of(catalogue: Mapping[str, Listed]) -> str:
    """The catalogue as its file holds it."""
    document = {name: asdict(one) for name, one in catalogue.items()}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


@cache
def _kept() -> dict[str, Listed]:
    try:
        document = json.loads(FILE.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"a part of the installation is missing: {error.strerror}",
            fix="install the package again",
            field=FILE.name,
        ) from None
    return {
        name: Listed(**one | {"fixed": tuple(one["fixed"]), "fields": tuple(one["fields"])})
        for name, one in document.items()
    }
