"""`secure-fl join`: a hospital's process in a pilot."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from secure_fl.cli.keyring import FILE


@click.command(
    epilog="""\b
Example:
  secure-fl join site.toml --kit kits/north --passphrase-file passphrase

It dials out to the coordinator, answers what [site] of SITE allows, and ends when the coordinator
says that the run is over, or on Ctrl-C. Start it again at any time: it goes on from its disk."""
)
@click.argument("site", type=FILE)
@click.option("--kit", type=FILE, required=True, help="The kit that was made for this site.")
@click.option("--passphrase-file", type=FILE, help="Read the passphrase from this file.")
@click.option(
    "--out", type=FILE, default=Path("runs"), show_default=True, help="For this site's runs."
)
@click.option(
    "--metrics",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Show numbers for Prometheus on this port of 127.0.0.1.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def join(
    site: Path,
    kit: Path,
    passphrase_file: Path | None,
    out: Path,
    metrics: int | None,
    quiet: bool,
) -> None:
    """Take part in a pilot, by the rules of the site's own file SITE."""
    import torch

    from secure_fl.cli.keyring import open_ring
    from secure_fl.engines.flare_party import FlareParty
    from secure_fl.pilot.kits import load_kit
    from secure_fl.pilot.metrics import Meter, serving
    from secure_fl.pilot.records import records_of
    from secure_fl.pilot.seat import Seat
    from secure_fl.site_keys import site_keys
    from secure_fl.site_policy import describe, load_site
    from secure_fl.site_rules import Company, Plan, check

    torch.set_num_threads(1)  # sums of small models round alike everywhere
    rules, given = load_site(site), load_kit(kit)
    name, roster = given.connection.name, given.roster
    keys = site_keys(open_ring(rules.keys, passphrase_file), roster)
    roster.require(keys.identity.public)
    company = Company.of(roster, name)
    tell = (lambda text: None) if quiet else click.echo
    for line in describe(rules.policy):
        tell(f"  {line}")

    def approve(plan: Plan) -> None:
        check(rules.policy, plan, company)

    meter = Meter(name)

    def heard(event: dict[str, Any]) -> None:
        meter.note(event)
        _show(event, tell)

    seat = Seat(
        keys,
        roster,
        approve,
        lambda plan: records_of(rules, roster.member(name), plan),
        out,
        heard,
        rules.ledger,
    )
    connection = given.connection
    dialled = FlareParty(name, connection.url, given.tls, hub=connection.hub)
    with dialled as end, serving(meter, metrics):
        meter.connected = lambda: {connection.hub: end.is_connected()}
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: end.stop())
        tell(f"{name} waits for {connection.url}")
        try:
            end.serve(seat.step)
        finally:
            seat.close()
    tell(f"{name} has left; its runs are in {out}")


def _show(event: dict[str, Any], tell: Any) -> None:
    match event["event"]:
        case "invited":
            tell(f"invited to {event['run']}: this site's rules allow it")
        case "refused":
            click.echo(f"refused ({event['code']}): {event['why']}", err=True)
        case "metrics":
            scores = ", ".join(f"{k} {v:.3f}" for k, v in event.items() if isinstance(v, float))
            tell(f"round {event['round']}, {event['split']}: {scores}")
