"""`python -m benchmarks NAME`: measure the documentation's claims on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

from benchmarks.catalogue import BENCHMARKS
from benchmarks.commands import command, everything
from secure_fl.cli.group import Lazy, Program

PROGRAM = "python -m benchmarks"

OTHERS = {  # module and help of a command that has no entry in the catalogue
    "adversary": ("adversary", "Attack sums by changing any field of any message."),
    "all": ("commands", "Run all short benchmarks."),
    "blame": ("blame", "Compare sums with another checkout, and with an inquiry."),
    "fuzz": ("fuzzing.command", "Fuzz decoders, guided by coverage."),
    "house": ("house", "Print the size and structure of the checkout."),
    "mutants": ("mutants.mutant_runs", "Change the core at random, and test it."),
    "removable": ("removable", "Delete each feature from a copy, and test it."),
    "vectors": ("vectors.command", "Verify the vectors, and record sums."),
    "views": ("views", "Decide what coalitions learn from sums."),
    "words": ("words", "Count the words of hand-written pages."),
    "papers": ("evidence.commands", "Fill a paper's table, on real text."),
    "halved": ("evidence.commands", "Write the checkpoint of the table `whole`."),
    "results": ("evidence.commands", "Write the pages of those tables."),
}
COMMANDS: Mapping[str, Lazy] = MappingProxyType(
    {
        name: Lazy(found.module, "measure", found.help.partition(".")[0] + ".")
        for name, found in BENCHMARKS.items()
    }
    | {name: Lazy(f"benchmarks.{module}", name, text) for name, (module, text) in OTHERS.items()}
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
