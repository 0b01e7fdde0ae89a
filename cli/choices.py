"""Values that several commands let one choose from."""

from __future__ import annotations

import click

# Written out: reading them from `settings` would import pydantic for a help text.
Kinds = click.Choice(["classification", "pair", "regression", "ner", "ranking", "completion"])


def known_algorithm(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse what no algorithm is called; looked up here, for their registry loads torch."""
    from secure_fl.algorithms.registry import ALGORITHMS

    if value not in ALGORITHMS:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(ALGORITHMS)}")
    return value


def algorithms_like(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The algorithms whose names begin so."""
    from secure_fl.algorithms.registry import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]
