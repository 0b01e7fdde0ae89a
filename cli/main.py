"""`secure-fl`: the table of commands. This module imports click and nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

from secure_fl.cli.group import Lazy, Program
from secure_fl.features import places

STATUSES: Mapping[int, str] = MappingProxyType(
    {
        0: "success",
        1: "doctor found a problem, or secure-fl has a bug",
        2: "the command line, the settings, the data or the model is wrong",
        3: "an audit exceeds the policy",
        4: "a run's folder cannot be used or resumed, or an audit is inconclusive",
        5: "training failed, or parties disagree or cannot continue",
        6: "sealing, opening or verification failed, or something is not genuine",
        7: "the privacy budget does not allow it",
        8: "parties are missing, and the waiting time is over",
        9: "a site refuses the plan or a codebook; its own log has the reason",
        130: "interrupted, or stopped by the operator; a run can be resumed",
    }
)

COMMANDS: Mapping[str, Lazy] = MappingProxyType(
    {
        "demo": Lazy("secure_fl.cli.demo", "demo", "Watch three hospitals learn together."),
        "init": Lazy("secure_fl.cli.init", "init", "Write a settings file to start from."),
        "settings": Lazy("secure_fl.cli.settings", "settings", "Explain the fields of settings."),
        "train": Lazy("secure_fl.cli.train", "train", "Run the federation of a settings file."),
        "preflight": Lazy("secure_fl.cli.preflight", "preflight", "Check records for problems."),
        "audit": Lazy("secure_fl.cli.audit", "audit", "Attack the recorded views of a run."),
        "report": Lazy("secure_fl.cli.audit", "report", "Write the page of runs and audits."),
        "compare": Lazy("secure_fl.cli.audit", "compare", "Show runs side by side."),
        "predict": Lazy("secure_fl.cli.predict", "predict", "Apply a run's model to texts."),
        **{
            name: Lazy(place.partition(":")[0], place.partition(":")[2], text)
            for name, (place, text) in places("commands").items()
        },
        "runs": Lazy("secure_fl.cli.runs", "runs", "List, show, compare or remove runs."),
        "data": Lazy("secure_fl.cli.data", "data", "Describe, split or generate data."),
        "keys": Lazy("secure_fl.cli.keys", "keys", "Manage identities, rosters and keys."),
        "ledger": Lazy("secure_fl.cli.ledger", "ledger", "Show and check a privacy ledger."),
        "budget": Lazy("secure_fl.cli.budget", "budget", "Show the privacy cost of a plan."),
        "site": Lazy("secure_fl.cli.site", "site", "Set up a hospital for a pilot."),
        "pilot": Lazy("secure_fl.cli.pilot", "pilot", "Create kits for a pilot of hospitals."),
        "coordinate": Lazy("secure_fl.cli.coordinate", "coordinate", "Run a pilot's coordinator."),
        "join": Lazy("secure_fl.cli.join", "join", "Join a pilot as a hospital."),
        "status": Lazy("secure_fl.cli.coordinate", "status", "Show a pilot's progress."),
        "docs": Lazy("secure_fl.cli.docs", "docs", "Read the installed documentation."),
        "doctor": Lazy("secure_fl.cli.doctor", "doctor", "Check this installation."),
        "completion": Lazy("secure_fl.cli.completion", "completion", "Print shell completion."),
    }
)

EPILOG = """\
Start here:
  secure-fl demo                three hospitals on built-in data, 2 to 4 min
  secure-fl init my-study       write my-study/federation.toml
  secure-fl train my-study/federation.toml

Exit status:
""" + "".join(f"  {status:<4} {meaning}\n" for status, meaning in STATUSES.items())


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"secure-fl {version('sealed-federation')}")
        ctx.exit()


@click.group(
    cls=Program,
    commands_on_use=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Print the version.")  # fmt: skip
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def main() -> None:
    """Hospitals train one language model together.

    No record leaves a hospital, and updates leave only encrypted.
    """
