"""Values that several commands let one choose from."""

from __future__ import annotations

import click

# Written out: reading them from `settings` would import pydantic for a help text.
Kinds = click.Choice(["classification", "pair", "regression", "ner", "ranking"])
