"""Consoles, warnings and tables for commands.

Progress and warnings go to stderr, results to stdout, so that `--json` and pipes stay clean.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

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
from secure_fl.display.result_tables import model_line as model_line
from secure_fl.display.result_tables import noise_line as noise_line
from secure_fl.display.result_tables import result_table as result_table
from secure_fl.display.result_tables import score_line as score_line

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


def warn_unprotected(console: Console, mode: str, algorithm: str) -> None:
    """Warn about unprotected updates or pooled records; a run without sums needs no warning."""
    text = {"POOLED": POOLED, "NONE": UNPROTECTED}.get(protection(algorithm, mode))
    if text:
        console.print(Panel(text, title="warning", style="bold red", width=76))
