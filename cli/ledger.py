"""`secure-fl ledger`: show, check and export a privacy ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.options import json_option
from secure_fl.errors import BudgetError, TamperError

if TYPE_CHECKING:
    from secure_fl.crypto.privacy.ledger_store import Chain

F = TypeVar("F", bound=Callable[..., object])
PATH = click.Path(path_type=Path)


def _ledger_arguments(command: F) -> F:
    """Add LEDGER, --card and --head."""
    head = click.option("--head", metavar="HEX", help="A head from an earlier `verify`/`export`.")
    card = click.option("--card", type=PATH, help="Card of the expected owner.")
    return click.argument("file", metavar="LEDGER", type=PATH)(card(head(command)))


@click.group(cls=WrappedHelpGroup)
def ledger() -> None:
    """Read a site's privacy ledger. No command here changes it."""


@ledger.command()
@_ledger_arguments
@json_option
def show(file: Path, card: Path | None, head: str | None, as_json: bool) -> None:
    """Show the spent budget of each data set: ε composed from all of its events.

    \b
    secure-fl ledger show north.ledger
    """  # noqa: D301
    from dataclasses import asdict

    from secure_fl.crypto.privacy.ledger import notes, of_records, totals
    from secure_fl.display.figures import counted

    chain = _load(file, card, head)
    spent = totals(chain)
    if as_json:
        click.echo(json.dumps([asdict(total) for total in spent], indent=2))
        return
    for t in spent:
        click.echo(
            f"{t.dataset} per {t.unit} ({t.adjacency}): ε = {t.spent:.4g} of {t.budget:g} at "
            f"δ = {t.delta:g}; {counted(t.events, 'event')} in {counted(t.runs, 'run')}, "
            f"{t.unfinished} unfinished"
        )
    if (together := of_records(chain)) is not None:
        click.echo(
            f"a record or patient that is in all accounts above, except per hospital: "
            f"ε = {together[0]:.4g} at δ = {together[1]:g}"
        )
    if not spent:
        click.echo("no privacy budget has been spent")
    for line in notes(chain):
        click.echo(line)


@ledger.command()
@_ledger_arguments
def verify(file: Path, card: Path | None, head: str | None) -> None:
    """Check the chain, every signature and the anchor.

    This detects changed, removed, moved and truncated rows. An old copy of the complete file is
    detected only with --head: a head that `verify` or `export` printed, stored somewhere else.

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
        click.echo("compare the owner's fingerprint, or use --card, to detect a forged ledger")


@ledger.command()
@_ledger_arguments
@click.option("-o", "--output", type=PATH, help="Write to this file instead of the screen.")
def export(file: Path, card: Path | None, head: str | None, output: Path | None) -> None:
    """Write all rows as JSON. Store its `head` somewhere else, to detect an old copy later.

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
        expected_head = bytes.fromhex(head) if head else None
    except ValueError:
        raise click.UsageError("--head must be the hexadecimal text from `export`") from None
    if not file.exists():
        what = "there is no ledger yet: no run with differential privacy has begun"
        raise BudgetError(what, fix="check the path", file=file, reason="ledger-unusable")
    chain = load_chain(file)
    owner = chain.owner
    if card is not None and (expected := load_card(card)) != owner:
        what = f"the ledger names {owner.name!r} with other keys than the card of {expected.name!r}"
        fix = "it belongs to another site, or is forged; compare fingerprints"
        raise TamperError(what, file=file, fix=fix, reason="owner")
    chain.check_all(owner, pinned=expected_head)
    return chain
