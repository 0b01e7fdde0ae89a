"""`secure-fl keys`: identities, rosters, the key ceremony and rotation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.keyring import keys_option, open_ring
from secure_fl.cli.options import PATH, json_option
from secure_fl.cli.rosters import approved, as_text, describe, roster
from secure_fl.crypto.keys.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.keys.roster_files import card_bytes, load_card, load_roster
from secure_fl.errors import KeyringError, SecureFLError

YES = click.option("--yes", is_flag=True, help="Do not ask if the fingerprints were compared.")
BUNDLES = click.option(
    "-o", "--output", type=PATH, default=Path("bundles"), show_default=True,
    help="Folder for the bundles.",
)  # fmt: skip


@click.command()
@click.argument("file", metavar="ROSTER", type=PATH)
@keys_option
@YES
@BUNDLES
def ceremony(
    file: Path, folder: Path, passphrase_file: Path | None, yes: bool, output: Path
) -> None:
    """Deal the cohort's keys: sign a ROSTER, and seal a bundle for each of its members.

    One member does this, once. Compare the cards' fingerprints by phone first. Only its member
    can open a bundle: send all to the coordinator, who puts them into kits. A repeated command
    seals the same keys.
    """
    ring = open_ring(folder, passphrase_file)
    roster = approved(file, ring, yes=yes)
    _write(ring.ceremony(roster, _fresh_secret(roster)), output)
    click.echo(f"cohort fingerprint: {ring.cohort(roster).fingerprint()}")


@click.command()
@click.argument("file", metavar="ROSTER", type=PATH)
@keys_option
@YES
@BUNDLES
def rotate(file: Path, folder: Path, passphrase_file: Path | None, yes: bool, output: Path) -> None:
    """Deal new keys after a change of members; ROSTER must be a newer version.

    The old keys move to the archive: they still open old runs, and new runs refuse them.

    \b
    secure-fl keys roster north.card.json west.card.json \\
      --coordinator hub.card.json \\
      --after roster.json -o roster2.json
    secure-fl keys rotate roster2.json
    """  # noqa: D301
    ring = open_ring(folder, passphrase_file)
    roster = approved(file, ring, yes=yes)
    _write(ring.rotate(roster, _fresh_secret(roster)), output)
    click.echo(f"cohort fingerprint: {ring.cohort(roster).fingerprint()}")


@click.command()
@click.argument("file", metavar="ROSTER", type=PATH)
@click.argument("bundle", type=PATH)
@keys_option
@YES
def accept(file: Path, bundle: Path, folder: Path, passphrase_file: Path | None, yes: bool) -> None:
    """Sign ROSTER, open the dealer's BUNDLE for this site, and store the keys.

    `secure-fl site check` does this with a kit. Compare the cohort fingerprint by phone.
    """
    ring = open_ring(folder, passphrase_file)
    roster = approved(file, ring, yes=yes)
    try:
        kept = ring.accept(roster, read_bounded(bundle))
    except KeyringError as error:
        raise error.at(file=bundle) from None
    click.echo(f"dealt by: {kept.dealer}\ncohort fingerprint: {kept.fingerprint()}")


def _fresh_secret(roster: Roster) -> bytes:
    from secure_fl.crypto.sealing.secret import generate, rehearse

    key = generate()
    rehearse(key, len(roster.members))  # checks the noise budget for this many members
    return key.to_bytes()


def _write(bundles: Mapping[str, bytes], output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeyringError(
            f"cannot be created: {error.strerror}", file=output, fix=OWN_FOLDER, reason="unwritable"
        ) from None
    for name, bundle in bundles.items():
        write_atomic(output / f"{name}.bundle", bundle, mode=0o600)
    click.echo(f"written: {output}/NAME.bundle for {', '.join(bundles)}")


@click.group(cls=WrappedHelpGroup)
def keys() -> None:
    """Create and exchange keys.

    All steps, for three hospitals and a coordinator:

    \b
    every site    secure-fl site init north     (the coordinator: keys identity)
    the dealer    secure-fl keys roster north.card.json south.card.json \\
                      east.card.json --coordinator hub.card.json
                  secure-fl keys ceremony roster.json -o bundles
    coordinator   secure-fl pilot init roster.json --bundles bundles ...
    every member  secure-fl site check site.toml --kit north.kit
    by phone      compare the printed fingerprints

    Cards, rosters and bundles contain no secrets and can be sent by mail. The key folder never
    leaves its site.
    """  # noqa: D301


@keys.command()
@click.argument("name")
@keys_option
@click.option("-o", "--card", type=PATH, help="File for the card.  [default: NAME.card.json]")
def identity(name: str, folder: Path, passphrase_file: Path | None, card: Path | None) -> None:
    """Create this site's identity, and its public card.

    \b
    secure-fl keys identity north
    secure-fl keys identity hub --keys /srv/hub/keys --passphrase-file pass
    """  # noqa: D301
    made = Identity.generate(name)
    open_ring(folder, passphrase_file, fresh=True).create(made)
    _write_card(made, card)
    click.echo(f"keys: {folder} (back this folder up; it cannot be recreated)")


@keys.command()
@keys_option
@click.option("-o", "--card", type=PATH, help="File for the card.  [default: NAME.card.json]")
def card(folder: Path, passphrase_file: Path | None, card: Path | None) -> None:
    """Write this site's public card again."""
    _write_card(open_ring(folder, passphrase_file).identity(), card)


@keys.command()
@click.argument("files", nargs=-1, type=PATH)
@keys_option
@json_option
def show(
    files: tuple[Path, ...], folder: Path, passphrase_file: Path | None, as_json: bool
) -> None:
    """Show fingerprints of FILES (cards and rosters), or of this site's own keys.

    \b
    secure-fl keys show
    secure-fl keys show roster.json            signatures, limits of collusion
    secure-fl keys show roster.json --json
    """  # noqa: D301
    facts = [_of_file(file) for file in files] or [_of_ring(folder, passphrase_file)]
    if as_json:
        click.echo(json.dumps(facts if files else facts[0], indent=2))
        return
    for fact in facts:
        click.echo(as_text(fact))


def _write_card(made: Identity, path: Path | None) -> None:
    path = path or Path(f"{made.name}.card.json")
    write_atomic(path, card_bytes(made))
    click.echo(f"card: {path}\nfingerprint: {made.public.fingerprint()}")


def _of_file(file: Path) -> dict[str, object]:
    read: Roster
    try:
        read = load_roster(file)
    except SecureFLError as not_a_roster:
        try:
            public = load_card(file)
        except SecureFLError:
            raise not_a_roster from None
        return {"file": str(file), "card": public.name, "fingerprint": public.fingerprint()}
    return {"file": str(file), **describe(read)}


def _of_ring(folder: Path, passphrase_file: Path | None) -> dict[str, object]:
    ring = open_ring(folder, passphrase_file)
    mine = ring.identity().public
    facts: dict[str, object] = {"name": mine.name, "fingerprint": mine.fingerprint()}
    held = ring.held()
    if held is not None:
        facts |= {
            "cohort keys for roster version": held.version,
            "dealt by": held.dealer,
            "expire": held.expires.isoformat(),
            "cohort fingerprint": held.fingerprint(),
        }
    return facts


for _command in (roster, ceremony, accept, rotate):
    keys.add_command(_command)
