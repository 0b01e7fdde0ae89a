"""All views up to a number of parties: `python -m benchmarks views --parties 6`.

`tests.support.views` decides what each coalition learns in each scenario.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import click
from rich.console import Console
from rich.table import Table

from tests.support.view_scenarios import FAMILIES, Checked, Setting, settings


def decided(family: int, setting: Setting) -> list[Checked]:
    """Decide all views of a family and setting."""
    return list(FAMILIES[family](setting))


def table(views: list[Checked]) -> Table:
    """Count views by family and number of parties."""
    keys = Counter((one.family, one.parties) for one in views)
    opened = Counter((one.family, one.parties) for one in views if one.opened)
    leaks = Counter((one.family, one.parties) for one in views if one.leak)
    shown = Table("scenarios", "parties", "views", "with a sum", "leaks", title="Decided views")
    for key, count in keys.items():
        shown.add_row(*map(str, (*key, count, opened[key], leaks[key])))
    return shown


@click.command()
@click.option("--parties", type=click.IntRange(3, 6), default=4, show_default=True,
              help="Most parties.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Processes. [default: all processors]")
def views(parties: int, jobs: int | None) -> None:
    """Decide what every coalition learns, in all scenarios of up to so many parties.

    The exit status is 1 if one learns more than the sums that parties agreed to open.
    """
    began, checked = time.perf_counter(), list[Checked]()
    work = [(family, setting) for setting in settings(parties) for family in range(len(FAMILIES))]
    with ProcessPoolExecutor(jobs or os.cpu_count()) as pool:
        waiting = [pool.submit(decided, *one) for one in reversed(work)]  # the longest first
        for future in reversed(waiting):
            checked += future.result()
    Console().print(table(checked))
    leaks = [one for one in checked if one.leak]
    for one in leaks:
        click.echo(f"{one.family}, {one.parties} parties, threshold {one.threshold}: {one.leak}")
        click.echo(f"  {one.scenario}")
    seconds = time.perf_counter() - began
    click.echo(f"{len(checked)} views in {seconds:.0f} s; leaks: {len(leaks)}")
    if leaks:
        raise click.exceptions.Exit(1)
