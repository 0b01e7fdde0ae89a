"""A benchmark as a command: its options, its tables on the terminal, its JSON in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from benchmarks.catalogue import ALONE, BENCHMARKS


def command(name: str) -> click.Command:
    """Make the command of a benchmark; its module is imported when it runs."""

    def run(as_json: bool, out: Path | None, quick: bool, **sizes: Any) -> None:
        given = {size: value for size, value in sizes.items() if value is not None}
        _run((name,), as_json, out, quick, **given)

    found = BENCHMARKS[name]
    return click.Command(name, callback=run, params=[*found.options, *_shared()], help=found.help)


def everything() -> click.Command:
    """Make the command that runs them all."""

    def run(as_json: bool, out: Path | None, quick: bool) -> None:
        _run([name for name in BENCHMARKS if name not in ALONE], as_json, out, quick)

    but = ", ".join(f"`{name}`" for name in (*sorted(ALONE), "papers"))
    text = f"All of them but {but} and `results`, one after the other."
    return click.Command("all", callback=run, params=_shared(), help=text)


def _shared() -> list[click.Parameter]:
    """The options of every benchmark."""
    file = click.Path(dir_okay=False, path_type=Path)
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, nothing else."),
        click.Option(["--out"], type=file, help="Save JSON."),
        click.Option(["--quick"], is_flag=True, help="Small sizes; figures are not for quoting."),
    ]


def _run(
    names: Sequence[str], as_json: bool, out: Path | None, quick: bool, /, **sizes: Any
) -> None:
    from rich.console import Console

    from benchmarks.report import WIDTH

    documents = {}
    for name in names:
        found = BENCHMARKS[name]
        measure = import_module(found.module).measure
        report = measure(**{**(found.quick if quick else {}), **sizes})
        documents[name] = report.document()
        if not as_json:
            report.show(Console(width=WIDTH))
    document = documents[names[0]] if len(names) == 1 else documents
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if as_json:
        click.echo(text)
    if out is not None:
        out.write_text(text + "\n")
