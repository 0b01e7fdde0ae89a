"""Values that several commands let one choose from."""

from __future__ import annotations

from difflib import get_close_matches

import click


class Names(click.Choice[str]):
    """Names to choose from; one that is mistyped gets a suggestion."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Say what there is, and what was probably meant."""
        return f"{value!r} is none of these: {nearest(str(value), list(self.choices))}"


def nearest(name: str, allowed: list[str]) -> str:
    """The likeliest of some names, and all of them."""
    near = get_close_matches(name, allowed, n=1, cutoff=0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"allowed: {', '.join(allowed)}"


# Written out: reading them from `settings` would import pydantic for a help text.
Kinds = Names(["classification", "pair", "regression", "ner", "ranking", "completion"])


def known_algorithm(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse what no algorithm is called; looked up here, for a help text needs none of them."""
    if value not in (known := _training()):
        raise click.BadParameter(f"there is no {value!r}: {nearest(value, known)}")
    return value


def known_algorithms(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse each that no algorithm is called."""
    return tuple(known_algorithm(ctx, param, name) for name in value)


def algorithms_like(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The algorithms whose names begin so."""
    return [name for name in _training() if name.startswith(incomplete)]


def _training() -> list[str]:
    """The algorithms that train; `secure-fl evaluate` is the command for the one that does not."""
    from secure_fl.cli.catalogue import listed, names

    return [name for name in names() if not listed(name).trains_nothing]
