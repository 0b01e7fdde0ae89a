"""The folder as a transport of `join`, and `secure-fl courier`, its end with the network."""

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
    "silent": "no sign of the {other} for {patience:.0f} s: it was killed, or the folder's disk is "
    "not mounted. Waits for its return",
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
        carrier = Courier(folder, message_key(opened.tls), dial)
        signals.ask(carrier.stop)

        def unconnected(why: str) -> None:
            carrier.why = why
            log.warning("not connected, retrying: %s", why)

        log.info(f"courier of {name}, between {url} and {folder}")
        with explaining(carrier.is_connected, url, opened.tls, unconnected):
            with looking(log_other_end(carrier.end, folder, log), EVERY):
                carrier.serve()
        log.info(f"the courier of {name} has left")


def log_other_end(end: FolderEnd, folder: Path, log: Logger) -> Callable[[object], None]:
    """Return a function that checks the other end, and logs changes of its state."""
    logged = ""

    def look(_over: object) -> None:
        nonlocal logged
        state, other = end.state(), end.presence.me.other.name
        text = STATES[state].format(
            other=other.lower(),
            folder=folder,
            command=f"{COMMANDS[other]} {folder}",
            patience=end.presence.patience,
        )
        if state == "unconnected" and (why := end.presence.told.why):
            text = f"{text}: {why}"
        if text != logged:
            logged = text
            (log.info if state in ("here", "connected") else log.warning)(text)

    return look


def show_ends(folder: Path, kit: Path, *, as_json: bool) -> None:
    """Print the state of both ends of FOLDER, and how long one waits for the other."""
    from dataclasses import asdict
    from datetime import UTC, datetime

    from secure_fl.cli import show
    from secure_fl.features.air_gap.file_message import message_key
    from secure_fl.features.air_gap.folder_end import look
    from secure_fl.pilot.kits import load_kit

    ends = look(folder, message_key(load_kit(kit).tls))
    if as_json:
        show.print_json([asdict(end) for end in ends])
        return
    rows, waits = [], []
    for end in ends:
        at = "-" if end.at is None else f"{datetime.fromtimestamp(end.at, UTC):%Y-%m-%d %H:%M:%S}"
        rows.append([end.who, end.state, at])
        if end.state in GONE:
            waits.append(f"waits for a {end.who}" + f" since {at} UTC" * (end.at is not None))
    console = show.out()
    console.print(show.grid(str(folder), ["end", "state", "last sign of life"], rows))
    for line in (*waits, *(f"no connection: {end.why}" for end in ends if end.why)):
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
        from secure_fl.features.air_gap.folder_end import FolderParty

        with FolderParty(place, message_key(kit.tls), refusing=refuse) as party:
            with looking(log_other_end(party.end, place, log), EVERY):
                yield party

    def show(self, place: Path, kit: Path, *, as_json: bool) -> bool:
        """Print the state of both ends of a courier's folder."""
        from secure_fl.features.air_gap.folder_end import is_letters

        if not is_letters(place):
            return False
        show_ends(place, kit, as_json=as_json)
        return True


FOLDER_TRANSPORT = FolderTransport()
