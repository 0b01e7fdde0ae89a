"""`secure-fl site`: a hospital's setup for a pilot, its approvals and its erasures."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.keyring import open_ring, passphrase_option
from secure_fl.cli.options import (
    PATH,
    column_names,
    column_option,
    complete_algorithm,
    known_algorithms,
)

if TYPE_CHECKING:
    from secure_fl.crypto.keys.keyring import KeyRing
    from secure_fl.crypto.keys.roster import Roster
    from secure_fl.pilot.approvals import Approving
    from secure_fl.pilot.kits import Kit
    from secure_fl.policy.policy_file import SiteFile

DAYS = 180  # that new rules allow runs


@click.group(cls=WrappedHelpGroup)
def site() -> None:
    """Set up a hospital for a pilot, and check that it is ready.

    \b
    north$ secure-fl site init north ...
        send north.card.json out
    north$ secure-fl site check site.toml --kit north.kit
        when the coordinator has sent it
    north$ secure-fl join site.toml
    """  # noqa: D301


def site_name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """Refuse an invalid site name before any prompt."""
    from secure_fl.crypto.keys.identity import NAME

    if not NAME.fullmatch(name):
        allowed = "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
        raise click.BadParameter(f"found {name[:80]!r}; allowed: {allowed}")
    return name


@site.command(
    epilog="""\b
Example:
  secure-fl site init north --dataset notes --train train.jsonl \\
      --passphrase-file passphrase

The command asks for missing values. It generates a passphrase file that does not exist."""
)
@click.argument("name", callback=site_name)
@click.option("--dataset", prompt="Name of the data set, as agreed",
              help="Name of the data set, as in the plan.")  # fmt: skip
@click.option("--train", prompt="File of training records", help="This site's training records.")
@click.option("--dev", default="0.1", show_default=True, help="A file, or a fraction of --train.")
@click.option("--test", default="0.2", show_default=True, help="A file, or a fraction of --train.")
@click.option("--algorithm", "algorithms", multiple=True, default=["fedavg"], show_default=True,
              callback=known_algorithms, shell_complete=complete_algorithm,
              help="Algorithm that this site is willing to run. Repeatable.")  # fmt: skip
@click.option("--model", "models", multiple=True, default=["tiny"], show_default=True,
              help="Model that this site is willing to train. Repeatable.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True,
              help="Maximum number of rounds.")  # fmt: skip
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]),
              help=f"Last day on which runs are allowed.  [default: in {DAYS} days]")  # fmt: skip
@column_option
@click.option("--made-up", is_flag=True, help="The records are synthetic: do not require DP-SGD.")
@passphrase_option
def init(
    name: str,
    rounds: int,
    until: datetime | None,
    made_up: bool,
    passphrase_file: Path | None,
    columns: tuple[str, ...],
    **allowed: Any,
) -> None:
    """Create the identity of site NAME, its rules (site.toml), and the card to send out."""
    from secure_fl.crypto.keys.files import write_atomic
    from secure_fl.crypto.keys.identity import Identity
    from secure_fl.crypto.keys.roster_files import card_bytes
    from secure_fl.pilot.site_file import Rules, require_columns, write_site
    from secure_fl.policy.policy_file import load_site

    last = until or datetime.now(UTC) + timedelta(days=DAYS)
    file = Path("site.toml")
    chosen = column_names(columns)
    rules = Rules(
        name=name, until=last.date(), rounds=rounds, made_up=made_up, columns=chosen, **allowed
    )
    write_site(file, rules)
    try:
        (records,) = load_site(file).sets.values()
        require_columns(records)
        me = Identity.generate(name)
        open_ring(Path("keys"), passphrase_file, fresh=True).create(me)
    except BaseException:
        file.unlink()  # so that the command can be repeated
        raise
    card = Path(f"{name}.card.json")
    write_atomic(card, card_bytes(me))
    click.echo(f"rules: {file} (read them: a coordinator can ask this site for nothing else)")
    click.echo("keys: keys (back this folder up, and the passphrase in another place)")
    click.echo(f"card: {card}, to send to the dealer\nfingerprint: {me.public.fingerprint()}")


@site.command(
    epilog="""\b
Example:
  secure-fl site check site.toml --kit north.kit --passphrase-file passphrase

The command asks if you compared the fingerprints. --roster with the fingerprint that you heard by
phone is the answer. The exit status is 0 if this site can join, else 1."""
)
@click.argument("file", metavar="SITE", type=PATH)
@click.option("--kit", type=PATH, required=True, help="The file from the coordinator.")
@click.option("--roster", "expected", help="The roster's fingerprint, as you heard it.")
@passphrase_option
@click.option("--rehearse/--no-rehearsal", default=True, show_default=True,
              help="Train one round on this site's records.")  # fmt: skip
@click.pass_context
def check(
    ctx: click.Context,
    file: Path,
    kit: Path,
    expected: str | None,
    passphrase_file: Path | None,
    rehearse: bool,
) -> None:
    """Open this site's kit, approve the roster, and check that the site is ready to join."""
    from secure_fl.cli.doctor import show_checks
    from secure_fl.cli.site_check import examine
    from secure_fl.pilot.kits import ROSTER, load_kit, open_kit, put_in_place, require_own
    from secure_fl.pilot.site_file import set_roster
    from secure_fl.policy.policy_file import load_site

    rules = load_site(file)
    ring = open_ring(rules.keys, passphrase_file)
    with TemporaryDirectory(dir=file.absolute().parent, prefix=".kit-") as place:
        folder = kit if kit.is_dir() else open_kit(kit, ring.identity(), Path(place) / "kit")
        opened = load_kit(folder)
        require_own(opened, ring.identity())
        ring.require_newer(opened.roster)
        current = file.parent / "kit"
        before = _approved_before(current / ROSTER, ring)
        _approve_roster(folder / ROSTER, ring, expected, before)
        _accept_keys(load_kit(folder), ring)
        if folder != kit:  # only now, so that a refused kit replaces nothing
            folder = put_in_place(folder, current)
    opened = load_kit(folder)
    new, old = opened.roster.fingerprint(), None if before is None else before.fingerprint()
    for removed in set_roster(file, new, replaces=None if old == new else old):
        click.echo(f"removed from rosters in {file}: {removed}")
    healthy = show_checks(list(examine(load_site(file), opened, rehearse=rehearse)))
    if healthy:
        click.echo(f"ready: secure-fl join {file} --kit {os.path.relpath(folder)}")
    ctx.exit(0 if healthy else 1)


def _approved_before(file: Path, ring: KeyRing) -> Roster | None:
    """Return the roster of the current kit if this site has signed it."""
    from secure_fl.crypto.keys.roster_files import load_roster
    from secure_fl.errors import KeyringError

    try:
        before = load_roster(file)
        before.verify(me=ring.identity().public, now=before.created)
    except KeyringError:
        return None
    return before


def _approve_roster(file: Path, ring: KeyRing, expected: str | None, before: Roster | None) -> None:
    """Sign the roster if a person confirms its fingerprint."""
    from secure_fl.cli.keys import approved, changes
    from secure_fl.crypto.keys.roster_files import load_roster
    from secure_fl.errors import KeyringError

    new = load_roster(file)
    fingerprint = new.fingerprint()
    for line in [] if before is None else changes(before, new):
        click.echo(f"changed since the last approved roster: {line}")
    if expected is not None and expected.split() != fingerprint.split():
        what = f"this kit's roster has the fingerprint {fingerprint}"
        fix = "it is not the one you were given: ask the other sites, and do not join"
        raise KeyringError(what, file=file, fix=fix, reason="other-roster")
    if ring.identity().name in dict(new.signatures):
        click.echo(f"roster: already signed here; its fingerprint is {fingerprint}")
    approved(file, ring, yes=expected is not None)


def _accept_keys(kit: Kit, ring: KeyRing) -> None:
    """Store the cohort's keys from the kit, unless this site has them."""
    from secure_fl.crypto.keys.files import read_bounded
    from secure_fl.pilot.kits import BUNDLE

    held, file = ring.held(), kit.folder / BUNDLE
    if held is None or held.roster != kit.roster.digest():
        held = ring.accept(kit.roster, read_bounded(file))
    click.echo(f"cohort's keys: dealt by {held.dealer}")
    click.echo(f"cohort fingerprint, to compare by phone: {held.fingerprint()}")


@site.command(
    epilog="""\b
Example:
  secure-fl keys identity anna --keys anna
      once; [site.approval] lists its fingerprint
  secure-fl site approve site.toml --plan kit/plan.toml --keys anna

`join` records the approval when it accepts the plan. A changed plan or changed rules need a new
approval."""
)
@click.argument("file", metavar="SITE", type=PATH)
@click.option("--plan", type=PATH, required=True, help="The kit's plan, or approvals/asked.toml.")
@click.option("--keys", "folder", type=PATH, required=True, help="Keys of the approving person.")
@click.option("--kit", type=PATH, help="The kit that `site check` opened.  [default: next to SITE]")
@passphrase_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def approve(
    file: Path, plan: Path, folder: Path, kit: Path | None, passphrase_file: Path | None, yes: bool
) -> None:
    """Approve a PLAN under the rules of SITE, with a person's own keys."""
    from secure_fl.cli.keys import shared_layers
    from secure_fl.pilot.approvals import Approval, ApprovalFiles, Approving, rules_of
    from secure_fl.pilot.kits import load_kit
    from secure_fl.pilot.plan import load_plan, write_plan
    from secure_fl.policy.describe import describe
    from secure_fl.policy.policy_file import load_site

    rules, asked = load_site(file), load_plan(plan)
    me = open_ring(folder, passphrase_file).identity()
    opened = load_kit(kit or file.absolute().parent / "kit")
    name = opened.connection.name
    approving = Approving(rules, opened.roster.member(name).identity)
    _require_listed(approving, me.public.fingerprint())
    for line in (*describe(rules.policy), write_plan(asked), *shared_layers(asked, opened.roster)):
        click.echo(line)
    question = f"{me.name}: do you approve this plan under these rules, for {name}?"
    if not yes and not click.confirm(question, err=True):
        return
    approval = Approval.make(me, name, asked, rules_of(rules))
    paper = ApprovalFiles(approving.folder, name).add(approval)
    facts = approval.facts()
    click.echo(f"approved: plan {facts['plan']}, rules {facts['rules']}")
    click.echo(f"programs: {facts['programs']}\nwritten: {paper}")


@site.command(
    epilog="""\b
Example:
  secure-fl site erase site.toml --passphrase-file passphrase
      erase what is due, after a question

A run is due if it has had no event for retention_days of [site]. Its rows in the privacy ledger,
its seed, and the members of its opened sums are kept: later refusals depend on them."""
)
@click.argument("file", metavar="SITE", type=PATH)
@click.option("--runs", type=PATH, default=Path("runs"), show_default=True, help="Folder of runs.")
@click.option("--run", "chosen", metavar="NAME", help="Erase this run, due or not.")
@passphrase_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase(
    file: Path, runs: Path, chosen: str | None, passphrase_file: Path | None, yes: bool
) -> None:
    """Erase the runs that are due by the rules of SITE, with a note in the site's ledger."""
    from secure_fl.cli import show
    from secure_fl.crypto.privacy.ledger import Ledger
    from secure_fl.learning.dp.scope import LEDGER
    from secure_fl.policy.policy_file import load_site
    from secure_fl.runs import erasing

    rules = load_site(file)
    due = [runs / chosen] if chosen else erasing.due(runs, _retention(rules))
    for run in due:
        erasing.require_erasable(run)
        click.echo(f"{run}: {show.size(erasing.size([run]))}")
    if not due:
        click.echo(f"no run in {runs} is due")
        return
    me = open_ring(rules.keys, passphrase_file).identity()
    ledger = Ledger(rules.ledger / me.name / LEDGER, me)
    ledger.require_sound()  # before anything is erased that the ledger must record
    if not yes and not click.confirm("erase them, with a note in the ledger?", err=True):
        return
    for run in due:
        reason = "asked for by name" if chosen else f"{_retention(rules)} days after its last event"
        freed = erasing.size([run])
        ledger.note("erased", json.dumps({"why": reason, "bytes": freed}), run=run.name)
        erasing.erase([run])  # after the note: no crash leaves an erased run without one
        click.echo(f"erased: {run}")


def _retention(rules: SiteFile) -> int:
    from secure_fl.errors import SettingsError

    if (days := rules.policy.retention_days) is None:
        what, fix = "the rules do not limit how long runs are kept", "set retention_days in [site]"
        raise SettingsError(what, file=str(rules.file), fix=fix, field="site.retention_days")
    return days


def _require_listed(approving: Approving, fingerprint: str) -> None:
    from secure_fl.errors import KeyringError

    if not approving.lists(fingerprint):
        what = "the rules do not list these keys as keys that approve plans"
        fix = f'add "{fingerprint}", the card\'s fingerprint, to by in [site.approval]'
        raise KeyringError(what, file=approving.site.file, fix=fix, reason="not-listed")
