"""`secure-fl keys roster`: who takes part; and how a site approves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from secure_fl.cli.keyring import FILE
from secure_fl.cli.numbers import Real, Whole
from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.roster_files import load_card, load_roster, roster_bytes
from secure_fl.errors import KeyringError

QUESTION = "Are these the right sites, and did you compare the fingerprints by telephone?"


@click.command()
@click.argument("cards", nargs=-1, required=True, type=FILE)
@click.option("--coordinator", required=True, type=FILE, help="The coordinator's card.")
@click.option("--host", metavar="NAME", help="The member that holds FedID's central model.")
@click.option("--tier", multiple=True, metavar="NAME=TIER", help="A member's tier; repeatable.")
@click.option("--threshold", type=Whole(1, 128), help="Survivors a sum needs.  [floor(2n/3)+1]")
@click.option(
    "--days",
    type=Real(0, 3650, min_open=True),
    default=365.0,
    show_default=True,
    help="How long it holds.",
)
@click.option("--after", type=FILE, help="The roster this one replaces: takes the next version.")
@click.option(
    "-o",
    "--output",
    type=FILE,
    default=Path("roster.json"),
    show_default=True,
    help="For the roster.",
)
def roster(
    cards: tuple[Path, ...],
    coordinator: Path,
    host: str | None,
    tier: tuple[str, ...],
    threshold: int | None,
    days: float,
    after: Path | None,
    output: Path,
) -> None:
    """Assemble a roster from the members' cards; nobody has signed it yet.

    \b
    secure-fl keys roster north.card.json south.card.json east.card.json \\
        --coordinator hub.card.json --tier north=strong
    secure-fl keys roster north.card.json west.card.json \\
      --coordinator hub.card.json \\
      --after roster.json -o roster2.json
    """  # noqa: D301
    version = load_roster(after).version + 1 if after else 1
    members = _members([load_card(path) for path in cards], host, tier)
    made = make_roster(
        members, load_card(coordinator), threshold=threshold, days=days, version=version
    )
    write_atomic(output, roster_bytes(made))
    _print(made)
    click.echo(f"written: {output}\nnext: the dealer runs `secure-fl keys ceremony {output}`")


def approved(file: Path, ring: KeyRing, *, yes: bool = False) -> Roster:
    """Read a roster that this site has signed; else show it, ask, and sign it in its file."""
    read, me = load_roster(file), ring.identity()
    read.require(me.public)
    if me.name not in dict(read.signatures):
        _print(read)
        if not yes and not click.confirm(QUESTION):
            raise KeyringError(
                "not signed", fix="compare the fingerprints with the other sites", reason="unsigned"
            )
        read = read.sign(me)
        write_atomic(file, roster_bytes(read))
    read.verify(me=me.public)
    return read


def describe(roster: Roster) -> dict[str, object]:
    """List what people compare and decide on."""
    try:
        roster.verify()
        state = f"signed by {', '.join(name for name, _ in roster.signatures)}"
    except KeyringError as error:
        state = error.what
    return {
        "roster version": roster.version,
        "fingerprint": roster.fingerprint(),
        "expires": roster.expires.isoformat(),
        "state": state,
        "coordinator": f"{roster.coordinator.name}  {roster.coordinator.fingerprint()}",
        "members": [
            f"{m.name}  {m.role}{f' ({m.tier})' if m.tier else ''}  {m.identity.fingerprint()}"
            for m in roster.members
        ],
        "collusion": roster.bound.sentence(),
    }


def changes(before: Roster, after: Roster) -> list[str]:
    """Say in what a roster differs from the one before it, for who is to approve it."""
    old, new = ({m.name: m for m in one.members} for one in (before, after))
    found = [
        f"{name} is new: {new[name].identity.fingerprint()}" for name in new.keys() - old.keys()
    ]
    found += [f"{name} has left" for name in old.keys() - new.keys()]
    for name in new.keys() & old.keys():
        if old[name].identity != new[name].identity:
            found.append(f"OTHER KEYS under the name {name}: {new[name].identity.fingerprint()}")
        for what in ("role", "tier"):
            then, now = getattr(old[name], what), getattr(new[name], what)
            if then != now:
                found.append(f"{name} has the {what} {now}, and had {then}")
    if before.coordinator != after.coordinator:
        card = after.coordinator
        found.append(f"ANOTHER COORDINATOR: {card.name}  {card.fingerprint()}")
    if before.t != after.t:
        found.append(f"a sum needs {after.t} hospitals, and needed {before.t}")
    return sorted(found)


def as_text(facts: Mapping[str, object]) -> str:
    """Lay facts out, a line each; lists are indented below their name."""
    shown = {
        key: "".join(f"\n  {line}" for line in value) if isinstance(value, list) else value
        for key, value in facts.items()
    }
    return "\n".join(f"{key}: {value}" for key, value in shown.items())


def _members(
    cards: list[PublicIdentity], host: str | None, tiers: tuple[str, ...]
) -> tuple[Member, ...]:
    names = {card.name for card in cards}
    wanted: dict[str, str] = {}
    for text in tiers:
        name, equals, tier = text.partition("=")
        if not equals or not tier:
            raise KeyringError(
                f"--tier {text!r} is not NAME=TIER",
                fix="--tier north=strong",
                reason="invalid-option",
            )
        wanted[name] = tier
    if unknown := sorted((set(wanted) | ({host} if host else set())) - names):
        raise KeyringError(
            f"no card is of {', '.join(unknown)}",
            fix="give that member's card too",
            reason="not-listed",
        )
    return tuple(
        Member(card.name, "host" if card.name == host else "party", wanted.get(card.name), card)
        for card in cards
    )


def _print(roster: Roster) -> None:
    click.echo(as_text(describe(roster)))
