"""`secure-fl ledger`: what a silo has spent, whether its record is intact, and a copy of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from secure_fl.cli.group import Told
from secure_fl.errors import TamperError

if TYPE_CHECKING:
    from secure_fl.crypto.privacy.ledger_store import Chain

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path)


def _checked_options(command: F) -> F:
    command = click.option("--head", metavar="HEX", help="A head kept elsewhere: must be in it.")(
        command
    )
    command = click.option("--card", type=FILE, help="The owner's card: whose ledger it must be.")(
        command
    )
    return click.argument("file", metavar="LEDGER", type=FILE)(command)


@click.group(cls=Told)
def ledger() -> None:
    """Read a silo's privacy ledger. Nothing here can change it."""


@ledger.command()
@_checked_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Path, card: Path | None, head: str | None, as_json: bool) -> None:
    """Show what each dataset has spent: ε recomposed from all of its events.

    \b
    secure-fl ledger show north.ledger
    """  # noqa: D301
    from dataclasses import asdict

    from secure_fl.crypto.privacy.ledger import notes, totals

    chain = _load(file, card, head)
    found = totals(chain)
    if as_json:
        click.echo(json.dumps([asdict(total) for total in found], indent=2))
        return
    for t in found:
        click.echo(
            f"{t.dataset} per {t.unit} ({t.adjacency}): ε = {t.spent:.4g} of {t.budget:g} at "
            f"δ = {t.delta:g}; {t.events} events in {t.runs} runs, {t.unfinished} unfinished"
        )
    if not found:
        click.echo("nothing is spent")
    for line in notes(chain):
        click.echo(line)


@ledger.command()
@_checked_options
def verify(file: Path, card: Path | None, head: str | None) -> None:
    """Check the chain, every signature and the anchor.

    An edited, removed, moved or cut-off row is found. An old copy of the whole file put back is
    found only with --head: a head that `verify` or `export` printed before, kept elsewhere.

    \b
    secure-fl ledger verify north.ledger --card north.card.json --head 3f1c...
    """  # noqa: D301
    chain = _load(file, card, head)
    owner = chain.owner
    click.echo(
        f"intact: {len(chain.entries)} rows\nowner: {owner.name}  {owner.fingerprint()}\n"
        f"head: {chain.head.hex()}"
    )
    if card is None:
        click.echo("compare the owner's fingerprint, or pass --card: a forger has another one")


@ledger.command()
@_checked_options
@click.option("-o", "--output", type=FILE, help="Write to this file instead of the screen.")
def export(file: Path, card: Path | None, head: str | None, output: Path | None) -> None:
    """Write everything as JSON, with the head to keep elsewhere.

    \b
    secure-fl ledger export north.ledger -o north-ledger.json
    """  # noqa: D301
    from secure_fl.crypto.keys.files import write_atomic
    from secure_fl.crypto.privacy.ledger import export as exported

    chain = _load(file, card, head)
    text = json.dumps(exported(chain), indent=2)
    if output is None:
        click.echo(text)
    else:
        write_atomic(output, text.encode() + b"\n")
        click.echo(f"written: {output}\nhead: {chain.head.hex()}")


def _load(file: Path, card: Path | None, head: str | None) -> Chain:
    from secure_fl.crypto.keys.roster_files import load_card
    from secure_fl.crypto.privacy.ledger import load_chain

    try:
        pinned = bytes.fromhex(head) if head else None
    except ValueError:
        raise click.UsageError("--head is the hexadecimal text that `export` printed") from None
    chain = load_chain(file)
    owner = chain.owner
    if card is not None and (expected := load_card(card)) != owner:
        raise TamperError(
            f"the ledger names {owner.name!r} with other keys than the card of {expected.name!r}",
            file=file,
            fix="it is another site's ledger, or was forged; compare fingerprints",
            reason="owner",
        )
    chain.check_all(owner, pinned=pinned)
    return chain
