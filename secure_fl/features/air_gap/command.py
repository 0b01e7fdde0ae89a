"""The transport of `join` through a folder, and `secure-fl courier`, its end with the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.options import PATH, kit_option
from secure_fl.cli.service import StopSignals, errors_only_option, log_option, service_log
from secure_fl.cli.transports import Command, Refuse

if TYPE_CHECKING:
    from secure_fl.engines.responder import Responder
    from secure_fl.features.air_gap.folder_end import FolderEnd
    from secure_fl.pilot.kits import Kit

EVERY = 0.5  # seconds between two checks of the other end
STATES = {
    "nobody": "waits for a {other} at {folder}; start it with `{command}`",
    "here": "the {other} is running",
    "left": "the {other} has ended; waits for its restart",
    "silent": "no heartbeat of the {other} for {patience:.0f} s: it was killed, or the folder's "
    "disk is not mounted. Waits for its return",
    "unconnected": "the courier is running, without a connection to the coordinator yet",
    "connected": "the courier is running, and connected to the coordinator",
}
GONE = ("nobody", "left", "silent")
COMMANDS = {"TRAINER": "secure-fl join SITE --through", "COURIER": "secure-fl courier"}


@click.command(
    epilog="""\b
Example:
  login$ secure-fl courier /shared/north/letters --kit kit
  node$  secure-fl join site.toml --kit kit --through /shared/north/letters
  node$  secure-fl status /shared/north/letters     state of both ends

The courier relays sealed messages between the coordinator and FOLDER, and can open none of them.
It needs the kit's TLS files, but no keys, records or passphrase. It ends when the coordinator ends
the run, or on Ctrl-C. Start it again at any time: it has no state, and nothing is lost."""
)
@click.argument("folder", type=PATH)
@kit_option
@log_option
@errors_only_option
def courier(folder: Path, kit: Path, log_format: str, quiet: bool) -> None:
    """Relay messages for an offline training machine, through FOLDER on both machines."""
    from secure_fl.engines.flare.cell import MAX_BYTES, Dialled
    from secure_fl.engines.flare.diagnosis import address, explaining, looking
    from secure_fl.features.air_gap.courier import Courier
    from secure_fl.features.air_gap.file_message import message_key
    from secure_fl.pilot.kits import load_kit, require_hospital

    signals = click.get_current_context().with_resource(StopSignals())
    opened = load_kit(kit)
    require_hospital(opened)
    name, hub, url = opened.connection.name, opened.connection.hub, opened.connection.url
    address(url)
    with service_log(log_format, quiet=quiet) as log:
        for warning in opened.warnings():
            log.warning(warning)
        dial = partial(Dialled, name, url, opened.tls, hub, MAX_BYTES)
        relay = Courier(folder, message_key(opened.tls), dial)
        signals.ask(relay.stop)

        def unconnected(reason: str) -> None:
            relay.reason = reason
            log.warning("not connected, retrying: %s", reason)

        log.info(f"courier of {name}, between {url} and {folder}")
        with explaining(relay.is_connected, url, opened.tls, unconnected):
            with looking(log_other_end(relay.end, folder, log), EVERY):
                relay.serve()
        log.info(f"the courier of {name} has left")


def log_other_end(end: FolderEnd, folder: Path, log: Logger) -> Callable[[object], None]:
    """Return a function that checks the other end, and logs changes of its state."""
    logged = ""

    def look(_over: object) -> None:
        nonlocal logged
        monitor = end.monitor
        state, other = monitor.state(), monitor.endpoint.other.name
        text = STATES[state].format(
            other=other.lower(),
            folder=folder,
            command=f"{COMMANDS[other]} {folder}",
            patience=monitor.patience,
        )
        if state == "unconnected" and (reason := monitor.status.reason):
            text = f"{text}: {reason}"
        if text != logged:
            logged = text
            (log.info if state in ("here", "connected") else log.warning)(text)

    return look


def show_ends(folder: Path, kit: Path, *, as_json: bool) -> None:
    """Print the state of both ends of FOLDER, and how long one waits for the other."""
    from datetime import UTC, datetime

    from secure_fl.cli import show
    from secure_fl.features.air_gap.end_states import read_states
    from secure_fl.features.air_gap.file_message import message_key
    from secure_fl.pilot.kits import load_kit

    ends = read_states(folder, message_key(load_kit(kit).tls))
    if as_json:
        show.print_json(
            [
                {"who": e.endpoint, "state": e.state, "at": e.last_heartbeat, "why": e.reason}
                for e in ends
            ]
        )
        return
    rows, waits = [], []
    for end in ends:
        time = end.last_heartbeat
        shown = "-" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
        rows.append([end.endpoint, end.state, shown])
        if end.state in GONE:
            since = "" if time is None else f" since {shown} UTC"
            waits.append(f"waits for a {end.endpoint}{since}")
    console = show.out()
    console.print(show.grid(str(folder), ["end", "state", "last heartbeat"], rows))
    for line in (*waits, *(f"no connection: {end.reason}" for end in ends if end.reason)):
        console.print(line)


class FolderTransport:
    """The transport of a training machine without network."""

    parameter = "through"

    def option(self, command: Command) -> Command:
        """Add `--through` to `join`."""
        text = "Without network: exchange messages with a `secure-fl courier FOLDER`."
        add: Callable[[Command], Command] = click.option(
            "--through", metavar="FOLDER", type=PATH, help=text
        )
        return add(command)

    @contextmanager
    def connect(self, place: Path, kit: Kit, log: Logger, refuse: Refuse) -> Iterator[Responder]:
        """Exchange messages through a folder."""
        from secure_fl.engines.flare.diagnosis import looking
        from secure_fl.features.air_gap.file_message import message_key
        from secure_fl.features.air_gap.folder_party import FolderParty

        with FolderParty(place, message_key(kit.tls), refusing=refuse) as party:
            with looking(log_other_end(party.end, place, log), EVERY):
                yield party

    def show(self, place: Path, kit: Path, *, as_json: bool) -> bool:
        """Print the state of both ends of a courier's folder."""
        from secure_fl.features.air_gap.end_states import is_mailbox_folder

        if not is_mailbox_folder(place):
            return False
        show_ends(place, kit, as_json=as_json)
        return True


FOLDER_TRANSPORT = FolderTransport()
