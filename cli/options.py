"""Option types, common options and callbacks of the commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from secure_fl.errors import nearest

MOST_RECORDS = 10_000_000  # of a hospital; a larger number is a typing error and fills the disk
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)
PORT = click.IntRange(1, 65535)
RECORDS = click.IntRange(0, MOST_RECORDS)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
no_progress_option = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
kit_option = click.option("--kit", type=PATH, default=Path("kit"), show_default=True,
                          help="Kit that `site check` opened.")  # fmt: skip
metrics_option = click.option("--metrics", metavar="PORT", type=PORT,
                              help="Serve Prometheus metrics on this port of 127.0.0.1.",
                              )  # fmt: skip
set_option = click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE",
                          help="Override a field of the settings file. Repeatable.")  # fmt: skip

column_option = click.option("--column", "columns", multiple=True, metavar="FIELD=COLUMN",
                             help="Column of a field, as in --column text=note. Repeatable.",
                             )  # fmt: skip


class Names(click.Choice[str]):
    """Names to choose from; a mistyped name gets a suggestion."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """List the names, and suggest a similar one."""
        return f"{value!r} is not allowed: {nearest(str(value), list(self.choices))}"


class FiniteRange(click.FloatRange):
    """A finite number in a range; click's own type accepts NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a number, and refuse NaN and infinity."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


# A literal: reading the names from `settings` would import pydantic for a help text.
KINDS = Names(
    ["classification", "pair", "multilabel", "regression", "ner", "ranking", "completion"]
)
FRACTION = FiniteRange(0, 1, max_open=True)


def column_names(pairs: Sequence[str]) -> dict[str, str]:
    """Parse FIELD=COLUMN pairs."""
    from secure_fl.data.rows import Columns

    chosen: dict[str, str] = {}
    for pair in pairs:
        field, equals, column = pair.partition("=")
        if not equals or field not in Columns.model_fields:
            allowed = ", ".join(Columns.model_fields)
            raise click.UsageError(f"--column {pair}: write FIELD=COLUMN; fields: {allowed}")
        if chosen.setdefault(field, column) != column:
            raise click.UsageError(f"--column {pair}: {field} is given twice; name one column")
    return chosen


def known_algorithm(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an unknown algorithm; a callback, because help texts must not import algorithms."""
    if value is not None and value not in (known := _training_algorithms()):
        raise click.BadParameter(f"there is no {value!r}: {nearest(value, known)}")
    return value


def known_algorithms(
    ctx: click.Context, param: click.Parameter, value: Sequence[str]
) -> tuple[str, ...]:
    """Refuse unknown algorithms; a site may also list those that train nothing."""
    from secure_fl.algorithms.registry import ALGORITHMS

    for name in value:
        if name not in ALGORITHMS:
            raise click.BadParameter(f"there is no {name!r}: {nearest(name, list(ALGORITHMS))}")
    return tuple(value)


def complete_algorithm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an algorithm."""
    return [name for name in _training_algorithms() if name.startswith(incomplete)]


def _training_algorithms() -> list[str]:
    """Return the algorithms of `train`; other commands and scripts run the others."""
    from secure_fl.algorithms.registry import ALGORITHMS, BUILT_IN

    return [n for n in ALGORITHMS if n not in BUILT_IN or BUILT_IN[n].trains_model]
