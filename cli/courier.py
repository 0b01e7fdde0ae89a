"""`secure-fl courier`: the half of a hospital that talks, where the other half has no network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.journal import journal, log_option
from secure_fl.cli.keyring import FILE
from secure_fl.cli.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger

    from secure_fl.engines.folder.end import FolderEnd

EVERY = 0.5  # seconds between two looks at the other end
SAID = {
    "nobody": "waits for a {other} at {folder}; start it with `{command}`",
    "here": "the {other} is here",
    "left": "the {other} has left; waits for it to come back",
    "silent": "nothing of the {other} for {patience:.0f} s: was it killed, or is the folder's disk "
    "away? Waits for it to come back",
    "unconnected": "the courier is here, and has no connection to the coordinator yet",
    "connected": "the courier is here, and connected to the coordinator",
}
GONE = ("nobody", "left", "silent")
COMMANDS = {"TRAINER": "secure-fl join SITE --through", "COURIER": "secure-fl courier"}


@click.command(
    epilog="""\b
Example:
  login$ secure-fl courier /shared/north/letters --kit kit
  node$  secure-fl join site.toml --kit kit --through /shared/north/letters

It carries sealed messages between the coordinator and FOLDER, and can open none: it needs the kit's
TLS files, and no keys, records or passphrase. It ends when the coordinator says that the run is
over, or on Ctrl-C. Start it again at any time: it remembers nothing, and nothing is lost."""
)
@click.argument("folder", type=FILE)
@click.option(
    "--kit", type=FILE, default=Path("kit"), show_default=True, help="As `site check` opened it."
)
@log_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def courier(folder: Path, kit: Path, log_format: str, quiet: bool) -> None:
    """Talk for a trainer without network, through FOLDER, which both machines have."""
    from secure_fl.engines.flare.diagnosis import address, explaining, looking
    from secure_fl.engines.flare.flare_party import MAX_BYTES, Dialled
    from secure_fl.engines.folder.courier import Courier
    from secure_fl.engines.folder.file_message import message_key
    from secure_fl.pilot.kits import load_kit, require_hospital

    signals = click.get_current_context().with_resource(Signals())
    given = load_kit(kit)
    require_hospital(given)
    name, hub, url = given.connection.name, given.connection.hub, given.connection.url
    address(url)
    with journal(log_format, quiet=quiet) as log:
        for warning in given.warnings():
            log.warning(warning)
        dial = partial(Dialled, name, url, given.tls, hub, MAX_BYTES)
        carrier = Courier(folder, message_key(given.tls), dial)
        signals.ask(carrier.stop)

        def unconnected(why: str) -> None:
            carrier.why = why
            log.warning("not connected, still dialling: %s", why)

        log.info(f"courier of {name}, between {url} and {folder}")
        with explaining(carrier.is_connected, url, given.tls, unconnected):
            with looking(noting(carrier.end, folder, log), EVERY):
                carrier.serve()
        log.info(f"the courier of {name} has left")


def noting(end: FolderEnd, folder: Path, log: Logger) -> Callable[[object], None]:
    """What looks who is at the other end, and logs it when it changes."""
    said = ""

    def look(_over: object) -> None:
        nonlocal said
        state, other = end.state(), end.presence.me.other.name
        text = SAID[state].format(
            other=other.lower(),
            folder=folder,
            command=f"{COMMANDS[other]} {folder}",
            patience=end.presence.patience,
        )
        if state == "unconnected" and (why := end.presence.told.why):
            text = f"{text}: {why}"
        if text != said:
            said = text
            (log.info if state in ("here", "connected") else log.warning)(text)

    return look


def show_ends(folder: Path, kit: Path, *, as_json: bool) -> None:
    """Print who is at both ends of FOLDER, for whom the other waits, and since when."""
    from dataclasses import asdict
    from datetime import UTC, datetime

    from secure_fl.cli import show
    from secure_fl.engines.folder.file_message import message_key
    from secure_fl.engines.folder.inspect_mailbox import look
    from secure_fl.pilot.kits import load_kit

    seen = look(folder, message_key(load_kit(kit).tls))
    if as_json:
        show.print_json([asdict(one) for one in seen])
        return
    rows, waits = [], []
    for one in seen:
        at = "-" if one.at is None else f"{datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M:%S}"
        rows.append([one.who, one.state, at])
        if one.state in GONE:
            waits.append(f"waits for a {one.who}" + f" since {at} UTC" * (one.at is not None))
    console = show.out()
    console.print(show.grid(str(folder), ["end", "state", "last sign of life"], rows))
    for line in (*waits, *(f"no connection: {one.why}" for one in seen if one.why)):
        console.print(line)
