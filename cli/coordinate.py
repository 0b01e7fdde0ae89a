"""`secure-fl coordinate` and `status`: a pilot's coordinator, and a pilot's progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from logging import Logger
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.keyring import keys_option
from secure_fl.cli.options import FOLDER, PATH, FiniteRange, json_option, kit_option, metrics_option
from secure_fl.cli.service import StopSignals, errors_only_option, log_option, service_log

if TYPE_CHECKING:
    from secure_fl.display.status_line import CoordinatorStatus
    from secure_fl.engines.flare.hub import FlareHub
    from secure_fl.events import Event
    from secure_fl.pilot.coordinator_process import RunLeader
    from secure_fl.runs.folder import RunFolder

DIRECTIONS = ("up", "down")
SECONDS = FiniteRange(0)


@click.command(
    epilog="""\b
Example:
  secure-fl coordinate plan.toml --kit kits/hub --keys keys --out runs/study
  secure-fl coordinate codebook.toml --kit kits/hub --keys keys
      docs/statistics.md

The command waits for the hospitals, invites them to PLAN and coordinates the run. It cannot read
the updates. Ctrl-C stops the run after the round; the same command continues it."""
)
@click.argument("plan", type=PATH)
@click.option("--kit", type=PATH, required=True, help="The coordinator's kit.")
@keys_option
@click.option("--out", type=PATH, default=Path("runs/pilot"), show_default=True,
              help="The run's folder.")  # fmt: skip
@click.option("--listen", metavar="URL", help="Listen on this address, not the kit's.")
@click.option("--wait", type=SECONDS, default=3600.0, show_default=True,
              help="Seconds to wait for missing hospitals.")  # fmt: skip
@click.option("--grace", type=SECONDS, default=30.0, show_default=True,
              help="Seconds until a round continues without a disconnected hospital.",
              )  # fmt: skip
@metrics_option
@log_option
@errors_only_option
def coordinate(plan: Path, kit: Path, out: Path, **options: Any) -> None:
    """Coordinate a pilot: invite the hospitals of the roster to PLAN, and sum their updates."""
    from secure_fl.cli import show
    from secure_fl.cli.keyring import open_ring
    from secure_fl.display.status_line import CoordinatorStatus
    from secure_fl.engines.flare.hub import FlareHub
    from secure_fl.pilot.coordinator_process import RunLeader
    from secure_fl.pilot.kits import load_kit, require_coordinator
    from secure_fl.pilot.metrics import serving
    from secure_fl.pilot.plan import load_plan, write_plan
    from secure_fl.pilot.progress import EarlierEvents, progress
    from secure_fl.runs.folder import RunFolder

    signals = click.get_current_context().with_resource(StopSignals())
    asked, opened = load_plan(plan), load_kit(kit)
    roster, url = opened.roster, options["listen"] or opened.connection.url
    me = open_ring(options["folder"], options["passphrase_file"]).identity()
    require_coordinator(opened, me)
    show.warn_unprotected(show.err(), asked.protection.mode, asked.work)
    before = progress(out) if (out / "settings.toml").exists() else None
    run = RunFolder.open(out, write_plan(asked), resume=before is not None)
    status = CoordinatorStatus(asked.rounds)
    logging = service_log(options["log_format"], quiet=options["quiet"], status=status.lines)
    with closing(run), logging as log:
        for warning in opened.warnings():
            log.warning(warning)
        notes = CoordinatorLog(run, asked.rounds, log, status)
        notes.note_resumed(before)
        hub = FlareHub(url, opened.tls, roster.names, grace=options["grace"])
        with hub, serving(notes.meter, options["metrics"]):
            notes.watch(hub, roster.names)
            log.info(f"listening on {url}")
            again = {"patience": options["wait"], "earlier": EarlierEvents.of(out)}
            leader = RunLeader(hub, me, roster, asked, notes.recorder, **again)
            signals.ask(leader.stop)
            _lead(leader, hub, roster.names, options["wait"], notes)
            run.finish(leader.document())
            hub.dismiss()
            notes.page.write()
        log.info(f"done; the coordinator's record of the run is in {out}")


def _lead(
    leader: RunLeader, hub: FlareHub, names: Sequence[str], wait: float, notes: CoordinatorLog
) -> None:
    """Wait for the hospitals, and lead the run to its end."""
    from secure_fl.engines.flare.diagnosis import looking
    from secure_fl.pilot.coordinator_process import OperatorStop
    from secure_fl.pilot.member_faults import StragglerWatch, arrived

    arrived(hub, names, wait, notes.recorder, lambda: leader.stopping)
    with looking(StragglerWatch(hub, notes.recorder), every=5.0):
        try:
            leader.run()
        except OperatorStop as stopped:  # already in the log
            raise click.exceptions.Exit(stopped.exit_status) from None


class CoordinatorLog:
    """Receiver of a run's events: its folder, page, metrics, status lines and log."""

    def __init__(self, run: RunFolder, rounds: int, log: Logger, status: CoordinatorStatus) -> None:
        from secure_fl.display.run_page import PageWriter
        from secure_fl.events import EventLog
        from secure_fl.pilot.metrics import Meter

        self.meter, self.page = Meter(), PageWriter(run.path, in_background=True)
        self.recorder = EventLog("coordinator", self._note)
        self._run, self._rounds, self._log, self._writing = run, rounds, log, Lock()
        self._status = status

    def note_resumed(self, before: Mapping[str, Any] | None) -> None:
        """Note that the run continues, if an earlier process finished a round."""
        from secure_fl.events import Resumed

        if before is not None and before["round"]:
            self.recorder.event(Resumed(after=before["round"], state=before["state"]))

    def watch(self, hub: FlareHub, names: Sequence[str]) -> None:
        """Connect metrics and status lines to the hub: connected hospitals, and stragglers."""
        self.meter.connected = lambda: {name: name in hub.connected() for name in names}
        self.meter.dropped, self.meter.slow = hub.refused, hub.waited_for
        self._status.waited_for, self._status.connected = hub.waited_for, hub.connected

    def _note(self, event: Event) -> None:
        with self._writing:  # another thread notes stragglers
            self._run.record(event)
            self.page(event)
        self.meter.note(event)
        self._status(event)
        if (line := log_line(event, self._rounds)) is not None:
            self._log.log(event.LEVEL, line)


def log_line(event: Event, rounds: int) -> str | None:
    """Describe an event for the coordinator's log; return None for an event without a line."""
    from secure_fl.display.result_tables import listed, until_text
    from secure_fl.errors import TooFewParties
    from secure_fl.events import Resumed, RoundStarted, Stopped, Waiting

    match event:
        case RoundStarted(round=number, members=members):
            return f"round {number} of {rounds}: {', '.join(members)}" if number <= rounds else None
        case Resumed(after=after, state=state):
            ended = state.startswith(("stopped", "finished"))
            how = f"the run was {state}" if ended else "the previous process ended unexpectedly"
            return f"resumed in round {after} of {rounds}: {how}"
        case Waiting(parties=parties, more=more):
            needed = f" ({more} more {'is' if more == 1 else 'are'} needed)" if more else ""
            return f"waits for {listed(parties)}{needed}{until_text(event.until)}"
        case Stopped(final=False, code=code):
            few = code == TooFewParties.code
            return "too few members are left; this round stops" if few else None
        case Stopped(code="operator"):
            return "stopped by the operator; start again to continue"
        case Stopped(code=code, member=member):
            return f"stopped ({code}) {member}".rstrip()
    return event.sentence()


@click.command(
    epilog="""\b
Example:
  secure-fl status runs/study
      the coordinator's folder, or a hospital's"""
)
@click.argument("run", type=FOLDER)
@kit_option
@json_option
def status(run: Path, kit: Path, as_json: bool) -> None:
    """Show the progress of a pilot's RUN: rounds, members, lost members, bytes."""
    from secure_fl.cli import show
    from secure_fl.cli.transports import transports

    _require_started(run)
    if any(transport.show(run, kit, as_json=as_json) for transport in transports()):
        return
    from secure_fl.pilot.progress import progress

    state = progress(run)
    if as_json:
        show.print_json(state)
    else:
        _print_progress(state)


def _print_progress(state: dict[str, Any]) -> None:
    from secure_fl.cli import show
    from secure_fl.display.result_tables import approved, convicted, listed, until_text

    rows = [
        [name, m["state"], *("-" if m[k] is None else show.size(m[k]) for k in DIRECTIONS)]
        for name, m in state["members"].items()
    ]
    console = show.out()
    title = f"{state['state']}, round {state['round']} of {state['rounds']}"
    if rows:
        console.print(show.grid(title, ["hospital", "state", "sent", "received"], rows))
    else:
        console.print(f"{title}\nno hospital has connected yet")
    if waits := state["waits"]:
        since = datetime.fromtimestamp(waits["since"], UTC)
        missing = f"{listed(waits['for'])} since {since:%Y-%m-%d %H:%M:%S} UTC"
        console.print(f"waits for {missing}{until_text(waits['until'])}")
    texts = (convicted(state), approved(state))
    for line in (*"\n".join(filter(None, texts)).splitlines(), *state["notes"]):
        console.print(line)


def _require_started(run: Path) -> None:
    from secure_fl.errors import RunError

    if not run.is_dir():
        raise RunError(
            "there is no such folder",
            fix="check the path. A hospital's folder is created when it accepts the plan; until "
            "then the log of `join` shows the missing hospitals",
            file=run,
            reason="missing",
        )
