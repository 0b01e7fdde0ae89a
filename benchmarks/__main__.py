"""`python -m benchmarks NAME`: measure on this machine what the documentation claims."""

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
        "all": Lazy("benchmarks.commands", "everything", "Run them all, one after the other."),
        "golden": Lazy(
            "benchmarks.golden", "golden", "Record small runs, or compare with a recording."
        ),
        "house": Lazy("benchmarks.house", "house", "Count what the checkout is made of."),
        "removable": Lazy(
            "benchmarks.removable", "removable", "Delete each feature from a copy, and test it."
        ),
        "papers": Lazy(
            "benchmarks.evidence.papers_command", "papers", "Fill a paper's table, on real text."
        ),
        "halved": Lazy(
            "benchmarks.evidence.halved", "halved", "Write the checkpoint of the table `whole`."
        ),
        "results": Lazy(
            "benchmarks.evidence.results_command", "results", "Write the pages of those tables."
        ),
    }
)


class Benchmarks(Program):
    """The program: a benchmark's command is made from its entry in the catalogue."""

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
  python -m benchmarks crypto             ours beside NVFLARE's way, 1,000,000 values
  python -m benchmarks all --quick        small sizes: what is there to see, in a minute or two
  python -m benchmarks crypto --json --out crypto.json
  python -m benchmarks papers --table fedkd          a paper's table, on real text
  python -m benchmarks results                       the pages of all tables, beside the papers'
""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def main() -> None:
    """Measure this machine: CPU time, bytes and memory, beside the alternatives."""


if __name__ == "__main__":
    main(prog_name=PROGRAM)
