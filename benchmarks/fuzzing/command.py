"""The command `fuzz`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.fuzzing.corpus import commit, committed, minimised
from benchmarks.fuzzing.targets import TARGETS
from secure_fl.errors import RunError


def fuzzed(names: list[str], minutes: float, folder: Path) -> dict[str, dict[str, Any]]:
    """Fuzz targets one after the other; returns the result of each."""
    if find_spec("atheris") is None:
        raise RunError(
            "guided fuzzing needs atheris, which is not installed",
            fix="pip install 'atheris>=3,<4' (Python 3.11 to 3.13 on Linux)",
            reason="missing-extra",
        )
    worker = [sys.executable, "-m", "benchmarks.fuzzing.worker", str(60 * minutes), str(folder)]
    with (folder / "log").open("ab") as log:
        subprocess.run([*worker, *names], stdout=log, stderr=log, check=False)
    files = {name: folder / name / "result.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def keep(name: str, folder: Path) -> Path:
    """Commit the few inputs, old and new, that reach all lines that any of them reaches."""
    found = [file.read_bytes() for file in (folder / name / "corpus").glob("*")]
    return commit(name, minimised(TARGETS[name], [*found, *committed(name).values()]))


def table(results: dict[str, dict[str, Any]]) -> Table:
    """Show a row for each target."""
    shown = Table("target", "executions", "CPU minutes", "slowest, ms", "findings")
    for name, of in results.items():
        minutes, slowest = of["cpu_seconds"] / 60, 1000 * of["slowest_cpu_seconds"]
        cells = f"{of['executions']:,}", f"{minutes:.1f}", f"{slowest:.0f}", len(of["findings"])
        shown.add_row(name, *map(str, cells))
    return shown


@click.command()
@click.option("--target", "names", multiple=True, type=click.Choice(list(TARGETS)),
              help="Decoder. Can be repeated. [default: all]")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=20.0,
              show_default=True, help="CPU minutes of each target.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("fuzzed"),
              show_default=True, help="Folder of inputs and findings.")  # fmt: skip
@click.option("--keep", "keeping", is_flag=True, help="Renew the committed inputs.")
@click.option("--list", "listing", is_flag=True, help="List the decoders.")
def fuzz(names: tuple[str, ...], minutes: float, out: Path, keeping: bool, listing: bool) -> None:
    """Fuzz decoders of bytes from others, guided by coverage.

    A decoder must return, or raise an error that says what to do, in bounded time and memory. The
    exit status is 1 if one does not.
    """
    if listing:
        for name, target in TARGETS.items():
            click.echo(f"{name:20}{(target.decode.__doc__ or '').partition('.')[0]}")
        return
    out.mkdir(parents=True, exist_ok=True)
    results = fuzzed(list(names or TARGETS), minutes, out)
    Console().print(table(results))
    for name, of in results.items():
        for finding in of["findings"]:
            click.echo(f"{name}: {finding}")
        if keeping:
            click.echo(f"{keep(name, out)}")
    missing = set(names or TARGETS) - set(results)
    for name in sorted(missing):
        click.echo(f"{name}: the process ended without a result; see {out / 'log'}")
    if missing or any(of["findings"] for of in results.values()):
        raise click.exceptions.Exit(1)
