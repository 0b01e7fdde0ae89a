"""One party's place in a run: its site, its checkpoints, its ledger, and the session it answers by.

In one process a `Federation` seats all parties; across hospitals each seats itself (`pilot.seat`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.capture.capture import Capture, NoCapture
from secure_fl.coordinator.step import Rules
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.noise_ledger import NoiseLedger
from secure_fl.crypto.party_keys import PartyKeys
from secure_fl.data.silo import Silo
from secure_fl.events import Event, EventLog
from secure_fl.federation.ground_rules import require_masks
from secure_fl.federation.keys import party_sum
from secure_fl.learning.dp.scope import noise_of, privacy_of, require_predictions, require_private
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Task
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Checkpoints
from secure_fl.party.session import Session
from secure_fl.protocol.link import Link
from secure_fl.runs.folder import NoCheckpoints, RunFolder
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings

Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """What all parties of a run have in common, but for who they are."""

    algorithm: Algorithm
    task: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    protection: ProtectionSettings = field(default_factory=ProtectionSettings)
    seed: int = 0

    @property
    def entry(self) -> Entry:
        """The algorithm's program, and what is special about it."""
        return ALGORITHMS[self.algorithm.name]

    def require_sound(self) -> None:
        """Refuse what would seem to protect and does not: noise here, and a host without masks."""
        name, entry = self.algorithm.name, self.entry
        if self.training.dp is not None:
            require_private(self.task.kind, name, through_fit=entry.dp_covers_all)
        if self.protection.noise is not None:
            require_predictions(name, noised=entry.opens_predictions)
        require_masks(entry, self.protection)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A party that could begin."""

    site: Site
    checkpoints: Checkpoints
    noise: NoiseLedger | None


def seat(
    terms: Terms,
    silo: Silo,
    task: Task,
    threshold: int,
    *,
    folder: RunFolder | None,
    listen: Listener,
    hospitals: Sequence[Silo] | None = None,
    local_head: bool = False,
    identity: Identity | None = None,
) -> Prepared:
    """Make one party's site, with what it kept of earlier rounds and of its budget.

    `identity`: who signs its ledger; None: a key that lies beside it.
    """
    place: Path | None = None if folder is None else folder.path
    passes = terms.algorithm.rounds * terms.algorithm.epochs
    site = Site(
        silo,
        task,
        terms.model,
        terms.training,
        terms.seed,
        EventLog(silo.name, listen),
        hospitals,
        privacy_of(silo, terms.training, passes, place, identity),
        local_head=local_head,
    )
    kept = folder.party(silo.name, site) if folder else NoCheckpoints()
    noise = noise_of(silo, terms.protection.noise, threshold, place, identity)
    return Prepared(site, kept, noise)


def session_of(
    seated: Prepared,
    terms: Terms,
    rules: Rules,
    keys: PartyKeys,
    link: Link,
    *,
    until: int | None = None,
    witness: Capture | None = None,
) -> Session:
    """What answers the coordinator for this party."""
    site = seated.site
    sums = party_sum(terms.protection, keys, rules, run=link.run, seed=terms.seed)
    sums = (witness or NoCapture()).sums(keys, sums)
    cohort = Cohort(
        site.name,
        host=rules.host,
        min_cohort=rules.min_cohort,
        threshold=rules.threshold,
        sums=sums,
        checkpoints=seated.checkpoints,
        recorder=site.recorder,
        noise=seated.noise,
    )
    cohort.until = until
    return Session(
        lambda door: terms.entry.program(door, site, terms.algorithm),
        cohort,
        link,
        sums=sums,
        checkpoints=seated.checkpoints,
        recorder=site.recorder,
        surroundings=site.surroundings,
    )
