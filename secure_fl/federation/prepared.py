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
from secure_fl.federation.run_feature import SiteLimits, run_features
from secure_fl.federation.run_spec import RunSpec
from secure_fl.federation.validation import require_adapters
from secure_fl.learning.dp.scope import noise_of, privacy_of
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import BatchedTrainer, ModelCache, SiteContext, SiteSpec
from secure_fl.learning.tasks import Task
from secure_fl.party.hooks import RoundHook
from secure_fl.party.rounds import Checkpoints
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Link
from secure_fl.runs.folder import RunFolder
from secure_fl.runs.party_checkpoints import NoCheckpoints

NO_LIMITS = SiteLimits()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A party that could begin."""

    spec: RunSpec
    site: Site
    checkpoints: Checkpoints
    noise: NoiseLedger | None
    hooks: tuple[RoundHook, ...] = ()

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
        spec, site = self.spec, self.site
        return join_run(
            lambda cohort: spec.entry.program(cohort, site, spec.algorithm),
            keys,
            link,
            rules,
            spec.protection,
            seed=spec.seed,
            recorder=site.recorder,
            checkpoints=self.checkpoints,
            noise=self.noise,
            hooks=self.hooks,
            surroundings=site.surroundings,
            until=until,
            capture=capture,
        )


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
    spec: RunSpec,
    silo: Silo,
    task: Task,
    threshold: int,
    *,
    folder: RunFolder | None,
    listen: Listener,
    hospitals: Sequence[Silo] | None = None,
    local_head: bool = False,
    identity: Identity | None = None,
    limits: SiteLimits = NO_LIMITS,
    hooks: Sequence[RoundHook] = (),
    opened: Path | None = None,
    cache: ModelCache | None = None,
    trainer: BatchedTrainer | None = None,
) -> Prepared:
    """Make one party's site, with what it kept of earlier rounds and of its budget.

    `identity`: signs the ledger; None: a key that is kept with the ledger. `hooks`: hooks that the
    site adds to every run. `opened`: the file that records over whom the run's sums are opened;
    None: in the run's folder.
    """
    name, model = spec.algorithm.name, silo.model or spec.model
    require_adapters(spec.entry, name, model, spec.training)
    place: Path | None = None if folder is None else folder.path
    privacy = privacy_of(silo, spec.training, spec.passes, place, identity)
    if privacy is not None and folder is not None:
        privacy.trainings = folder.trainings(silo.name)
    site_spec = SiteSpec(
        task,
        spec.model,
        spec.training,
        spec.seed,
        local_head=local_head,
        balances=spec.algorithm.balances,
        metrics=spec.metrics,
        measured=None if hospitals is None else tuple(hospitals),
    )
    context = SiteContext(
        EventLog(silo.name, listen),
        privacy,
        max_batch=limits.max_batch,
        cache=cache or ModelCache(),
        trainer=trainer,
    )
    site = Site(silo, site_spec, context)
    noise = noise_of(silo, spec.protection.noise, threshold, place, identity)
    own = site if noise is None else Own(site, noise)
    kept = folder.party(silo.name, own, opened) if folder else NoCheckpoints()
    optional = (feature.hook(spec, site, limits) for feature in run_features())
    parts = (*hooks, *(hook for hook in optional if hook is not None))
    return Prepared(spec, site, kept, noise, parts)
