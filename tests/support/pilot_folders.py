"""The folders of a complete pilot on one machine: keys, kits, records and rules of each site.

Only the place differs from a real pilot: each site has its own folder and identity, the
roster is signed by each, one of them deals the cohort's keys, and every process dials in over TLS.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from secure_fl import corpora
from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.vault import DEFAULT_COST, Cost
from secure_fl.crypto.sealing import secret
from secure_fl.data.splits import Splits, write
from secure_fl.pilot.kits import write_kits
from secure_fl.pilot.plan import write_plan
from secure_fl.pilot.site_file import Rules, write_site
from secure_fl.policy.plan import Plan

HUB = "hub"
DAYS = 30  # that a trial's rules allow runs


@dataclass(frozen=True, slots=True)
class PilotFolders:
    """Paths of the folders of one pilot."""

    folder: Path
    names: tuple[str, ...]

    @property
    def plan(self) -> Path:
        """The plan that the coordinator proposes."""
        return self.folder / HUB / "plan.toml"

    def of(self, name: str) -> Path:
        """Return the folder of a site or of the coordinator."""
        return self.folder / name


def make_pilot_folders(
    folder: Path,
    names: Sequence[str],
    plan: Plan,
    *,
    port: int,
    size: int,
    cost: Cost = DEFAULT_COST,
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    host: str | None = None,
    public: int = 0,
) -> PilotFolders:
    """Make sites that hold built-in notes, and a coordinator that knows none of them.

    `host`: one of the sites, for methods that have one; all then hold public notes, too, and allow
    it. `public`: so many public notes that all hold, without a host.
    """
    trial = PilotFolders(folder, tuple(sorted(names)))
    rings = {name: _ring(trial.of(name), cost) for name in (HUB, *trial.names)}
    cards = {name: ring.identity() for name, ring in rings.items()}
    members = tuple(
        Member(name, "host" if name == host else "party", None, cards[name].public)
        for name in trial.names
    )
    roster = make_roster(members, cards[HUB].public, days=DAYS)
    for name in trial.names:
        roster = roster.sign(cards[name])
    dealer = rings[trial.names[0]]
    for name, bundle in dealer.ceremony(roster, secret.generate().to_bytes()).items():
        rings[name].accept(roster, bundle)
    for name, kit in write_kits(roster, folder / "kits", hosts, port).items():
        kit.rename(trial.of(name) / "kit")
    (folder / "kits").rmdir()
    splits = corpora.make("ade", parties=len(trial.names), seed=plan.run.seed, size=size)
    for name, made in zip(trial.names, splits, strict=True):
        _records(trial.of(name), made)
        _rules(trial.of(name), name, plan, roster)
    if host is not None:
        _hosted(trial, plan, host, size)
    elif public:
        for name in trial.names:
            _public(trial, plan, name, public)
    write_atomic(trial.plan, write_plan(plan).encode())
    if plan.algorithm.name == "statistics":
        for name in trial.names:
            with (trial.of(name) / "site.toml").open("a", encoding="utf-8") as site:
                site.write("\n[site.statistics]\n")
    return trial


def _public(trial: PilotFolders, plan: Plan, name: str, size: int) -> str:
    """Give a site the public notes; return its rules with them."""
    shared = corpora.public("ade", seed=plan.run.seed, size=size)
    write(shared, trial.of(name) / "public.jsonl")
    file, line = trial.of(name) / "site.toml", "[[data.set]]\n"
    text = file.read_text().replace(line, f'{line}public = "public.jsonl"\n', 1)
    write_atomic(file, text.encode())
    return text


def _hosted(trial: PilotFolders, plan: Plan, host: str, size: int) -> None:
    """Public notes, and rules that let this host open sums of predictions, without noise."""
    for name in trial.names:
        text = _public(trial, plan, name, size)
        may = "may_be_host = true" if name == host else f'hosts = ["{host}"]'
        allowed = f'[site]\n{may}\ncaveats = ["{plan.algorithm.name}"]\n'
        text = text.replace("[site]\n", allowed, 1)
        noise = "\n[site.noise]\nrequired = false\n"
        write_atomic(trial.of(name) / "site.toml", f"{text}{noise}".encode())


def _ring(folder: Path, cost: Cost) -> KeyRing:
    """A fresh identity; its passphrase lies beside it, for nobody is there to type it."""
    passphrase = secrets.token_urlsafe(24)
    ring = KeyRing(folder / "keys", passphrase, cost)
    ring.create(Identity.generate(folder.name))
    write_atomic(folder / "passphrase", passphrase.encode(), mode=0o600)
    return ring


def _records(folder: Path, made: Splits) -> None:
    for split in ("train", "dev", "test"):
        write(getattr(made, split), folder / f"{split}.jsonl")


def _rules(folder: Path, name: str, plan: Plan, roster: Roster) -> None:
    rules = Rules(
        name,
        algorithms=(plan.algorithm.name,),
        models=plan.algorithm.reads(plan.model),
        dataset=plan.dataset,
        train="train.jsonl",
        dev="dev.jsonl",
        test="test.jsonl",
        until=datetime.now(UTC).date() + timedelta(days=DAYS),
        rounds=plan.algorithm.rounds,
        epochs=plan.algorithm.epochs,
        made_up=True,
        roster=roster.fingerprint(),
    )
    write_site(folder / "site.toml", rules)
