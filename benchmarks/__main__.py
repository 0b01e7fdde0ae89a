"""`python -m benchmarks NAME`: measure the documentation's claims on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

from benchmarks.catalogue import BENCHMARKS
from benchmarks.commands import command, everything
from secure_fl.cli.group import Lazy, Program

PROGRAM = "python -m benchmarks"

COMMANDS: Mapping[str, Lazy] = MappingProxyType(
    {
        name: Lazy(found.module, "measure", found.help.partition(".")[0] + ".")
        for name, found in BENCHMARKS.items()
    }
    | {
        "adversary": Lazy(
            "benchmarks.adversary", "adversary", "Attack sums by changing any field of any message."
        ),
        "all": Lazy("benchmarks.commands", "everything", "Run all short benchmarks."),
        "blame": Lazy(
            "benchmarks.blame", "blame", "Compare sums with another checkout, and with an inquiry."
        ),
        "fuzz": Lazy("benchmarks.fuzzing.command", "fuzz", "Fuzz decoders, guided by coverage."),
        "house": Lazy("benchmarks.house", "house", "Print the size and structure of the checkout."),
        "mutants": Lazy(
            "benchmarks.mutants.mutant_runs", "mutants", "Change the core at random, and test it."
        ),
        "removable": Lazy(
            "benchmarks.removable", "removable", "Delete each feature from a copy, and test it."
        ),
        "vectors": Lazy(
            "benchmarks.vectors.command", "vectors", "Verify the vectors, and record sums."
        ),
        "views": Lazy("benchmarks.views", "views", "Decide what coalitions learn from sums."),
        "words": Lazy("benchmarks.words", "words", "Count the words of hand-written pages."),
        "papers": Lazy(
            "benchmarks.evidence.commands", "papers", "Fill a paper's table, on real text."
        ),
        "halved": Lazy(
            "benchmarks.evidence.commands", "halved", "Write the checkpoint of the table `whole`."
        ),
        "results": Lazy(
            "benchmarks.evidence.commands", "results", "Write the pages of those tables."
        ),
    }
)


class Benchmarks(Program):
    """The program; it makes a benchmark's command from its entry in the catalogue."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make or import a command."""
        if cmd_name in BENCHMARKS:
            return command(cmd_name)
        return everything() if cmd_name == "all" else super().get_command(ctx, cmd_name)


@click.group(
    cls=Benchmarks,
    commands_on_use=COMMANDS,
    epilog="""\
Examples:
  python -m benchmarks crypto             a protected sum of 1,000,000 values in every mode
  python -m benchmarks all --quick        all short benchmarks at small sizes
  python -m benchmarks crypto --json --out crypto.json
  python -m benchmarks papers --table fedkd          a paper's table, on real text
  python -m benchmarks results                       the pages of all tables
""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def main() -> None:
    """Measure CPU time, bytes and memory on this machine."""


if __name__ == "__main__":
    main(prog_name=PROGRAM)
