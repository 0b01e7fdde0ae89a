"""`secure-fl pilot`: kits for the machines of a pilot, and a whole one on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.keyring import FILE, keys_option

if TYPE_CHECKING:
    from secure_fl.pilot.trial import Trial
    from secure_fl.policy.questions import QuestionPlan

PROGRAM = "from secure_fl.cli.main import main; main()"
START = 60.0  # seconds until everybody has to be there


@click.group()
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
@click.option("--port", type=click.IntRange(1, 65535), default=8443, show_default=True)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
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
    from secure_fl.crypto.roster_files import load_roster
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
@click.option("--parties", type=click.IntRange(3, 16), default=3, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--size", type=click.IntRange(min=8), default=120, show_default=True,
              help="Training notes of each hospital.")  # fmt: skip
@click.option("--questions", type=FILE, help="Ask these in place of training: as for `stats`.")
@click.option("--out", type=FILE, default=Path("pilot"), show_default=True)
def local(parties: int, rounds: int, size: int, questions: Path | None, out: Path) -> None:
    """Run a pilot on this machine: a process for each hospital, TLS between them.

    Each gets a folder with its own keys, kit, records and rules; the commands are those of a real
    pilot, and are printed.
    """
    asked = None if questions is None else _asked(questions)
    from secure_fl.algorithms.fedavg import FedAvg
    from secure_fl.errors import RunError
    from secure_fl.pilot.trial import HUB, make_trial
    from secure_fl.policy.rules import Plan
    from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings

    if out.exists():
        raise RunError(
            "there is something here already", fix="take another --out", file=out, reason="exists"
        )
    plan = Plan(
        algorithm=FedAvg(rounds=rounds, epochs=3),
        task=TaskSettings(labels=("ade", "no-ade"), max_length=64),
        model=ModelSettings(layers=2),
        training=TrainingSettings(learning_rate=1.5e-3, batch_size=16, device="cpu"),
        dataset="notes",
    )
    names = [f"hospital-{number}" for number in range(1, parties + 1)]
    click.echo("making identities, a roster, keys, certificates and records ...")
    made = make_trial(out, names, plan, port=free_port(), size=size, questions=asked)
    processes = {name: _start(made, name) for name in (HUB, *made.names)}
    try:
        status = processes[HUB].wait()
        if status:  # nobody else will call the hospitals off
            raise SystemExit(status)
        for name in made.names:
            processes[name].wait(timeout=START)
    finally:
        for process in processes.values():
            process.terminate()
    if asked is not None:
        click.echo(f"\nfrom the begin of the run to the last answer: {_took(made):.1f} s")
    click.echo(f"\nwhat a hospital has: {made.of(made.names[0])}/runs")
    click.echo(f"what the coordinator saw: secure-fl status {made.of(HUB)}/run")


def _asked(file: Path) -> QuestionPlan:
    """Questions as `stats` takes them, or as a pilot's coordinator does."""
    from secure_fl.policy.questions import QuestionPlan
    from secure_fl.statistics.questions import load

    return QuestionPlan.of(load(file), dataset="notes")


def _took(made: Trial) -> float:
    """Seconds from a hospital's begin of the run to its answers, without the processes' start."""
    from secure_fl.runs.folder import SETTINGS
    from secure_fl.statistics.pages import DOCUMENT

    runs = [made.of(name) / "runs" / "run" for name in made.names]
    begun = min((run / SETTINGS).stat().st_mtime for run in runs)
    return max((run / DOCUMENT).stat().st_mtime for run in runs) - begun


def _start(made: Trial, name: str) -> subprocess.Popen[bytes]:
    """Start one machine's process, in its own folder, by the commands of a real pilot."""
    from secure_fl.pilot.trial import HUB

    common = ["--kit", "kit", "--passphrase-file", "passphrase"]
    arguments = (
        ["coordinate", "plan.toml", *common, "--out", "run", "--wait", str(START)]
        if name == HUB
        else ["join", "site.toml", *common, "--quiet"]
    )
    click.echo(f"{made.of(name)}$ secure-fl {' '.join(arguments)}")
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | this_code()
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", PROGRAM, *arguments], cwd=made.of(name), env=environment
    )


def this_code() -> dict[str, str]:
    """What makes a child process run the code that this one runs, wherever it lies."""
    import secure_fl

    here = str(Path(secure_fl.__file__).parent.parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
