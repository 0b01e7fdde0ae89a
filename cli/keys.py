"""`secure-fl keys`: identities, rosters, the key ceremony and rotation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.keyring import keys_option, open_ring
from secure_fl.cli.options import PATH, FiniteRange, json_option
from secure_fl.crypto.keys.files import OWN_FOLDER, read_bounded, write_atomic
from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.roster_files import card_bytes, load_card, load_roster, roster_bytes
from secure_fl.errors import KeyringError, SecureFLError

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan

YES = click.option("--yes", is_flag=True, help="Do not ask if the fingerprints were compared.")
BUNDLES = click.option(
    "-o", "--output", type=PATH, default=Path("bundles"), show_default=True,
    help="Folder for the bundles.",
)  # fmt: skip
Seal = Callable[[Roster, bytes], Mapping[str, bytes]]  # bundles by member
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
        if chosen.setdefault(name, tier) != tier:
            what, fix = f"{name!r} has two tiers: {chosen[name]!r} and {tier!r}", "give one --tier"
            raise KeyringError(what, fix=fix, reason="invalid-option")
    if unknown := sorted((set(chosen) | ({host} if host else set())) - names):
        what, fix = f"there is no card of {', '.join(unknown)}", "add that member's card"
        raise KeyringError(what, fix=fix, reason="not-listed")
    return tuple(
        Member(card.name, "host" if card.name == host else "party", chosen.get(card.name), card)
        for card in cards
    )


def _print(roster: Roster) -> None:
    click.echo(as_text(describe(roster)))


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
    _deal(ring, roster, ring.ceremony, output)


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
    _deal(ring, roster, ring.rotate, output)


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


def _deal(
    ring: KeyRing,
    roster: Roster,
    seal: Callable[[Roster, bytes], Mapping[str, bytes]],
    output: Path,
) -> None:
    """Generate the cohort's key, and write a sealed bundle for each member."""
    from secure_fl.crypto.sealing.secret import generate, rehearse

    key = generate()
    rehearse(key, len(roster.members))  # checks the noise budget for this many members
    try:  # first: sealing replaces this site's keys
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be created: {error.strerror}"
        raise KeyringError(what, file=output, fix=OWN_FOLDER, reason="unwritable") from None
    bundles = seal(roster, key.to_bytes())
    for name, bundle in bundles.items():
        write_atomic(output / f"{name}.bundle", bundle, mode=0o600)
    click.echo(f"written: {output}/NAME.bundle for {', '.join(bundles)}")
    click.echo(f"cohort fingerprint: {ring.cohort(roster).fingerprint()}")


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
