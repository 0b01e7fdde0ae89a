"""`secure-fl join`: a hospital's process in a pilot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.journal import journal, log_option
from secure_fl.cli.keyring import FILE
from secure_fl.cli.numbers import Whole
from secure_fl.cli.signals import Signals

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import Identity
    from secure_fl.engines.responder import Responder
    from secure_fl.errors import SecureFLError
    from secure_fl.events import Event
    from secure_fl.federation.run_feature import SiteLimits
    from secure_fl.pilot.hospital import Asked, HospitalProcess
    from secure_fl.pilot.kits import Kit
    from secure_fl.policy.policy_file import SiteFile, SitePolicy
    from secure_fl.policy.rules import Plan
    from secure_fl.statistics.site import StatisticsSite

MOST_REFUSALS = 20  # different ones that are shown; whoever sends them could fill a disk


@click.command(
    epilog="""\b
Example:
  secure-fl join site.toml --passphrase-file passphrase

It dials out to the coordinator, answers what [site] of SITE allows, and ends when the coordinator
says that the run is over, or on Ctrl-C. Start it again at any time: it goes on from its disk."""
)
@click.argument("site", type=FILE)
@click.option(
    "--kit", type=FILE, default=Path("kit"), show_default=True, help="As `site check` opened it."
)
@click.option("--passphrase-file", type=FILE, help="Read the passphrase from this file.")
@click.option(
    "--out", type=FILE, default=Path("runs"), show_default=True, help="For this site's runs."
)
@click.option(
    "--metrics",
    metavar="PORT",
    type=Whole(1, 65535),
    help="Show numbers for Prometheus on this port of 127.0.0.1.",
)
@click.option(
    "--go-back",
    is_flag=True,
    help="Let finished rounds be repeated: somebody lost what it had. DP budget is spent again.",
)
@click.option("--through", metavar="FOLDER", type=FILE,
              help="No network here: a `secure-fl courier FOLDER` elsewhere talks.")  # fmt: skip
@log_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def join(
    site: Path,
    kit: Path,
    passphrase_file: Path | None,
    out: Path,
    metrics: int | None,
    go_back: bool,
    through: Path | None,
    log_format: str,
    quiet: bool,
) -> None:
    """Take part in a pilot, by the rules of the site's own file SITE."""
    from secure_fl.display.status_line import SiteStatus
    from secure_fl.pilot.kits import load_kit
    from secure_fl.pilot.metrics import Meter, serving
    from secure_fl.policy.describe import describe
    from secure_fl.policy.policy_file import load_site

    signals = click.get_current_context().with_resource(Signals())
    rules, given = load_site(site), load_kit(kit)
    meter, standing = Meter(given.connection.name), SiteStatus()

    def heard(event: Event) -> None:
        meter.note(event)
        standing(event)
        _show(event, log)

    hospital = hospital_of(rules, given, passphrase_file, out, heard, goes_back=go_back)
    logging = journal(log_format, quiet=quiet, below=standing.lines)
    with logging as log, closing(hospital):
        for line in describe(rules.policy):
            log.info(line)
        for warning in given.warnings():
            log.warning(warning)
        answering = dialling(given, log) if through is None else posting(through, given, log)
        with answering as party, serving(meter, metrics):
            meter.connected = lambda: {given.connection.hub: party.is_connected()}
            signals.ask(party.stop)
            party.serve(standing.around(hospital.step))
        log.info(f"{hospital.name} has left; its runs are in {out}")


@contextmanager
def dialling(kit: Kit, log: Logger) -> Iterator[Responder]:
    """A hospital's end that has a connection of its own."""
    from secure_fl.engines.flare.diagnosis import explaining
    from secure_fl.engines.flare.flare_party import FlareParty

    name, hub, url = kit.connection.name, kit.connection.hub, kit.connection.url
    with FlareParty(name, url, kit.tls, hub=hub, refusing=turned_away(log)) as party:
        log.info(f"{name} waits for {url}")
        unconnected = partial(log.warning, "not connected, still dialling: %s")
        with explaining(party.is_connected, url, kit.tls, unconnected):
            yield party


@contextmanager
def posting(folder: Path, kit: Kit, log: Logger) -> Iterator[Responder]:
    """A hospital's end without network: what it says lies in a folder until a courier takes it."""
    from secure_fl.cli.courier import EVERY, noting
    from secure_fl.engines.flare.diagnosis import looking
    from secure_fl.engines.folder.file_message import message_key
    from secure_fl.engines.folder.folder_party import FolderParty

    key = message_key(kit.tls)
    with FolderParty(folder, key, refusing=turned_away(log)) as party:
        with looking(noting(party.end, folder, log), EVERY):
            yield party


def hospital_of(
    rules: SiteFile,
    kit: Kit,
    passphrase_file: Path | None,
    out: Path,
    heard: Callable[[Event], None],
    *,
    goes_back: bool = False,
) -> HospitalProcess:
    """What answers for this site, whichever engine carries its frames."""
    from secure_fl.cli.keyring import open_ring
    from secure_fl.crypto.privacy.ledger import Ledger
    from secure_fl.learning.dp.scope import LEDGER
    from secure_fl.pilot.approving import Approving
    from secure_fl.pilot.hospital import HospitalProcess
    from secure_fl.pilot.kits import require_own
    from secure_fl.pilot.site_memory import records_of, site_keys
    from secure_fl.pilot.site_run import HospitalContext

    name, roster = kit.connection.name, kit.roster
    ring = open_ring(rules.keys, passphrase_file)
    require_own(kit, ring.identity())
    keys = site_keys(ring, roster)
    ledger = Ledger(rules.ledger / name / LEDGER, keys.identity)
    approving = Approving(rules, keys.identity.public)
    return HospitalProcess(
        HospitalContext(
            keys,
            roster,
            lambda plan: records_of(rules, roster.member(name), plan),
            out,
            heard,
            rules.ledger,
            limits_of(rules.policy),
            goes_back=goes_back,
        ),
        plan_rules(rules, kit),
        asked=question_rules(rules, kit, keys.identity),
        approvals=lambda plan: approving.require(ledger, plan),
    )


def limits_of(policy: SitePolicy) -> SiteLimits:
    """The limits of a site's policy that apply inside a run."""
    from secure_fl.federation.run_feature import SiteLimits

    options = {"max_growth": policy.max_growth, "share_scores": policy.share_scores}
    return SiteLimits(policy.max_batch, options)


def plan_rules(rules: SiteFile, kit: Kit) -> Callable[[Plan], None]:
    """What refuses plans that this site's file does not allow."""
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.federation.validation import require_masks
    from secure_fl.policy.model_size import check_size
    from secure_fl.policy.rules import Company, check

    name = kit.connection.name
    company = Company.of(kit.roster, name)

    def approve(plan: Plan) -> None:
        check(rules.policy, plan, company)
        check_size(rules.policy, plan, name)
        require_masks(ALGORITHMS[plan.algorithm.name], plan.protection)

    return approve


def question_rules(rules: SiteFile, kit: Kit, me: Identity) -> Asked:
    """What refuses questions, and answers those that are allowed."""
    from secure_fl.pilot.hospital import Asked
    from secure_fl.policy.questions import QuestionPlan, check_questions
    from secure_fl.policy.rules import Company

    name = kit.connection.name
    company = Company.of(kit.roster, name)

    def records(plan: QuestionPlan) -> StatisticsSite:
        from secure_fl.pilot.site_questions import statistics_of

        return statistics_of(rules, name, plan, me)

    return Asked(lambda plan: check_questions(rules.policy, plan, company), records)


def turned_away(log: Logger) -> Callable[[SecureFLError], None]:
    """Show what was not answered at all, each reason once: a hospital would just stand still."""
    said: set[str] = set()

    def refusing(error: SecureFLError) -> None:
        if error.what in said or len(said) >= MOST_REFUSALS:
            return
        said.add(error.what)
        log.warning(
            f"not answered ({error.code}): {error}\n  -> if nothing goes on: does the coordinator "
            "use the kit of the same `secure-fl pilot init`, and the identity on its roster? "
            "Compare `secure-fl keys show kit/roster.json` at both"
        )

    return refusing


def _show(event: Event, log: Logger) -> None:
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
