"""What a site brings to a run: its keys, its records, and its memory of all runs before.

In its memory, the coordinator's names for runs play no part. It holds which seeds the site has
begun with: the same seed and records give the same inputs, and two sums of them over different
hospitals differ by somebody's input. So it also holds over whom each run's sums were opened: who
removes a run's folder, and begins it again, has not removed that. And how many sums were forged:
what opens and what does not tells the forger about the cohort's key, so after some these keys open
nothing more.
"""

from __future__ import annotations

from pathlib import Path

from secure_fl.config.data import PartyData, PartyFiles
from secure_fl.config.silos import read
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, DataError, KeyringError
from secure_fl.files import Lines
from secure_fl.policy.policy_file import SiteFile
from secure_fl.policy.rules import Plan


def site_keys(ring: KeyRing, roster: Roster) -> PartyKeys:
    """Open this site's keys for a run under a roster that it has signed."""
    identity, cohort = ring.identity(), ring.cohort(roster)
    return PartyKeys(
        identity,
        {member.name: member.identity for member in roster.members},
        secret.SecretKey.from_bytes(cohort.secret),
        cohort.tag_key,
        cohort.channel_key,
    )


def records_of(site: SiteFile, me: Member, plan: Plan) -> Silo:
    """Read this site's files; nobody else learns where they are, or what is in them."""
    found = site.sets.get(plan.dataset)
    if found is None:
        raise DataError(
            f"this site has no records called {plan.dataset!r}",
            fix=f'add [[data.set]] with name = "{plan.dataset}" to {site.file.name}',
            party=me.name,
        )
    mine = PartyFiles(
        name=me.name,
        train=found.train,
        dev=found.dev,
        test=found.test,
        role=me.role,
        tier=me.tier,
    )
    data = PartyData(party=(mine,), public=found.public, format=found.format, columns=found.columns)
    (silo,) = read(data, plan.task, plan.run.seed)
    return silo


FILE = "runs.jsonl"
OPENED = "opened"  # a folder of notes, one file for each run's inputs
MOST_FORGED = 3  # sums under one roster's keys: some bits each, of a key of 6,500


class SiteMemory:
    """Notes of one site, beside its ledger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = Lines(folder / FILE, "which run begins")

    def opened(self, run: str, dataset: str, seed: int) -> Path:
        """Where over whom sums of these inputs are opened is noted, whatever becomes of the run."""
        return self._folder / OPENED / run / f"{dataset}-{seed}.jsonl"

    def begin(self, run: str, dataset: str, seed: int) -> None:
        """Note that a run begins, or refuse to repeat another's inputs."""
        before = [line["run"] for line in self._lines if _inputs(line) == (dataset, seed)]
        if not before:
            self._lines.append({"run": run, "dataset": dataset, "seed": seed})
        elif run not in before:
            raise CohortError(
                f"the run {before[0]!r} began with seed {seed} on these records; another one would "
                "send the same inputs again, and over other hospitals the difference of two sums "
                "would show somebody's",
                fix=f"go on with {before[0]!r}, or give the plan another seed in [run]",
                field="run.seed",
            )

    def require_same_sites(self, run: str, roster: Roster) -> None:
        """Refuse to go on with a run in which a name has passed to another site.

        What was opened over whom is noted by names: another site's inputs would count as the same.
        """
        cards = {member.name: member.identity.fingerprint() for member in roster.members}
        known: dict[str, str] = {}
        for line in self._lines:
            if line["run"] == run:
                known |= line.get("sites", {})
        if passed := sorted(name for name in cards.keys() & known if cards[name] != known[name]):
            raise CohortError(
                f"the run {run!r} began with other sites under the name {', '.join(passed)}",
                fix="start a new run, with another seed: this one's sums cannot be repeated",
                field="roster",
            )
        if not cards.keys() <= known.keys():
            self._lines.append({"run": run, "sites": cards})

    def forged(self, run: str, roster: Roster) -> None:
        """Note that a sum under this roster's keys was not the one that was sent.

        A coordinator learns of each some bits about the cohort's key. One member with a wrong tag
        looks just the same, so a single one must not cost everybody the keys.
        """
        self._lines.append({"run": run, "forged": roster.digest().hex()})

    def explained(self, run: str, roster: Roster) -> None:
        """Note that a member was convicted of what was taken for a forged sum: it has the keys."""
        self._lines.append({"run": run, "explained": roster.digest().hex()})

    def require_unforged(self, roster: Roster) -> None:
        """Refuse keys under which as many sums were forged as may be."""
        digest = roster.digest().hex()
        runs = [line["run"] for line in self._lines if line.get("forged") == digest]
        explained = sum(line.get("explained") == digest for line in self._lines)
        if len(runs) - explained >= MOST_FORGED:
            among = ", ".join(sorted(set(runs)))
            raise KeyringError(
                f"{len(runs) - explained} sums (of {among}) were changed on their way; by going "
                "on so one learns the cohort's key, so these keys open nothing more",
                fix="compare transcripts with the coordinator; then a new roster (`secure-fl "
                "keys roster --after`), new keys (`keys rotate`) and new kits",
                reason="retired-keys",
            )


def _inputs(line: dict[str, object]) -> tuple[object, object]:
    return line.get("dataset"), line.get("seed")
