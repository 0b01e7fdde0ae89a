"""`secure-fl keys ceremony | accept | rotate`: the keys of a signed roster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from secure_fl.cli.keyring import FILE, keys_option, open_ring
from secure_fl.crypto.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.roster import Roster
from secure_fl.crypto.roster_files import load_roster
from secure_fl.errors import KeyringError

FOLDER = click.option(
    "-o", "--output", type=FILE, default=Path("bundles"), show_default=True, help="For the bundles."
)


@click.command()
@click.argument("file", metavar="ROSTER", type=FILE)
@keys_option
@FOLDER
def ceremony(file: Path, folder: Path, passphrase_file: Path | None, output: Path) -> None:
    """Deal the cohort's keys: one sealed bundle per member of a fully signed roster.

    One member does this, once. Send each bundle to its member; only that member can open it.
    Run again, it seals the same keys again.
    """
    roster = load_roster(file)
    roster.verify()
    ring = open_ring(folder, passphrase_file)
    _write(ring.ceremony(roster, _fresh_secret(roster)), output)
    click.echo(f"cohort fingerprint: {ring.cohort(roster).fingerprint()}")


@click.command()
@click.argument("file", metavar="ROSTER", type=FILE)
@keys_option
@FOLDER
def rotate(file: Path, folder: Path, passphrase_file: Path | None, output: Path) -> None:
    """Deal new keys after a change of members; ROSTER must be a newer, fully signed version.

    The old keys move to the archive: they open old runs, and no new run accepts them.

    \b
    secure-fl keys roster north.card.json west.card.json --coordinator hub.card.json \\
        --after roster.json -o roster2.json
    secure-fl keys rotate roster2.json
    """  # noqa: D301
    roster = load_roster(file)
    roster.verify()
    ring = open_ring(folder, passphrase_file)
    _write(ring.rotate(roster, _fresh_secret(roster)), output)
    click.echo(f"cohort fingerprint: {ring.cohort(roster).fingerprint()}")


@click.command()
@click.argument("file", metavar="ROSTER", type=FILE)
@click.argument("bundle", type=FILE)
@keys_option
def accept(file: Path, bundle: Path, folder: Path, passphrase_file: Path | None) -> None:
    """Open the bundle that the dealer sealed to this site, and keep the keys.

    Compare the cohort fingerprint with the other members by telephone.
    """
    ring = open_ring(folder, passphrase_file)
    try:
        kept = ring.accept(load_roster(file), read_bounded(bundle))
    except KeyringError as error:
        raise error.at(file=bundle) from None
    click.echo(f"dealt by: {kept.dealer}\ncohort fingerprint: {kept.fingerprint()}")


def _fresh_secret(roster: Roster) -> bytes:
    from secure_fl.crypto.secret import generate, rehearse

    key = generate()
    rehearse(key, len(roster.members))  # the noise budget must hold for this many
    return key.to_bytes()


def _write(bundles: Mapping[str, bytes], output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeyringError(
            f"cannot be made: {error.strerror}", file=output, fix=OWN_FOLDER
        ) from None
    for name, bundle in bundles.items():
        write_atomic(output / f"{name}.bundle", bundle, mode=0o600)
    click.echo(f"written: {output}/NAME.bundle for {', '.join(bundles)}")
