"""`secure-fl site`: a hospital's way into a pilot, from nothing to ready."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from secure_fl.cli.choices import algorithms_like, known_algorithms
from secure_fl.cli.group import Told
from secure_fl.cli.keyring import FILE, open_ring
from secure_fl.cli.numbers import Whole
from secure_fl.cli.site_decisions import approve, erase

if TYPE_CHECKING:
    from secure_fl.crypto.keys.keyring import KeyRing
    from secure_fl.crypto.keys.roster import Roster
    from secure_fl.pilot.kits import Kit

DAYS = 180  # that new rules allow runs


@click.group(cls=Told)
def site() -> None:
    """Set up a hospital for a pilot, and check that it is ready.

    \b
    north$ secure-fl site init north ...
        send north.card.json out
    north$ secure-fl site check site.toml --kit north.kit
        when the coordinator sent it
    north$ secure-fl join site.toml
    """  # noqa: D301


site.add_command(approve)
site.add_command(erase)


def site_name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """Refuse what no site may be called, before anything is asked."""
    from secure_fl.crypto.keys.identity import NAME

    if not NAME.fullmatch(name):
        allowed = "1 to 64 letters, digits, '.', '_' or '-', a letter or digit first"
        raise click.BadParameter(f"found {name[:80]!r}; allowed: {allowed}")
    return name


@site.command(
    epilog="""\b
Example:
  secure-fl site init north --dataset notes --train train.jsonl \\
      --passphrase-file passphrase

What is not given is asked for. A passphrase file that does not exist is made, with a fresh one."""
)
@click.argument("name", callback=site_name)
@click.option("--dataset", prompt="Name of the records, as agreed", help="As the plan names them.")
@click.option("--train", prompt="File of training records", help="Training records of this site.")
@click.option("--dev", default="0.1", show_default=True, help="A file, or a share of --train.")
@click.option("--test", default="0.2", show_default=True, help="A file, or a share of --train.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    default=["fedavg"],
    show_default=True,
    callback=known_algorithms,
    shell_complete=algorithms_like,
    help="It may train by.",
)
@click.option(
    "--model", "models", multiple=True, default=["tiny"], show_default=True, help="It may train."
)
@click.option(
    "--rounds",
    type=Whole(min=1),
    default=10,
    show_default=True,
    help="It takes part in, at most.",
)
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]),
              help=f"The last day that runs are allowed.  [in {DAYS} days]")  # fmt: skip
@click.option("--made-up", is_flag=True, help="The records are made up: no DP-SGD is required.")
@click.option("--passphrase-file", type=FILE, help="Opens the keys; made if it does not exist.")
def init(
    name: str,
    dataset: str,
    train: str,
    dev: str,
    test: str,
    algorithms: tuple[str, ...],
    models: tuple[str, ...],
    rounds: int,
    until: datetime | None,
    made_up: bool,
    passphrase_file: Path | None,
) -> None:
    """Make the identity of site NAME, its rules (site.toml), and the card to send out."""
    from secure_fl.crypto.keys.files import write_atomic
    from secure_fl.crypto.keys.identity import Identity
    from secure_fl.crypto.keys.roster_files import card_bytes
    from secure_fl.pilot.site_file import Rules, write_site
    from secure_fl.policy.policy_file import load_site

    last = until or datetime.now(UTC) + timedelta(days=DAYS)
    file = Path("site.toml")
    rules = Rules(
        name, algorithms, models, dataset, train, dev, test, last.date(), rounds, made_up=made_up
    )
    write_site(file, rules)
    try:
        load_site(file)
        me = Identity.generate(name)
        open_ring(Path("keys"), passphrase_file, fresh=True).create(me)
    except BaseException:
        file.unlink()  # so that the next try is not in the way of this one
        raise
    card = Path(f"{name}.card.json")
    write_atomic(card, card_bytes(me))
    click.echo(f"rules: {file} (read them: they are what a coordinator may ask of this site)")
    click.echo("keys: keys (back this folder up, with the passphrase elsewhere)")
    click.echo(f"card: {card}, to send to the dealer\nfingerprint: {me.public.fingerprint()}")


@site.command(
    epilog="""\b
Example:
  secure-fl site check site.toml --kit north.kit --passphrase-file passphrase

It asks whether the fingerprints were compared; --roster, with the one that you were told, answers.
The exit status is 0 if nothing keeps this site from joining, else 1."""
)
@click.argument("file", metavar="SITE", type=FILE)
@click.option("--kit", type=FILE, required=True, help="The file that the coordinator sent.")
@click.option("--roster", "told", help="The roster's fingerprint, as you were told by telephone.")
@click.option("--passphrase-file", type=FILE, help="Read the passphrase from this file.")
@click.option(
    "--rehearse/--no-rehearsal",
    default=True,
    show_default=True,
    help="Try a round on this site's records.",
)
@click.pass_context
def check(
    ctx: click.Context,
    file: Path,
    kit: Path,
    told: str | None,
    passphrase_file: Path | None,
    rehearse: bool,
) -> None:
    """Open this site's kit, approve the roster, and see whether all is ready to join."""
    from secure_fl.cli.doctor import show_checks
    from secure_fl.cli.site_check import examine
    from secure_fl.pilot.kit_files import open_kit, put_in_place
    from secure_fl.pilot.kits import ROSTER, load_kit, require_own
    from secure_fl.pilot.site_file import set_roster
    from secure_fl.policy.policy_file import load_site

    rules = load_site(file)
    ring = open_ring(rules.keys, passphrase_file)
    with TemporaryDirectory(dir=file.absolute().parent, prefix=".kit-") as place:
        folder = kit if kit.is_dir() else open_kit(kit, ring.identity(), Path(place) / "kit")
        given = load_kit(folder)
        require_own(given, ring.identity())
        ring.require_newer(given.roster)
        inuse = file.parent / "kit"
        _approve(folder / ROSTER, ring, told, _approved_before(inuse / ROSTER, ring))
        _accept(load_kit(folder), ring)
        if folder != kit:  # a kit that was refused has replaced nothing
            folder = put_in_place(folder, inuse)
    given = load_kit(folder)
    set_roster(file, given.roster.fingerprint())
    checks = list(examine(load_site(file), given, rehearse=rehearse))
    healthy = show_checks(checks)
    shown = os.path.relpath(folder)
    if healthy:
        click.echo(f"ready: secure-fl join {file} --kit {shown}")
    ctx.exit(0 if healthy else 1)


def _approved_before(file: Path, ring: KeyRing) -> Roster | None:
    """The roster of the kit in use, if this site has signed it."""
    from secure_fl.crypto.keys.roster_files import load_roster
    from secure_fl.errors import KeyringError

    try:
        before = load_roster(file)
        before.verify(me=ring.identity().public, now=before.created)
    except KeyringError:
        return None
    return before


def _approve(file: Path, ring: KeyRing, told: str | None, before: Roster | None) -> None:
    """Sign the roster, if a person says that it is the one that was read out."""
    from secure_fl.cli.rosters import approved, changes
    from secure_fl.crypto.keys.roster_files import load_roster
    from secure_fl.errors import KeyringError

    new = load_roster(file)
    found = new.fingerprint()
    for line in [] if before is None else changes(before, new):
        click.echo(f"since the roster that was approved here: {line}")
    if told is not None and told.split() != found.split():
        raise KeyringError(
            f"this kit's roster has the fingerprint {found}",
            file=file,
            fix="it is not the one you were told: ask who told you, and do not join",
            reason="other-roster",
        )
    approved(file, ring, yes=told is not None)


def _accept(kit: Kit, ring: KeyRing) -> None:
    """Take the cohort's keys out of the kit, unless they are here."""
    from secure_fl.crypto.keys.files import read_bounded
    from secure_fl.pilot.kit_files import BUNDLE

    held, file = ring.held(), kit.folder / BUNDLE
    if held is None or held.roster != kit.roster.digest():
        held = ring.accept(kit.roster, read_bounded(file))
    click.echo(f"cohort's keys: dealt by {held.dealer}")
    click.echo(f"cohort fingerprint, to compare by telephone: {held.fingerprint()}")
