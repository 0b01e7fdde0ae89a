"""`secure-fl audit` and `secure-fl report`: what each role could see, and pages that say so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from secure_fl.audits.document import AuditDocument

RUN = click.Path(path_type=Path, file_okay=False)


@click.command(
    epilog="""\b
Examples:
  secure-fl train study.toml --record     attacks need the bytes themselves
  secure-fl audit runs/study
  secure-fl audit runs/study --quick --json > audit.json

Exit status: 0 within policy ([policy] of the settings), 3 beyond it, 4 inconclusive."""
)
@click.argument("run", type=RUN)
@click.option("--quick", is_flag=True, help="Leave out what takes minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print the document as JSON, nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.pass_context
def audit(context: click.Context, run: Path, quick: bool, as_json: bool, quiet: bool) -> None:
    """Attack what each role saw of a recorded RUN, and write the report beside it."""
    from secure_fl.audits.document import EXIT, encode
    from secure_fl.cli import show

    console = show.err(quiet or as_json)
    started = time.perf_counter()
    document = audited(run, console, quick=quick)
    if as_json:
        click.echo(encode(document), nl=False)
    elif not quiet:
        seconds = show.duration(time.perf_counter() - started)
        show.out().print(matrix_table(document))
        _conclude(document, run, seconds)
    context.exit(EXIT[document.status])


@click.command(
    epilog="""\b
Examples:
  secure-fl report runs/study                          the page of one audit
  secure-fl report runs/clear runs/study --out both    audits side by side"""
)
@click.argument("runs", type=RUN, nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to. [default: the run's, or the current one for several]",
)
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Write the report of audited RUNS as one page (HTML) and as Markdown."""
    from secure_fl.audits.report import read_all, write_pages

    documents = read_all(runs)
    folder = out or (runs[0] if len(runs) == 1 else Path())
    for file in write_pages(documents, folder):
        click.echo(file)


def audited(run: Path, console: Any, *, quick: bool) -> AuditDocument:
    """Audit a run while showing progress; write its document and its pages."""
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with console.status("loading torch ..."):
        from secure_fl.audits.report import keep
        from secure_fl.audits.run import audit as attack

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("audit", total=None)

        def tell(done: int, total: int, label: str) -> None:
            progress.update(task, completed=done, total=total, description=label or "report")

        document = attack(run, quick=quick, tell=tell)
    keep(document, run)
    return document


def matrix_table(document: AuditDocument) -> Any:
    """Lay out who can see what, for the terminal."""
    from secure_fl.cli import show

    roles = [cell.role for cell in document.matrix[0].cells] if document.matrix else []
    rows = [[row.what, *(cell.access for cell in row.cells)] for row in document.matrix]
    return show.grid("who can see what", ["", *roles], rows)


def _conclude(document: AuditDocument, run: Path, seconds: str) -> None:
    from secure_fl.audits.report import PAGE
    from secure_fl.cli import show

    console = show.out()
    style = {"within policy": "bold green", "beyond policy": "bold red"}.get(document.status)
    console.print(f"\n{document.status}", style=style or "bold yellow")
    for reason in document.reasons:
        console.print(f"  {reason}")
    console.print(f"\n{seconds}; the report is {run / PAGE}")
