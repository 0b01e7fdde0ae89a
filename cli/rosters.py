"""`secure-fl keys roster`: the members of a cohort, and a site's approval of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.options import PATH, FiniteRange
from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.roster_files import load_card, load_roster, roster_bytes
from secure_fl.errors import KeyringError

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan

QUESTION = "Are these the right sites, and did you compare the fingerprints by phone?"


@click.command()
@click.argument("cards", nargs=-1, required=True, type=PATH)
@click.option("--coordinator", required=True, type=PATH, help="The coordinator's card.")
@click.option("--host", metavar="NAME", help="Member that holds FedID's central model.")
@click.option("--tier", multiple=True, metavar="NAME=TIER", help="Tier of a member. Repeatable.")
@click.option("--threshold", type=click.IntRange(1, 128),
              help="Members that must remain to open a sum.  [default: floor(2n/3)+1]")  # fmt: skip
@click.option("--days", type=FiniteRange(0, 3650, min_open=True), default=365.0, show_default=True,
              help="Validity of the roster.")  # fmt: skip
@click.option("--after", type=PATH, help="Roster that this one replaces, with the next version.")
@click.option("-o", "--output", type=PATH, default=Path("roster.json"), show_default=True,
              help="File for the roster.")  # fmt: skip
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
    """Assemble an unsigned roster from the members' cards.

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
    """Read a roster that this site has signed, or show it, ask, and sign it in its file."""
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


def shared_layers(plan: Plan, roster: Roster) -> list[str]:
    """Describe the parts of the models that the hospitals of a roster would share."""
    tiers = {member.name: member.tier for member in roster.members if member.tier is not None}
    text = plan.algorithm.sharing(tiers, plan.model, plan.protection.min_cohort) if tiers else ""
    return [f"sums: {text}"] if text else []


def describe(roster: Roster) -> dict[str, object]:
    """List the facts that people compare before they approve a roster."""
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
    """List the differences between a roster and the last approved one."""
    old, new = ({m.name: m for m in one.members} for one in (before, after))
    lines = [
        f"{name} is new: {new[name].identity.fingerprint()}" for name in new.keys() - old.keys()
    ]
    lines += [f"{name} has left" for name in old.keys() - new.keys()]
    for name in new.keys() & old.keys():
        if old[name].identity != new[name].identity:
            lines.append(f"OTHER KEYS for {name}: {new[name].identity.fingerprint()}")
        for what in ("role", "tier"):
            then, now = getattr(old[name], what), getattr(new[name], what)
            if then != now:
                lines.append(f"the {what} of {name} changes from {then} to {now}")
    if before.coordinator != after.coordinator:
        card = after.coordinator
        lines.append(f"ANOTHER COORDINATOR: {card.name}  {card.fingerprint()}")
    if before.t != after.t:
        lines.append(f"the members that a sum needs change from {before.t} to {after.t}")
    return sorted(lines)


def as_text(facts: Mapping[str, object]) -> str:
    """Format facts, one per line; lists are indented below their name."""
    shown = {
        key: "".join(f"\n  {line}" for line in value) if isinstance(value, list) else value
        for key, value in facts.items()
    }
    return "\n".join(f"{key}: {value}" for key, value in shown.items())


def _members(
    cards: list[PublicIdentity], host: str | None, tiers: tuple[str, ...]
) -> tuple[Member, ...]:
    names = {card.name for card in cards}
    chosen: dict[str, str] = {}
    for text in tiers:
        name, equals, tier = text.partition("=")
        if not equals or not tier:
            what, fix = f"--tier {text!r} is not NAME=TIER", "--tier north=strong"
            raise KeyringError(what, fix=fix, reason="invalid-option")
        chosen[name] = tier
    if unknown := sorted((set(chosen) | ({host} if host else set())) - names):
        what, fix = f"there is no card of {', '.join(unknown)}", "add that member's card"
        raise KeyringError(what, fix=fix, reason="not-listed")
    return tuple(
        Member(card.name, "host" if card.name == host else "party", chosen.get(card.name), card)
        for card in cards
    )


def _print(roster: Roster) -> None:
    click.echo(as_text(describe(roster)))
