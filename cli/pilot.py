"""`secure-fl pilot`: kits for the machines of a pilot, and a complete pilot on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.keyring import keys_option
from secure_fl.cli.options import PATH, PORT


@click.group(cls=WrappedHelpGroup)
def pilot() -> None:
    """Prepare a pilot across hospitals, or try one on this machine.

    docs/pilot.md describes all steps.
    """


@pilot.command()
@click.argument("roster", type=PATH)
@click.option("--host", "hosts", multiple=True, required=True,
              help="Name or address of the coordinator for the hospitals. Repeatable.")  # fmt: skip
@click.option("--port", type=PORT, default=8443, show_default=True, help="Port of the coordinator.")
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True,
              help="Validity of the certificates.")  # fmt: skip
@click.option("--bundles", type=PATH, default=Path("bundles"), show_default=True,
              help="Folder that the dealer's `keys ceremony` wrote.")  # fmt: skip
@click.option("--plan", type=PATH, help="Plan that sites check against their rules.")
@keys_option
@click.option("-o", "--output", type=PATH, default=Path("kits"), show_default=True,
              help="Folder for the kits.")  # fmt: skip
def init(roster: Path, folder: Path, passphrase_file: Path | None, **options: Any) -> None:
    """Create the coordinator's kit and one for each member of the dealer's ROSTER.

    A member's kit is one file that only this member can open. It holds a certificate with its key,
    the roster, the dealer's bundle and the plan.

    \b
    secure-fl pilot init roster.json --host hub.example.org --plan plan.toml
    """  # noqa: D301
    from secure_fl.cli.keyring import open_ring
    from secure_fl.cli.keys import shared_layers
    from secure_fl.crypto.keys.roster_files import load_roster
    from secure_fl.errors import KeyringError, RunError
    from secure_fl.pilot.kits import load_kit, require_host, write_sealed_kits
    from secure_fl.pilot.plan import load_plan, write_plan

    hosts, output = list(options["hosts"]), options["output"]
    for host in hosts:
        require_host(host)
    dealt = load_roster(roster)
    dealt.verify()
    asked = load_plan(options["plan"]) if options["plan"] else None
    text = write_plan(asked) if asked else None
    me = open_ring(folder, passphrase_file).identity()
    if me.public != dealt.coordinator:
        what = f"these are the keys of {me.name!r}, not of the roster's coordinator"
        raise KeyringError(what, file=folder, fix="give its --keys", reason="other-keys")
    if output.exists() and any(output.iterdir()):
        fix = "choose another folder with -o"
        raise RunError("the folder has kits already", fix=fix, file=output, reason="exists")
    address, bundles, days = (hosts, options["port"]), options["bundles"], options["days"]
    kits = write_sealed_kits(dealt, me, bundles, output, address, plan=text, days=days)
    for name, kit in kits.items():
        click.echo(f"{name}: {kit}")
    for line in shared_layers(asked, dealt) if asked else ():
        click.echo(line)
    for what, end in load_kit(kits[dealt.coordinator.name]).ends().items():
        click.echo(f"last day of the {what}: {end:%Y-%m-%d}")


@pilot.command()
@click.option("--parties", type=click.IntRange(3, 16), default=3, show_default=True,
              help="Number of hospitals.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True,
              help="Number of rounds.")  # fmt: skip
@click.option("--size", type=click.IntRange(8), default=120, show_default=True,
              help="Training notes per hospital.")  # fmt: skip
@click.option("--codebook", type=PATH, help="Open this codebook, as for `stats`; do not train.")
@click.option("--port", type=PORT, default=8443, show_default=True, help="Port of the coordinator.")
@click.option("--out", type=PATH, default=Path("pilot"), show_default=True, help="New folder.")
@click.pass_context
def local(ctx: click.Context, /, out: Path, **options: Any) -> None:
    """Play a complete pilot on this machine, in about two minutes.

    It runs every command of docs/pilot.md (examples/pilot.sh), in a folder for each hospital and
    the coordinator. One hospital is killed and returns; one needs an approval, and erases the run.
    """
    from secure_fl.cli.docs import installed_root
    from secure_fl.errors import RunError

    if out.exists():
        raise RunError("the folder exists", fix="use another --out", file=out, reason="exists")
    root = installed_root()
    paths = filter(None, (str(root), os.environ.get("PYTHONPATH")))
    variables = {name.upper(): str(value) for name, value in options.items() if value is not None}
    variables |= {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths)}
    script = ["bash", str(root / "examples" / "pilot.sh"), str(out)]
    done = subprocess.run(script, env=os.environ | variables, check=False)  # noqa: S603 - our own
    ctx.exit(done.returncode)
