"""`secure-fl keys`: identities, rosters, the key ceremony and rotation."""

from __future__ import annotations

import json
from pathlib import Path

import click

from secure_fl.cli.ceremonies import accept, ceremony, rotate
from secure_fl.cli.keyring import FILE, keys_option, open_ring
from secure_fl.cli.rosters import as_text, describe, merge, roster, sign
from secure_fl.crypto.files import write_atomic
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.roster import Roster
from secure_fl.crypto.roster_files import card_bytes, load_card, load_roster
from secure_fl.errors import SecureFLError


@click.group()
def keys() -> None:
    """Make and exchange keys.

    The whole way, for three hospitals and a coordinator:

    \b
    every site    secure-fl keys identity north
    one of them   secure-fl keys roster north.card.json south.card.json \\
                      east.card.json --coordinator hub.card.json
    every member  secure-fl keys sign roster.json
                  (pass the file on, or sign copies and `keys merge` them)
    the dealer    secure-fl keys ceremony roster.json -o bundles
    every member  secure-fl keys accept roster.json north.bundle
    by telephone  secure-fl keys show roster.json    compare the fingerprints

    Cards, rosters and bundles tell nobody a secret and may travel by mail. The key folder never
    leaves its site.
    """  # noqa: D301


@keys.command()
@click.argument("name")
@keys_option
@click.option("-o", "--card", type=FILE, help="Where to write the card.  [NAME.card.json]")
def identity(name: str, folder: Path, passphrase_file: Path | None, card: Path | None) -> None:
    """Make this site's identity, and the public card to hand out.

    \b
    secure-fl keys identity north
    secure-fl keys identity hub --keys /srv/hub/keys --passphrase-file pass
    """  # noqa: D301
    made = Identity.generate(name)
    open_ring(folder, passphrase_file, fresh=True).create(made)
    _write_card(made, card)
    click.echo(f"keys: {folder} (back this folder up; it cannot be made again)")


@keys.command()
@keys_option
@click.option("-o", "--card", type=FILE, help="Where to write the card.  [NAME.card.json]")
def card(folder: Path, passphrase_file: Path | None, card: Path | None) -> None:
    """Write this site's public card again."""
    _write_card(open_ring(folder, passphrase_file).identity(), card)


@keys.command()
@click.argument("files", nargs=-1, type=FILE)
@keys_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    files: tuple[Path, ...], folder: Path, passphrase_file: Path | None, as_json: bool
) -> None:
    """Show fingerprints: of cards and rosters given, else of this site's own keys.

    \b
    secure-fl keys show
    secure-fl keys show roster.json            is it signed by all, who may collude
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


for _command in (roster, sign, merge, ceremony, accept, rotate):
    keys.add_command(_command)
