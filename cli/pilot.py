"""`secure-fl pilot`: kits for the machines of a pilot, and a whole one on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.group import Told
from secure_fl.cli.keyring import FILE, keys_option
from secure_fl.cli.numbers import Whole

if TYPE_CHECKING:
    from secure_fl.policy.questions import QuestionPlan


@click.group(cls=Told)
def pilot() -> None:
    """Prepare a pilot across hospitals, or try one on this machine.

    The whole way is in docs/pilot.md.
    """


@pilot.command()
@click.argument("roster", type=FILE)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="Name or address under which hospitals reach the coordinator. Can be repeated.",
)
@click.option("--port", type=Whole(1, 65535), default=8443, show_default=True, help="Of the hub.")
@click.option(
    "--days",
    type=Whole(1, 3650),
    default=90,
    show_default=True,
    help="How long certificates hold.",
)
@click.option("--bundles", type=FILE, default=Path("bundles"), show_default=True,
              help="What the dealer's `keys ceremony` wrote.")  # fmt: skip
@click.option("--plan", type=FILE, help="The plan, for sites to hold their rules against.")
@keys_option
@click.option(
    "-o", "--output", type=FILE, default=Path("kits"), show_default=True, help="For the kits."
)
def init(
    roster: Path,
    hosts: tuple[str, ...],
    port: int,
    days: int,
    bundles: Path,
    plan: Path | None,
    folder: Path,
    passphrase_file: Path | None,
    output: Path,
) -> None:
    """Make the coordinator's kit and one for each member of the dealer's ROSTER.

    A member's kit is one file that only this member can open. It holds a certificate with its key,
    the roster, the dealer's bundle and the plan.

    \b
    secure-fl pilot init roster.json --host hub.example.org --plan plan.toml
    """  # noqa: D301
    from secure_fl.cli.keyring import open_ring
    from secure_fl.crypto.keys.roster_files import load_roster
    from secure_fl.errors import KeyringError, RunError
    from secure_fl.pilot.kit_files import write_sealed_kits
    from secure_fl.pilot.kits import load_kit, require_host
    from secure_fl.pilot.plan import load_plan, write_plan

    for host in hosts:
        require_host(host)
    found = load_roster(roster)
    found.verify()
    text = write_plan(load_plan(plan)) if plan else None
    me = open_ring(folder, passphrase_file).identity()
    if me.public != found.coordinator:
        what = f"these are the keys of {me.name!r}, and not of the roster's coordinator"
        raise KeyringError(what, file=folder, fix="give its --keys", reason="other-keys")
    if output.exists() and any(output.iterdir()):
        raise RunError(
            "there are kits already",
            fix="take another folder with -o",
            file=output,
            reason="exists",
        )
    address = list(hosts), port
    kits = write_sealed_kits(found, me, bundles, output, address, plan=text, days=days)
    for name, kit in kits.items():
        click.echo(f"{name}: {kit}")
    for what, end in load_kit(kits[found.coordinator.name]).ends().items():
        click.echo(f"last day of the {what}: {end:%Y-%m-%d}")


@pilot.command()
@click.option(
    "--parties",
    type=Whole(3, 16),
    default=3,
    show_default=True,
    help="How many hospitals.",
)
@click.option("--rounds", type=Whole(min=1), default=3, show_default=True, help="How many rounds.")
@click.option("--size", type=Whole(min=8), default=120, show_default=True,
              help="Training notes of each hospital.")  # fmt: skip
@click.option("--questions", type=FILE, help="Ask these in place of training: as for `stats`.")
@click.option(
    "--out", type=FILE, default=Path("pilot"), show_default=True, help="For all its files."
)
def local(parties: int, rounds: int, size: int, questions: Path | None, out: Path) -> None:
    """Play a whole pilot on this machine, in about two minutes.

    Every step of docs/pilot.md, by its commands: each hospital sets itself up, checks its kit and
    joins; one is killed and comes back; one approves, and erases. Each has a folder of its own.
    """
    from secure_fl.cli.rehearsal import Rehearsal
    from secure_fl.errors import RunError

    asked = None if questions is None else _asked(questions)
    if out.exists():
        raise RunError(
            "there is something here already", fix="take another --out", file=out, reason="exists"
        )
    Rehearsal(out, parties, rounds, size, asked).play()


def _asked(file: Path) -> QuestionPlan:
    """Questions as `stats` takes them, or as a pilot's coordinator does."""
    from secure_fl.policy.questions import QuestionPlan
    from secure_fl.statistics.questions import load

    return QuestionPlan.of(load(file), dataset="notes")
