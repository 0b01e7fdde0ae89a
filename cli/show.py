"""Consoles, warnings and tables for commands.

Progress and warnings go to stderr, results to stdout, so that `--json` and pipes stay clean.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.panel import Panel

from secure_fl.display.figures import counted as counted
from secure_fl.display.figures import duration as duration
from secure_fl.display.figures import metric_of as metric_of
from secure_fl.display.figures import number as number
from secure_fl.display.figures import protection as protection
from secure_fl.display.figures import size as size
from secure_fl.display.figures import traffic as traffic
from secure_fl.display.grid import grid as grid
from secure_fl.display.result_tables import entity_table as entity_table
from secure_fl.display.result_tables import layers_line as layers_line
from secure_fl.display.result_tables import model_line as model_line
from secure_fl.display.result_tables import noise_line as noise_line
from secure_fl.display.result_tables import result_table as result_table
from secure_fl.display.result_tables import score_line as score_line
from secure_fl.events import metric_name as metric_name

if TYPE_CHECKING:
    from secure_fl.settings import TaskSettings

WIDTH = 120  # of output to a file or a pipe
UNPROTECTED = (
    "This run is UNPROTECTED (protection.mode = none): the coordinator sees every hospital's "
    "updates unencrypted, and can reconstruct records.\nUse it only for data that may be public."
)
POOLED = (
    "This run puts ALL RECORDS OF ALL HOSPITALS IN ONE PLACE, without protection. It is a baseline "
    "for records that are already on one machine."
)


def out() -> Console:
    """Return the console for results."""
    return _console(sys.stdout.isatty())


def err(quiet: bool = False) -> Console:
    """Return the console for progress and warnings."""
    return _console(sys.stderr.isatty(), stderr=True, quiet=quiet)


def _console(terminal: bool, **options: Any) -> Console:
    # File names and records can contain [brackets] and :colons:; these are not markup.
    width = None if terminal or "COLUMNS" in os.environ else WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False, **options)


def print_json(document: Any) -> None:
    """Print a document as JSON on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def warn(console: Console, text: str | None) -> None:
    """Print a sentence in yellow; None prints nothing."""
    if text is not None:
        console.print(f"\n{text}", style="yellow")


def warn_of_class(
    console: Console,
    task: TaskSettings,
    labels: Sequence[str] | None,
    counts: Mapping[str, int] | None = None,
) -> None:
    """Warn if precision, recall and F1 are scores of what looks like the negative class."""
    from secure_fl.data.record_problems import reversed_class

    if (found := reversed_class(task, labels, counts)) is not None:
        console.print(f"warning: {found[0]}\n  -> {found[1]}", style="yellow")


def warn_unprotected(console: Console, mode: str, algorithm: str) -> None:
    """Warn about unprotected updates or pooled records; a run without sums needs no warning."""
    text = {"POOLED": POOLED, "NONE": UNPROTECTED}.get(protection(algorithm, mode))
    if text:
        console.print(Panel(text, title="warning", style="bold red", width=76))
