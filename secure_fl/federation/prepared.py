"""One party of a run before it joins: its site, its checkpoints, its ledger and its hooks.

In one process a `Federation` prepares all parties; across hospitals each prepares itself (`pilot`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secure_fl.capture.recording import Capture, NoCapture
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.silo import Silo
from secure_fl.errors import SettingsError
from secure_fl.events import EventLog, Listener
from secure_fl.federation.assembly import PartyContext, join_run
from secure_fl.federation.run_feature import SiteLimits, passes_of, run_features
from secure_fl.federation.run_spec import RunSpec
from secure_fl.federation.validation import check_model
from secure_fl.learning.dp.scope import noise_of, privacy_of
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import BatchedTrainer, ModelCache, SiteContext, SiteSpec
from secure_fl.learning.tasks import Task
from secure_fl.party.cohort import Cohort
from secure_fl.party.context import Checkpoints
from secure_fl.party.hooks import RoundHook
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Link
from secure_fl.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class RunContext:
    """The surroundings of a run in this process: everything that is not in its specification."""

    rules: CoordinatorRules
    tasks: Mapping[str, Task]  # by party
    folder: RunFolder | None
    listen: Listener
    local_heads: bool = False
    measured: tuple[Silo, ...] | None = None  # with dev and test records; None: the party's own
    identity: Identity | None = None  # signs the ledger; None: a key that is kept with the ledger
    limits: SiteLimits = field(default_factory=SiteLimits)
    hooks: tuple[RoundHook, ...] = ()  # that this site adds to every run
    opened: Path | None = None  # record of opened sums; None: in the run's folder
    cache: ModelCache = field(default_factory=ModelCache)
    trainer: BatchedTrainer | None = None

    @property
    def path(self) -> Path | None:
        """The path of the run's folder."""
        return None if self.folder is None else self.folder.path


@dataclass(frozen=True, slots=True)
class Prepared:
    """A party that is ready to join a run."""

    spec: RunSpec
    rules: CoordinatorRules
    site: Site
    checkpoints: Checkpoints
    noise: NoiseLedger | None
    hooks: tuple[RoundHook, ...] = ()

    def join(
        self,
        keys: PartyKeys,
        link: Link,
        *,
        members: tuple[str, ...] = (),
        until: int | None = None,
        capture: Capture | None = None,
    ) -> Session:
        """Make the session of this party, which runs the algorithm's program.

        `members`: those with which the run must begin; empty: any.
        """
        spec, site = self.spec, self.site
        context = PartyContext(
            keys,
            link,
            self.rules,
            spec.protection,
            members,
            seed=spec.seed,
            recorder=site.recorder,
            checkpoints=self.checkpoints,
            noise=self.noise,
            hooks=self.hooks,
            surroundings=site.surroundings,
            until=until,
            capture=capture or NoCapture(),
        )
        return join_run(self._program, context)

    async def _program(self, cohort: Cohort) -> None:
        """Run the algorithm's program, and then what features add after its last round."""
        spec, site = self.spec, self.site
        await spec.entry.program(cohort, site, spec.algorithm)
        if cohort.until is None or cohort.until > site.recorder.round - 1:
            for feature in run_features():
                await feature.after_rounds(spec, cohort, site)


@dataclass(frozen=True, slots=True)
class PartyState:
    """The checkpointed state of a party with a noise ledger."""

    site: Site
    noise: NoiseLedger

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the site, and the head of the ledger."""
        return self.site.state_dict() | {"noise": self.noise.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; a checkpoint without the head of a ledger is accepted."""
        self.site.load_state_dict(state)
        self.noise.load_state_dict(state.get("noise", {}))


def prepare(spec: RunSpec, silo: Silo, context: RunContext) -> Prepared:
    """Make one party's site, with its earlier rounds and its spent budget."""
    try:
        check_model(spec, silo.model or spec.model)
    except SettingsError as error:
        error.at(party=silo.name)
        raise
    folder, path = context.folder, context.path
    site = _site(spec, silo, context)
    if spec.algorithm.trains(spec.model):
        _check_tokenizer(site)
    noise = noise_of(silo, spec.protection.noise, context.rules.threshold, path, context.identity)
    state = site if noise is None else PartyState(site, noise)
    rounds = folder.party(silo.name, state, context.opened) if folder else Checkpoints()
    optional = [feature.hook(spec, site, context.limits) for feature in run_features()]
    hooks = (*context.hooks, *filter(None, optional))
    return Prepared(spec, context.rules, site, rounds, noise, hooks)


def _check_tokenizer(site: Site) -> None:
    """Refuse a task that the tokenizer of this party's model cannot read."""
    try:
        site.task.check_tokenizer(lambda: site.tokenizer)
    except SettingsError as error:
        error.at(party=site.name)
        raise


def _site(spec: RunSpec, silo: Silo, context: RunContext) -> Site:
    """Make a party's site, with its budget for DP-SGD."""
    folder, limits = context.folder, context.limits
    privacy = privacy_of(
        silo,
        spec.training,
        passes_of(spec),
        context.path,
        context.identity,
        step_rate=spec.algorithm.step_rate,
        own_epsilon=limits.own_epsilon,
    )
    if privacy is not None and folder is not None:
        privacy.trainings = folder.trainings(silo.name)
    site_spec = SiteSpec(
        context.tasks[silo.name],
        spec.model,
        spec.training,
        spec.seed,
        local_head=context.local_heads,
        balances=spec.algorithm.balances,
        metrics=spec.metrics,
        measured=context.measured,
    )
    site_context = SiteContext(
        EventLog(silo.name, context.listen),
        privacy,
        max_batch=limits.max_batch,
        options=limits.options,
        ledger=limits.ledger,
        cache=context.cache,
        trainer=context.trainer,
    )
    return Site(silo, site_spec, site_context)
