"""`secure-fl coordinate` and `status`: the coordinator's process in a pilot, and how far it is."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.journal import journal, log_option
from secure_fl.cli.keyring import FILE, keys_option
from secure_fl.cli.numbers import Real, Whole
from secure_fl.cli.signals import Signals

if TYPE_CHECKING:
    from secure_fl.engines.flare.hub import FlareHub
    from secure_fl.events import EventLog
    from secure_fl.pilot.coordinator_process import RunLeader

WAYS = ("up", "down")


@click.command(
    epilog="""\b
Example:
  secure-fl coordinate plan.toml --kit kits/hub --keys keys --out runs/study
  secure-fl coordinate questions.toml --kit kits/hub --keys keys
      docs/statistics.md

It waits for the hospitals, invites them to PLAN, and leads the run to its end. Nothing that it
sends can be read by it. Ctrl-C stops after the round; started again, the run goes on."""
)
@click.argument("plan", type=FILE)
@click.option("--kit", type=FILE, required=True, help="The coordinator's kit.")
@keys_option
@click.option(
    "--out", type=FILE, default=Path("runs/pilot"), show_default=True, help="The run's folder."
)
@click.option("--listen", metavar="URL", help="Another address to listen on than the kit's.")
@click.option(
    "--wait",
    type=Real(min=0),
    default=3600.0,
    show_default=True,
    help="Seconds to wait for hospitals that are missing.",
)
@click.option(
    "--grace",
    type=Real(min=0),
    default=30.0,
    show_default=True,
    help="Seconds a hospital may be disconnected before the round goes on without it.",
)
@click.option(
    "--metrics",
    metavar="PORT",
    type=Whole(1, 65535),
    help="Show numbers for Prometheus on this port of 127.0.0.1.",
)
@log_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def coordinate(
    plan: Path,
    kit: Path,
    folder: Path,
    passphrase_file: Path | None,
    out: Path,
    listen: str | None,
    wait: float,
    grace: float,
    metrics: int | None,
    log_format: str,
    quiet: bool,
) -> None:
    """Lead a pilot: invite the hospitals of the roster to PLAN, and add what they seal."""
    from secure_fl.cli import show
    from secure_fl.cli.coordinator_log import CoordinatorLog
    from secure_fl.cli.keyring import open_ring
    from secure_fl.display.status_line import CoordinatorStatus
    from secure_fl.engines.flare.hub import FlareHub
    from secure_fl.events import Resumed
    from secure_fl.pilot.coordinator_process import RunLeader
    from secure_fl.pilot.kits import load_kit
    from secure_fl.pilot.metrics import serving
    from secure_fl.pilot.plan import load_proposal, write_plan
    from secure_fl.pilot.progress import convicted, progress, saved, unsolved
    from secure_fl.runs.folder import RunFolder

    signals = click.get_current_context().with_resource(Signals())
    asked, given = load_proposal(plan), load_kit(kit)
    roster, url = given.roster, listen or given.connection.url
    me = open_ring(folder, passphrase_file).identity()
    show.warn_unprotected(show.err(), asked.protection.mode, asked.work)
    before = progress(out) if (out / "settings.toml").exists() else None
    run = RunFolder.open(out, write_plan(asked), resume=before is not None)
    standing = CoordinatorStatus(asked.rounds)
    with closing(run), journal(log_format, quiet=quiet, below=standing.lines) as log:
        for warning in given.warnings():
            log.warning(warning)
        notes = CoordinatorLog(run, asked.rounds, log, standing)
        recorder, leads = (
            notes.recorder,
            partial(RunLeader, named=convicted(out), unsolved=unsolved(out), saved=saved(out)),
        )
        meter = notes.meter
        if before is not None and before["round"]:
            recorder.event(Resumed(after=before["round"], state=before["state"]))
        with FlareHub(url, given.tls, roster.names, grace=grace) as hub, serving(meter, metrics):
            notes.watch(hub, roster.names)
            log.info(f"listening on {url}")
            lead = leads(hub, me, roster, asked, recorder, patience=wait)
            signals.ask(lead.stop)
            _lead(lead, hub, roster.names, wait, recorder)
            run.finish(lead.document())
            notes.page.write()
            hub.dismiss()
        log.info(f"done; what the coordinator saw of it is in {out}")


def _lead(
    lead: RunLeader, hub: FlareHub, names: Collection[str], wait: float, recorder: EventLog
) -> None:
    """Wait for all who may come, and lead the run to its end."""
    from secure_fl.engines.flare.diagnosis import looking
    from secure_fl.pilot.coordinator_process import OperatorStop
    from secure_fl.pilot.stragglers import StragglerWatch, arrived

    arrived(hub, names, wait, recorder, lambda: lead.stopping)
    with looking(StragglerWatch(hub, recorder), every=5.0):
        try:
            lead.run()
        except OperatorStop as halted:  # which the log has said
            raise click.exceptions.Exit(halted.exit_status) from None


@click.command(
    epilog="""\b
Example:
  secure-fl status runs/study
      the coordinator's folder, or a hospital's
  secure-fl status letters
      a courier's and its trainer's: who is there, since when"""
)
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--kit", type=FILE, default=Path("kit"), show_default=True, help="For letters only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
def status(run: Path, kit: Path, as_json: bool) -> None:
    """Say how far a pilot's RUN is: rounds, who takes part, who was lost, bytes."""
    from secure_fl.cli import show
    from secure_fl.cli.courier import show_ends
    from secure_fl.engines.folder.inspect_mailbox import is_letters

    _require_begun(run)
    if is_letters(run):
        show_ends(run, kit, as_json=as_json)
        return
    from secure_fl.display.result_tables import approved, convicted, listed, until_text
    from secure_fl.pilot.progress import progress

    found = progress(run)
    if as_json:
        show.print_json(found)
        return
    rows = [
        [name, facts["state"], *("-" if facts[k] is None else show.size(facts[k]) for k in WAYS)]
        for name, facts in found["members"].items()
    ]
    console = show.out()
    title = f"{found['state']}, round {found['round']} of {found['rounds']}"
    if rows:
        console.print(show.grid(title, ["hospital", "state", "sent", "received"], rows))
    else:
        console.print(f"{title}\nnobody was there yet")
    if waits := found["waits"]:
        since = datetime.fromtimestamp(waits["since"], UTC)
        whom = f"{listed(waits['for'])} since {since:%Y-%m-%d %H:%M:%S} UTC"
        console.print(f"waits for {whom}{until_text(waits['until'])}")
    said = (convicted(found), approved(found))
    for line in (*"\n".join(filter(None, said)).splitlines(), *found["notes"]):
        console.print(line)


def _require_begun(run: Path) -> None:
    from secure_fl.errors import RunError

    if not run.is_dir():
        raise RunError(
            "there is no such folder",
            fix="check the path. A hospital's is made when it accepts the plan; until then the log "
            "of `join` says for whom it waits",
            file=run,
            reason="missing",
        )
