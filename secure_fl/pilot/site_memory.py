"""A site's keys and records for a run, and its memory of all earlier runs and answered questions.

The memory does not depend on the coordinator's names for runs. It has the seeds of earlier runs:
equal seeds and records give equal inputs, and two sums of them over different hospitals differ by
one hospital's input. It has the parties of each run's opened sums, even if a run's folder is
removed. And it counts forged sums: each one that opens or fails reveals bits of the cohort's key,
so after a few the keys are retired. A failed sum whose inquiry a member cut short is charged to
that member, which is soon refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config.data import PartyData, PartyFiles
from secure_fl.config.silos import read
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.examples import digest as digest_of_records
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, DataError, KeyringError
from secure_fl.features import resolve
from secure_fl.files import Lines
from secure_fl.party.hooks import RoundHook
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SiteFile


def site_keys(ring: KeyRing, identity: Identity, roster: Roster) -> PartyKeys:
    """Open this site's keys for a run under a signed roster."""
    cohort = ring.cohort(roster, me=identity)
    return PartyKeys(
        identity,
        {member.name: member.identity for member in roster.members},
        secret.SecretKey.from_bytes(cohort.secret),
        cohort.tag_key,
        cohort.channel_key,
    )


SPLIT_SEED = 0  # fixed, so that no later study tests on records that an earlier one trained on


def records_of(site: SiteFile, me: Member, plan: Plan) -> Silo:
    """Read this site's files of records; all plans have the same splits."""
    files = site.sets.get(plan.dataset)
    if files is None:
        what = f"this site has no records called {plan.dataset!r}"
        fix = f'add [[data.set]] with name = "{plan.dataset}" to {site.file.name}'
        raise DataError(what, fix=fix, party=me.name)
    mine = PartyFiles(
        name=me.name, train=files.train, dev=files.dev, test=files.test, role=me.role, tier=me.tier
    )
    data = PartyData(party=(mine,), public=files.public, format=files.format, columns=files.columns)
    entry = ALGORITHMS[plan.algorithm.name]
    reader = resolve(entry.records) if entry.records else read
    (silo,) = reader(data, plan.task, SPLIT_SEED)
    return silo


RUNS, QUESTIONS = "runs.jsonl", "questions.jsonl"
OPENED = "opened"  # folder with one file per run and seed
MOST_FORGED = 3  # sums under one roster's keys; each reveals some of the key's 6,500 bits
MOST_CHARGED = 2  # failed sums per member and roster; then it is refused
MOST_CHARGES = 5  # failed sums per roster that count as a member's instead of as forged


@dataclass(frozen=True)
class RunInputs:
    """All that a site's inputs of a run depend on, besides the plan."""

    run: str
    dataset: str  # its name in the plan
    seed: int
    records: str = ""  # digest of the training records; "": the site trains on none

    def equal_those_of(self, line: Mapping[str, object]) -> bool:
        """Check a noted run: the same records have the same digest under any name."""
        known = line.get("records", "")
        same = line.get("dataset") == self.dataset or (known != "" and known == self.records)
        return same and line.get("seed") == self.seed


def inputs_of(plan: Plan, silo: Silo) -> RunInputs:
    """Return the inputs of this plan at this site."""
    records = digest_of_records(silo.train).hex()[:32] if silo.train else ""
    return RunInputs(plan.run.name, plan.dataset, plan.run.seed, records)


class SiteMemory:
    """Memory of one site, in the folder of its ledger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = Lines(folder / RUNS, "which run begins")

    def opened(self, inputs: RunInputs) -> Path:
        """Return the file with the parties of each opened sum of a run with this seed.

        It does not depend on the records: after a change of one, the difference of two sums over
        different hospitals is nearly one hospital's input.
        """
        return self._folder / OPENED / inputs.run / f"{inputs.seed}.jsonl"

    def require_unused(self, inputs: RunInputs) -> None:
        """Refuse a run with the inputs of another run."""
        before, seed = self._others_with(inputs), inputs.seed
        if before and not self._noted(inputs):
            raise CohortError(
                f"the run {before[0]!r} used seed {seed} on these records. Another run would send "
                "equal inputs, and with other hospitals the difference of two sums would reveal "
                "one hospital's",
                fix=f"continue {before[0]!r}, or give the plan another seed in [run]",
                field="run.seed",
            )

    def begin(self, inputs: RunInputs) -> None:
        """Note the start of a run; refuse one with the inputs of another run."""
        self.require_unused(inputs)
        if not self._noted(inputs):
            self._lines.append(asdict(inputs))

    def _noted(self, inputs: RunInputs) -> bool:
        return asdict(inputs) in list(self._lines)

    def _others_with(self, inputs: RunInputs) -> list[str]:
        runs = [line["run"] for line in self._lines if inputs.equal_those_of(line)]
        return [run for run in runs if run != inputs.run]

    def require_same_sites(self, run: str, roster: Roster) -> None:
        """Refuse to continue a run in which a name has passed to another site.

        The parties of opened sums are noted by name, so another site's inputs would count as equal.
        """
        cards, known = _cards(roster), self._sites(run)
        if passed := sorted(name for name in cards.keys() & known if cards[name] != known[name]):
            what = f"the run {run!r} began with another site under the name {', '.join(passed)}"
            fix = "start a new run with another seed: this run's sums cannot be repeated"
            raise CohortError(what, fix=fix, field="roster")

    def note_sites(self, run: str, roster: Roster) -> None:
        """Note the sites of a run that begins; `require_same_sites` has compared them."""
        cards = _cards(roster)
        if not cards.keys() <= self._sites(run).keys():
            self._lines.append({"run": run, "sites": cards})

    def _sites(self, run: str) -> dict[str, str]:
        known: dict[str, str] = {}
        for line in self._lines:
            if line["run"] == run:
                known |= line.get("sites", {})
        return known

    def forged(self, run: str, roster: Roster) -> None:
        """Note that a sum under this roster's keys was forged.

        Each forged sum reveals some bits of the cohort's key to the coordinator. A member with a
        wrong tag has the same effect, so one forged sum does not retire the keys.
        """
        self._lines.append({"run": run, "forged": roster.digest().hex()})

    def explained(self, run: str, roster: Roster) -> None:
        """Note that a forged sum was a convicted member's, which has the keys anyway."""
        self._lines.append({"run": run, "explained": roster.digest().hex()})

    def charge(self, run: str, roster: Roster, party: str) -> bool:
        """Charge a failed sum to the member that the coordinator names; return False at a limit.

        That member withheld its upload or left the inquiry. A coordinator that names a wrong one
        gets a forged sum for free, but only a few under one key, and each hospital opens them. At
        the limit the sum counts as forged, and is charged to the member, too.
        """
        charges = self._charges(roster)
        if charges[party] >= MOST_CHARGED:
            return False
        kind = "explained" if charges.total() < MOST_CHARGES else "charged"
        self._lines.append({"run": run, kind: roster.digest().hex(), "party": party})
        return kind == "explained"

    def charged(self, roster: Roster) -> set[str]:
        """Return the members that are refused under this roster: they cut inquiries short."""
        counts = self._charges(roster).items()
        return {party for party, count in counts if count >= MOST_CHARGED}

    def _charges(self, roster: Roster) -> Counter[str]:
        digest = roster.digest().hex()
        lines = (line for line in self._lines if "party" in line)
        own = (line for line in lines if digest in (line.get("explained"), line.get("charged")))
        return Counter(line["party"] for line in own)

    def require_unforged(self, roster: Roster) -> None:
        """Refuse keys under which too many sums were forged."""
        digest = roster.digest().hex()
        runs = [line["run"] for line in self._lines if line.get("forged") == digest]
        explained = sum(line.get("explained") == digest for line in self._lines)
        if len(runs) - explained >= MOST_FORGED:
            among = ", ".join(sorted(set(runs)))
            raise KeyringError(
                f"{len(runs) - explained} sums (of {among}) were changed in transit; more of them "
                "would reveal the cohort's key, so these keys are retired",
                fix="compare transcripts with the coordinator; then a new roster (`secure-fl "
                "keys roster --after`), new keys (`keys rotate`) and new kits",
                reason="retired-keys",
            )


def _cards(roster: Roster) -> dict[str, str]:
    return {member.name: member.identity.fingerprint() for member in roster.members}


class OpenedQuestions(RoundHook):
    """A site's permanent notes on opened questions, in the folder of its ledger.

    The same question over four hospitals and then over three gives, as a difference, one hospital's
    part. So each site notes every such question, over all runs, before it reveals a share of the
    sum, and lets it be opened again over exactly the same sites or not at all.
    """

    def __init__(self, folder: Path, cards: Mapping[str, str]) -> None:
        """`cards`: fingerprints of sites by name, because a name can pass to another site."""
        self._lines = Lines(folder / QUESTIONS, "which question is opened")
        self._cards = cards

    def admit(self, questions: Sequence[str], survivors: Sequence[str]) -> None:
        """Note the parties of opened answers; refuse a change of parties.

        `questions`: digests of everything but the parties that an answer depends on.
        """
        for question in questions:
            self._admit(question, survivors)

    def _admit(self, question: str, names: Sequence[str]) -> None:
        now = sorted(self._cards.get(name, name) for name in names)
        for line in self._lines:
            if line["question"] != question:
                continue
            if line["sites"] == now:
                return
            before = ", ".join(line["names"])
            raise CohortError(
                f"the same was asked over {before}, and opened; over {', '.join(sorted(names))} "
                "the difference would be what single hospitals hold",
                fix="ask with exactly those hospitals, or with records that are new",
                field="survivors",
            )
        self._lines.append({"question": question, "sites": now, "names": sorted(names)})
