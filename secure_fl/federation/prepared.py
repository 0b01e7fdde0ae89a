"""One party's place in a run: its site, its checkpoints and its ledger, before it joins.

In one process a `Federation` prepares all parties; across hospitals each prepares itself (`pilot`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secure_fl.capture.capture import Capture
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog, Listener
from secure_fl.federation.assembly import join_run
from secure_fl.federation.ground_rules import require_adapters
from secure_fl.federation.terms import Terms
from secure_fl.learning.dp.scope import noise_of, privacy_of
from secure_fl.learning.judging import DevRecords
from secure_fl.learning.shelf import Shelf
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Task
from secure_fl.learning.together import Together
from secure_fl.party.guard import Guard
from secure_fl.party.opened_questions import OpenedQuestions
from secure_fl.party.pooling import Pooling
from secure_fl.party.rounds import Checkpoints
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Link
from secure_fl.runs.folder import RunFolder
from secure_fl.runs.party_checkpoints import NoCheckpoints


@dataclass(frozen=True, slots=True)
class Prepared:
    """A party that could begin."""

    terms: Terms
    site: Site
    checkpoints: Checkpoints
    noise: NoiseLedger | None
    guard: Guard | None
    questions: OpenedQuestions | None = None

    def join(
        self,
        rules: CoordinatorRules,
        keys: PartyKeys,
        link: Link,
        *,
        until: int | None = None,
        capture: Capture | None = None,
    ) -> Session:
        """What answers the coordinator for this party, by its algorithm's program."""
        terms, site = self.terms, self.site
        return join_run(
            lambda cohort: terms.entry.program(cohort, site, terms.algorithm),
            keys,
            link,
            rules,
            terms.protection,
            seed=terms.seed,
            recorder=site.recorder,
            checkpoints=self.checkpoints,
            noise=self.noise,
            pooling=self._pooling(),
            guard=self.guard,
            questions=self.questions,
            surroundings=site.surroundings,
            until=until,
            capture=capture,
        )

    def _pooling(self) -> Pooling | None:
        """Sums this site's scores with the others', where its run may."""
        if not self.terms.pools_scores:
            return None
        return Pooling(self.site.scores, self.site.recorder, self.terms.training.patience)


@dataclass(frozen=True, slots=True)
class Own:
    """What checkpoints hold of a party itself, where its predictions are noised."""

    site: Site
    noise: NoiseLedger

    def state_dict(self) -> dict[str, Any]:
        """The site's, and the head of the ledger."""
        return self.site.state_dict() | {"noise": self.noise.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse; what began without the head goes on without."""
        self.site.load_state_dict(state)
        self.noise.load_state_dict(state.get("noise", {}))


def prepare(
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
    max_batch: int | None = None,
    max_growth: float | None = None,
    questions: OpenedQuestions | None = None,
    opened: Path | None = None,
    shelf: Shelf | None = None,
    together: Together | None = None,
    share_scores: bool = False,
) -> Prepared:
    """Make one party's site, with what it kept of earlier rounds and of its budget.

    `identity`: who signs its ledger; None: a key that lies beside it. `max_batch`: how many
    records its policy allows in memory at once; None: as many as the algorithm takes. `max_growth`:
    how much its policy lets grids grow, where the plan is guarded. `questions`: its notes of what
    was opened in all runs; None: in one process no site is apart from the others. `opened`: where
    it notes over whom this run's sums are opened; None: in its folder. `share_scores`:
    whether other members of an evaluation learn its own.
    """
    name, model = terms.algorithm.name, silo.model or terms.model
    require_adapters(terms.entry, name, model, terms.training)
    place: Path | None = None if folder is None else folder.path
    privacy = privacy_of(silo, terms.training, terms.passes, place, identity)
    if privacy is not None and folder is not None:
        privacy.trainings = folder.trainings(silo.name)
    site = Site(
        silo,
        task,
        terms.model,
        terms.training,
        terms.seed,
        EventLog(silo.name, listen),
        hospitals,
        privacy,
        local_head=local_head,
        max_batch=max_batch,
        metrics=terms.metrics,
        shelf=shelf,
        together=together,
        share_scores=share_scores,
        balances=terms.algorithm.balances,
    )
    noise = noise_of(silo, terms.protection.noise, threshold, place, identity)
    own = site if noise is None else Own(site, noise)
    kept = folder.party(silo.name, own, opened) if folder else NoCheckpoints()
    guard = None
    if terms.guard is not None and terms.entry.guarded is not None:
        judge = DevRecords(site, terms.entry.guarded)
        guard = Guard(terms.guard, judge, site.recorder, terms.seed, max_growth)
    return Prepared(terms, site, kept, noise, guard, questions)
