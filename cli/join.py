"""`secure-fl join`: the process of a hospital in a pilot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.keyring import passphrase_option
from secure_fl.cli.options import PATH, kit_option, metrics_option
from secure_fl.cli.service import StopSignals, errors_only_option, log_option, service_log
from secure_fl.cli.transports import transport_options, transports

if TYPE_CHECKING:
    from secure_fl.engines.responder import Responder
    from secure_fl.errors import SecureFLError
    from secure_fl.events import Event
    from secure_fl.federation.run_feature import SiteLimits
    from secure_fl.pilot.hospital import HospitalProcess
    from secure_fl.pilot.kits import Kit
    from secure_fl.pilot.site_run import Records
    from secure_fl.policy.plan import Plan
    from secure_fl.policy.policy_file import SiteFile, SitePolicy

MOST_REFUSALS = 20  # distinct ones in the log; more could fill a disk


@click.command(
    epilog="""\b
Example:
  secure-fl join site.toml --passphrase-file passphrase

The command connects to the coordinator and answers what [site] of SITE allows. It ends when the
coordinator ends the run, or on Ctrl-C. Start it again at any time: it continues from its disk."""
)
@click.argument("site", type=PATH)
@kit_option
@passphrase_option
@click.option("--out", type=PATH, default=Path("runs"), show_default=True,
              help="Folder for this site's runs.")  # fmt: skip
@metrics_option
@click.option(
    "--go-back",
    is_flag=True,
    help="Allow repeated rounds after a member lost its state. This spends DP budget again.",
)
@transport_options
@log_option
@errors_only_option
def join(site: Path, kit: Path, out: Path, **options: Any) -> None:
    """Join a pilot, under the rules of the site's own file SITE."""
    from secure_fl.display.status_line import SiteStatus
    from secure_fl.pilot.kits import load_kit
    from secure_fl.pilot.metrics import Meter, serving
    from secure_fl.policy.policy_file import load_site

    signals = click.get_current_context().with_resource(StopSignals())
    rules, opened = load_site(site), load_kit(kit)
    meter, status = Meter(opened.connection.name), SiteStatus()

    def listen(event: Event) -> None:
        meter.note(event)
        status(event)
        log_event(event, log)

    passphrase, go_back = options["passphrase_file"], options["go_back"]
    hospital = hospital_of(rules, opened, passphrase, out, listen, goes_back=go_back)
    logging = service_log(options["log_format"], quiet=options["quiet"], status=status.lines)
    with logging as log, closing(hospital):
        log_rules(rules, opened, log)
        with connection(opened, log, options) as party, serving(meter, options["metrics"]):
            meter.connected = lambda: {opened.connection.hub: party.is_connected()}
            signals.ask(party.stop)
            party.serve(status.around(hospital.step))
        log.info(f"{hospital.name} has left; its runs are in {out}")


def log_rules(rules: SiteFile, kit: Kit, log: Logger) -> None:
    """Log the rules of a site, and the warnings about its kit and its privacy ledger."""
    from secure_fl.pilot.approvals import ledger_warning
    from secure_fl.policy.describe import describe

    for line in describe(rules.policy):
        log.info(line)
    for warning in kit.warnings():
        log.warning(warning)
    if (other := ledger_warning(rules, kit.connection.name)) is not None:
        log.warning("%s\n  -> %s", *other)


def connection(
    kit: Kit, log: Logger, options: Mapping[str, Any]
) -> AbstractContextManager[Responder]:
    """Connect to the coordinator by the transport that the options choose."""
    for transport in transports():
        if (place := options[transport.parameter]) is not None:
            return transport.connect(place, kit, log, log_refusals(log))
    return connected(kit, log)


@contextmanager
def connected(kit: Kit, log: Logger) -> Iterator[Responder]:
    """Connect to the coordinator over the network."""
    from secure_fl.engines.flare.cell import FlareParty
    from secure_fl.engines.flare.diagnosis import explaining

    name, hub, url = kit.connection.name, kit.connection.hub, kit.connection.url
    with FlareParty(name, url, kit.tls, hub=hub, refusing=log_refusals(log)) as party:
        log.info(f"{name} waits for {url}")
        unconnected = partial(log.warning, "not connected, retrying: %s")
        with explaining(party.is_connected, url, kit.tls, unconnected):
            yield party


def hospital_of(
    rules: SiteFile,
    kit: Kit,
    passphrase_file: Path | None,
    out: Path,
    listen: Callable[[Event], None],
    *,
    goes_back: bool = False,
    records: Records | None = None,
) -> HospitalProcess:
    """Build the process that answers for this site, for any transport.

    `records`: the site's records for a plan. Default: its files.
    """
    from secure_fl.cli.keyring import open_ring
    from secure_fl.crypto.privacy.ledger import Ledger
    from secure_fl.learning.dp.scope import LEDGER
    from secure_fl.pilot.approvals import Approving, ledger_warning
    from secure_fl.pilot.hospital import HospitalProcess
    from secure_fl.pilot.kits import require_own
    from secure_fl.pilot.site_memory import records_of, site_keys
    from secure_fl.pilot.site_run import HospitalContext

    name, roster = kit.connection.name, kit.roster
    ring = open_ring(rules.keys, passphrase_file)
    identity = ring.identity()
    require_own(kit, identity)
    keys = site_keys(ring, identity, roster)
    ledger = Ledger(rules.ledger / name / LEDGER, keys.identity)
    approving = Approving(rules, keys.identity.public)
    load = records or (lambda plan: records_of(rules, roster.member(name), plan))
    limits = limits_of(rules.policy)
    other = ledger_warning(rules, name)
    context = HospitalContext(
        keys, roster, load, out, listen, rules.ledger, limits, goes_back=goes_back,
        other_ledger=None if other is None else ". Fix: ".join(other),
    )  # fmt: skip
    return HospitalProcess(
        context, plan_rules(rules, kit), approvals=lambda plan: approving.require(ledger, plan)
    )


def limits_of(policy: SitePolicy) -> SiteLimits:
    """The limits of a site's policy that apply inside a run."""
    from secure_fl.federation.run_feature import SiteLimits
    from secure_fl.policy.site_rules import site_rules

    options = {name: value for one in site_rules() for name, value in one.limits(policy).items()}
    return SiteLimits(policy.max_batch, options, own_epsilon=policy.dp.own_epsilon)


def plan_rules(rules: SiteFile, kit: Kit) -> Callable[[Plan], None]:
    """Return the check that refuses plans against this site's rules."""
    from secure_fl.policy.model_size import check_size
    from secure_fl.policy.rules import Company, check

    name = kit.connection.name
    company = Company.of(kit.roster, name)

    def approve(plan: Plan) -> None:
        check(rules.policy, plan, company)
        check_size(rules.policy, plan, name)

    return approve


def log_refusals(log: Logger) -> Callable[[SecureFLError], None]:
    """Return a function that logs messages without an answer, each reason once."""
    logged: set[str] = set()

    def refuse(error: SecureFLError) -> None:
        if error.what in logged or len(logged) >= MOST_REFUSALS:
            return
        logged.add(error.what)
        log.warning(
            f"not answered ({error.code}): {error}\n  -> if the run does not continue: check that "
            "the coordinator uses the kit of the same `secure-fl pilot init` and its identity on "
            "the roster. Compare `secure-fl keys show kit/roster.json` at both"
        )

    return refuse


def log_event(event: Event, log: Logger) -> None:
    """Log an event of a hospital's process."""
    from secure_fl.events import Convicted, Refused, Waiting

    level = logging.ERROR if isinstance(event, Refused) else event.LEVEL
    match event:
        case Waiting(run=run, parties=parties):
            names = ", ".join(parties) or "answers of others"
            line: str | None = f"{run} waits for {names}; the coordinator will ask again"
        case Convicted(names=names):
            line = f"{names} spoiled a sum: see evidence/ in this run's folder"
        case _:
            line = event.sentence()
    if line is not None:
        log.log(level, line)
