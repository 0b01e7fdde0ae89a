"""Adversarial sums: `python -m benchmarks adversary --sums 2000`.

Every scenario is a pilot with liars that change fields of their messages and forge lies.
The table counts the changes of each field; a violation is printed with its seed, its field and the
fewest changes that still cause it. With `--out` results are kept in parts, and a stopped run
continues, also from joined files of several runs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.support.adversary import Scenario, attack, shrink
from tests.support.mutations import Target, rarest, targets

PART = 1000  # sums
FIELDS = {".".join(target): target for target in targets()}


@dataclass
class Tally:
    """Results of consecutive seeds."""

    seed: int  # the next one
    sums: int = 0
    seconds: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def run(self, sums: int, before: Counter[str], target: Target | None = None) -> None:
        """Run scenarios until so many sums are done; change a field, or the rarest ones."""
        began = time.perf_counter()
        while self.sums < sums:
            scenario = Scenario.of(self.seed, target or rarest(before + self.coverage))
            outcome = attack(scenario, self.coverage)
            self.sums += outcome.adversary.sums
            self.ends[type(outcome.errors[0]).__name__ if outcome.errors else "finished"] += 1
            if outcome.violations:
                self._report(scenario, outcome.violations)
            self.seed += 1
        self.seconds += time.perf_counter() - began

    def add(self, other: Tally) -> None:
        """Add the results of the seeds that follow."""
        self.seed, self.sums = other.seed, self.sums + other.sums
        self.seconds += other.seconds
        self.coverage.update(other.coverage)
        self.ends.update(other.ends)
        self.violations += other.violations

    def _report(self, scenario: Scenario, found: list[str]) -> None:
        least, name = shrink(scenario).only, ".".join(scenario.target)
        text = f"seed {self.seed}, field {name}, changes {sorted(least or ())}: {'; '.join(found)}"
        self.violations.append(text)
        click.echo(text)


def read(file: Path, seed: int) -> Tally:
    """Add up the parts in a file."""
    tally = Tally(seed)
    for line in file.read_text().splitlines() if file.exists() else []:
        part = json.loads(line)
        counts = {name: Counter(part[name]) for name in ("coverage", "ends")}
        tally.add(Tally(**{**part, **counts}))
    return tally


def table(tally: Tally) -> Table:
    """Make the table of changes by field, the rarest first."""
    shown = Table("field", "changes", title="Changed fields of messages")
    for name in sorted({*FIELDS, *tally.coverage}, key=lambda one: (tally.coverage[one], one)):
        shown.add_row(name, str(tally.coverage[name]))
    return shown


@click.command()
@click.option("--sums", type=click.IntRange(min=1), default=2000, show_default=True,
              help="Number of adversarial sums.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the first scenario.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="File of results, by parts; a part that is there is not run again.")  # fmt: skip
@click.option("--field", "name", type=click.Choice(list(FIELDS)), metavar="RECORD.FIELD",
              help="Change this field most (default: the rarest so far).")  # fmt: skip
def adversary(sums: int, seed: int, out: Path | None, name: str | None) -> None:
    """Attack sums by changing any field of any message of liars, and list violations."""
    tally = Tally(seed) if out is None else read(out, seed)
    while tally.sums < sums:
        part = Tally(tally.seed)
        part.run(min(PART, sums - tally.sums), tally.coverage, FIELDS.get(name or ""))
        tally.add(part)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(vars(part)) + "\n")
    Console().print(table(tally))
    ends = ", ".join(f"{name} {count}" for name, count in tally.ends.most_common())
    click.echo(
        f"{tally.sums} sums in {tally.seconds:.0f} s; runs: {ends}; "
        f"violations: {len(tally.violations)}"
    )
    if tally.violations:
        raise click.exceptions.Exit(1)
