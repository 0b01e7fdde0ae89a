"""`secure-fl audit`, `report` and `compare`: attacks on recorded runs, and pages of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.options import FOLDER, json_option, no_progress_option

if TYPE_CHECKING:
    from secure_fl.audits.document import AuditDocument
    from secure_fl.audits.report.trade_off import EpsilonCurve

EPSILON = "epsilon"  # key of the page section on attacks over ε


@click.command(
    epilog="""\b
Examples:
  secure-fl train study.toml --record     attacks need the recorded bytes
  secure-fl audit runs/study
  secure-fl audit runs/study --quick --json > audit.json

Exit status: 0 within policy ([policy] of the settings), 3 above a limit, 4 inconclusive."""
)
@click.argument("run", type=FOLDER)
@click.option("--quick", is_flag=True, help="Skip attacks that take minutes.")
@json_option
@no_progress_option
@click.pass_context
def audit(context: click.Context, run: Path, quick: bool, as_json: bool, quiet: bool) -> None:
    """Attack the view of each role in a recorded RUN, and write the report into its folder."""
    from secure_fl.cli import show
    from secure_fl.cli.group import INTERRUPTED, require_folder, stop

    require_folder(run)
    from secure_fl.audits.document import EXIT, encode

    console = show.err(quiet or as_json)
    started = time.perf_counter()
    try:
        document = run_audit(run, console, quick=quick)
    except KeyboardInterrupt:
        again = f"secure-fl audit {run}{' --quick' * quick}"
        stop(INTERRUPTED, f"interrupted; finished attacks are saved. Continue with:\n  {again}")
    if as_json:
        click.echo(encode(document), nl=False)
    elif not quiet:
        seconds = show.duration(time.perf_counter() - started)
        show.out().print(matrix_table(document))
        _print_verdict(document, run, seconds)
    context.exit(EXIT[document.status])


@click.command(
    epilog="""\b
Examples:
  secure-fl report runs/study
      its page, with the audit if there is one
  secure-fl report runs/clear runs/study --out both    runs side by side
  secure-fl report runs/study --shared --out public
      without figures of a single hospital, so without the audit"""
)
@click.argument("runs", type=FOLDER, nargs=-1, required=True)
@click.option("--out", type=FOLDER,
              help="Output folder.  [default: the run's folder, or . for several]")  # fmt: skip
@click.option("--shared", is_flag=True, help="Omit figures of single hospitals, paths and audits.")
def report(runs: tuple[Path, ...], out: Path | None, shared: bool) -> None:
    """Write a page about RUNS: learning curves, costs and audits."""
    folder = out or (runs[0] if len(runs) == 1 else Path())
    # An audit's attacks are on single hospitals, and so are most of its figures.
    if not shared and any((run / "audit.json").is_file() for run in runs):
        _audited_pages(runs, folder)
        return
    from secure_fl.display.compare_page import comparison_page
    from secure_fl.display.run_history import read_run_history
    from secure_fl.display.run_page import PAGE, page_of
    from secure_fl.files import write_whole

    histories = [read_run_history(run) for run in runs]
    if len(histories) > 1:
        page = comparison_page(histories, shared=shared)
    else:
        page = page_of(*histories, shared=shared)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE, page)
    click.echo(folder / PAGE)


def _audited_pages(runs: tuple[Path, ...], folder: Path) -> None:
    from secure_fl.audits.report.page import read_documents, write_page
    from secure_fl.display.run_history import read_run_history

    documents = read_documents(runs)
    trained = [run / "settings.toml" for run in runs]
    histories = [read_run_history(f.parent) if f.is_file() else None for f in trained]
    folder.mkdir(parents=True, exist_ok=True)
    click.echo(write_page(documents, folder, histories))


@click.command(
    epilog="""\b
Example:
  secure-fl compare runs/fedavg runs/fedkd     differences to the first run"""
)
@click.argument("runs", type=FOLDER, nargs=-1, required=True)
@click.option("--out", type=FOLDER, help="Also write a page into this folder.")
@json_option
def compare(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Show RUNS side by side: scores with intervals, costs, and different settings."""
    from secure_fl.cli import show
    from secure_fl.display import compare_page
    from secure_fl.display.run_history import read_run_history
    from secure_fl.files import write_whole

    if len(runs) < 2:
        raise click.UsageError("name at least two runs")
    histories = [read_run_history(run) for run in runs]
    if as_json:
        apart_from_first = (
            compare_page.difference(s.document, histories[0].document) for s in histories
        )
        rows = zip(runs, apart_from_first, strict=True)
        show.print_json([{"run": str(r), "to the first": d and d._asdict()} for r, d in rows])
        return
    audits = _over_epsilon(runs, compare_page.names_of(histories))
    console, table = show.out(), compare_page.side_by_side(histories)
    if (warning := compare_page.other_data(histories)) is not None:
        console.print(warning, style="yellow")
    console.print(table)
    console.print(compare_page.explained(histories))
    if apart := compare_page.settings_apart(histories):
        names = [row[0] for row in table.rows]
        console.print()
        console.print(show.grid("settings that differ", ["field", *names], apart))
    if audits is not None:
        console.print()
        console.print(show.grid(audits.table.caption, list(audits.table.header), audits.table.rows))
    if out is not None:
        from secure_fl.audits.report.trade_off import section

        part = "" if audits is None else section(audits, EPSILON)
        out.mkdir(parents=True, exist_ok=True)
        page = compare_page.comparison_page(histories, audited=part)
        write_whole(out / "report.html", page)
        console.print(f"\npage: {out / 'report.html'}")


def _over_epsilon(runs: Sequence[Path], names: Sequence[str]) -> EpsilonCurve | None:
    """Return attack success over ε of the audited runs, if there are two with different ε."""
    audited = [(r, n) for r, n in zip(runs, names, strict=True) if (r / "audit.json").is_file()]
    if len(audited) < 2:
        return None
    from secure_fl.audits.report import trade_off
    from secure_fl.audits.report.page import read_documents

    folders, titles = zip(*audited, strict=True)
    return trade_off.curve(read_documents(folders), EPSILON, titles)


def run_audit(run: Path, console: Any, *, quick: bool) -> AuditDocument:
    """Audit a run and show progress; write its document and pages."""
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with console.status("loading torch ..."):
        from secure_fl.audits.report.page import write_report
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

        def show_step(done: int, total: int, label: str) -> None:
            progress.update(task, completed=done, total=total, description=label or "report")
            if not console.is_terminal:  # no progress bar is redrawn
                console.print(f"{label or 'report'} ({done} of {total} done)")

        document = attack(run, quick=quick, progress=show_step)
    write_report(document, run)
    return document


def matrix_table(document: AuditDocument) -> Any:
    """Return the table of who can see what."""
    from secure_fl.cli import show

    roles = [cell.role for cell in document.matrix[0].cells] if document.matrix else []
    rows = [[row.what, *(cell.access for cell in row.cells)] for row in document.matrix]
    return show.grid("who can see what", ["", *roles], rows)


def _print_verdict(document: AuditDocument, run: Path, seconds: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from secure_fl.audits.report.page import PAGE
    from secure_fl.cli import show

    console = show.out()
    style = {"within policy": "bold green", "beyond policy": "bold red"}.get(document.status)
    console.print(f"\n{document.status}", style=style or "bold yellow")
    reasons = Table.grid(padding=(0, 1))
    for reason in document.reasons:
        reasons.add_row("  -", Text(reason))
    console.print(reasons)
    console.print(f"\n{seconds}; the report is {run / PAGE}")
    console.print(f"delete views, parties/*/view and audit in {run}: they reveal records")
