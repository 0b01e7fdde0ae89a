"""Adversarial sums: `python -m benchmarks adversary --sums 2000`.

Every scenario has liars that change random fields of their messages. The table counts the changes
of each field; a violation is printed with its seed and the fewest changes that still cause it.
"""

from __future__ import annotations

import time
from collections import Counter

import click
from rich.console import Console
from rich.table import Table

from tests.support.adversary import SUMS, Scenario, attack, shrink


@click.command()
@click.option("--sums", type=click.IntRange(min=1), default=2000, show_default=True,
              help="Number of adversarial sums.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the first scenario.")  # fmt: skip
def adversary(sums: int, seed: int) -> None:
    """Attack sums by changing any field of any message of liars, and list violations."""
    coverage, bad, began = Counter[str](), list[str](), time.perf_counter()
    ended = Counter[str]()
    for number in range(seed, seed + -(-sums // SUMS)):
        outcome = attack(Scenario.of(number), coverage)
        error = outcome.out.error
        ended["finished" if error is None else type(error).__name__] += 1
        if outcome.violations:
            least = shrink(outcome.scenario)
            changes = sorted(least.only or ())
            bad.append(f"seed {number}, changes {changes}: {'; '.join(outcome.violations)}")
            click.echo(bad[-1])
    console = Console()
    table = Table("field", "changes", title="Changed fields of messages")
    for name, count in sorted(coverage.items()):
        table.add_row(name, str(count))
    console.print(table)
    ends = ", ".join(f"{name} {count}" for name, count in ended.most_common())
    seconds = time.perf_counter() - began
    click.echo(f"{sums} sums in {seconds:.0f} s; ends: {ends}; violations: {len(bad)}")
    if bad:
        raise click.exceptions.Exit(1)
