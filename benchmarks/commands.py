"""A benchmark as a command: its options, tables on the terminal, and JSON in a file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from benchmarks.catalogue import BENCHMARKS


def command(name: str) -> click.Command:
    """Make the command of a benchmark; its module is imported when it runs."""

    def run(as_json: bool, markdown: bool, out: Path | None, quick: bool, **sizes: Any) -> None:
        given = {size: value for size, value in sizes.items() if value is not None}
        _run((name,), as_json, markdown, out, quick, **given)

    found = BENCHMARKS[name]
    return click.Command(name, callback=run, params=[*found.options, *_shared()], help=found.help)


def everything() -> click.Command:
    """Make the command that runs all short benchmarks."""

    def run(as_json: bool, markdown: bool, out: Path | None, quick: bool) -> None:
        names = [name for name, found in BENCHMARKS.items() if not found.alone]
        _run(names, as_json, markdown, out, quick)

    long = [name for name, found in BENCHMARKS.items() if found.alone]
    but = ", ".join(f"`{name}`" for name in (*sorted(long), "papers"))
    text = f"All of them but {but} and `results`, one after the other."
    return click.Command("all", callback=run, params=_shared(), help=text)


def _shared() -> list[click.Parameter]:
    """List the options of every benchmark."""
    file = click.Path(dir_okay=False, path_type=Path)
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON only."),
        click.Option(["--markdown"], is_flag=True, help="Print the tables as Markdown."),
        click.Option(["--out"], type=file, help="Save JSON."),
        click.Option(["--quick"], is_flag=True, help="Small sizes; do not quote their figures."),
    ]


def _run(
    names: Sequence[str],
    as_json: bool,
    markdown: bool,
    out: Path | None,
    quick: bool,
    /,
    **sizes: Any,
) -> None:
    from rich.console import Console

    from benchmarks.report import WIDTH

    documents = {}
    for name in names:
        found = BENCHMARKS[name]
        measure = import_module(found.module).measure
        started = time.perf_counter()
        report = measure(**{**(found.quick if quick else {}), **sizes})
        report = replace(report, seconds=time.perf_counter() - started)
        documents[name] = report.document()
        if markdown:
            for grid in report.tables:
                click.echo("\n".join(grid.markdown()) + "\n")
        elif not as_json:
            report.show(Console(width=WIDTH))
    document = documents[names[0]] if len(names) == 1 else documents
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if as_json:
        click.echo(text)
    if out is not None:
        out.write_text(text + "\n")
