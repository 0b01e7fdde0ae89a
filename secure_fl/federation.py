"""A whole federation in one process: the hospitals' sessions, the coordinator, the local engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.cohort import Cohort
from secure_fl.continuation import unfinished
from secure_fl.coordinator import Coordinator, Engine
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.noise_ledger import NoiseLedger
from secure_fl.crypto.secure_sum import PartyKeys
from secure_fl.engines.local import LocalEngine
from secure_fl.errors import SecureFLError
from secure_fl.ground_rules import local_heads, pooled, rules_of, tasks_of
from secure_fl.link import Link
from secure_fl.outcome import deliver, document_of, export_to
from secure_fl.private_scope import noise_of, privacy_of, require_predictions, require_private
from secure_fl.protection import make_keys, party_sum
from secure_fl.recorder import Event, Recorder
from secure_fl.result import Result, spent
from secure_fl.rounds import Checkpoints
from secure_fl.runs import NoCheckpoints, RunFolder
from secure_fl.session import Session
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)
from secure_fl.silo import Silo, Site
from secure_fl.totals import blind_totals
from secure_fl.views.recording import Recording
from secure_fl.wire import Ready
from secure_fl.witness import Nobody, Witness

COORDINATOR = "coordinator"
Listener = Callable[[Event], None]


class Federation:
    """Hospitals, an algorithm and the rules of their run. `run()` trains."""

    def __init__(
        self,
        silos: Sequence[Silo],
        algorithm: Algorithm,
        *,
        task: TaskSettings | None = None,
        model: ModelSettings | None = None,
        training: TrainingSettings | None = None,
        protection: ProtectionSettings | None = None,
        seed: int = 0,
        folder: Path | str | None = None,
        resume: bool = False,
        listener: Listener | None = None,
        settings: str | None = None,
        record: bool = False,
    ) -> None:
        self.algorithm, self.entry = algorithm, ALGORITHMS[algorithm.name]
        self.hospitals = tuple(sorted(silos, key=lambda s: s.name))
        self.silos = (pooled(self.hospitals),) if self.entry.pools_data else self.hospitals
        self.task_settings = task or TaskSettings()
        self.model = model or ModelSettings()
        self.training = training or TrainingSettings()
        self.protection = protection or ProtectionSettings()
        self.seed, self.resume, self.listener = seed, resume, listener
        self.folder = None if folder is None else Path(folder)
        self.until: int | None = None  # the round to end with, if not the last
        self._witness: Witness = Nobody()
        self._record = record  # every role's view, for an audit: needs a folder
        self._settings = settings or self._describe()
        self.rules = rules_of(self.silos, self.protection, self.entry)
        self.tasks = tasks_of(self.task_settings, self.silos, self.entry)
        self.local_heads = local_heads(self.tasks)
        if self.training.dp is not None:
            kind, through_fit = self.task_settings.kind, self.entry.through_fit
            require_private(kind, algorithm.name, through_fit=through_fit)
        if self.protection.noise is not None:
            require_predictions(algorithm.name, noised=self.entry.noised)

    def run(self, engine: Callable[[Mapping[str, Session]], Engine] = LocalEngine) -> Result:
        """Train from the first round (or the last checkpoint) to the end."""
        started = time.perf_counter()
        folder = None
        if self.folder is not None:
            folder = RunFolder.open(self.folder, self._settings, resume=self.resume)
        try:
            if self._record and folder is not None:
                self._witness = Recording(folder.path)
            listen = self._listener(folder)
            known = folder.known() if folder is not None else frozenset[str]()
            parties = [self._party(silo, folder, listen) for silo in self.silos]
            coordinator = Recorder(COORDINATOR, listen)
            if folder is not None:
                self._note_parties(known, coordinator)
                self._finish_begun(parties, folder, listen, engine, coordinator)
            with coordinator.phase("run"):
                self._coordinate(parties, engine, coordinator)
            sites = [party.site for party in parties]
            recorders = [coordinator, *(site.recorder for site in sites)]
            seconds = spent(recorders, time.perf_counter() - started)
            accounts = {p.site.name: p.noise for p in parties if p.noise is not None}
            document = document_of(self, sites, seconds, accounts)
            result = deliver(sites, document)
            if folder is not None:
                export_to(folder.path, sites)
                folder.finish(document)
            return result
        finally:
            self._witness.close()
            if folder is not None:
                folder.close()

    def _note_parties(self, before: frozenset[str], recorder: Recorder) -> None:
        """Say who takes part in a resumed run that did not before, and who no longer does."""
        now = {silo.name for silo in self.silos}
        if before and before != now:
            joined, left = sorted(now - before), sorted(before - now)
            recorder.event("parties", joined=joined, left=left)

    def _finish_begun(
        self,
        parties: Sequence[_Party],
        folder: RunFolder,
        listen: Listener,
        engine: Callable[[Mapping[str, Session]], Engine],
        recorder: Recorder,
    ) -> None:
        """Let those who began a round end it, where others could join only after it."""
        ready = {
            p.site.name: Ready(p.checkpoints.available(), opened=p.checkpoints.opened())
            for p in parties
        }
        found = unfinished(ready, self.rules.host, self.rules.threshold)
        if found is not None:
            before = copy(self)
            before.until, who = found
            before.silos = tuple(silo for silo in self.silos if silo.name in who)
            before.rules = rules_of(before.silos, self.protection, self.entry)
            began = [before._party(silo, folder, listen) for silo in before.silos]
            before._coordinate(began, engine, recorder)

    def _coordinate(
        self,
        parties: Sequence[_Party],
        engine: Callable[[Mapping[str, Session]], Engine],
        recorder: Recorder,
    ) -> None:
        run = os.urandom(16)
        me = Identity.generate(COORDINATOR)
        names = [silo.name for silo in self.silos]
        keys = make_keys(self.protection.mode, names, self.rules.host)
        self._witness.begin(self.protection.mode, self.rules.host, tuple(names), run)
        links, sessions = {}, {}
        for party in parties:
            name = party.site.name
            links[name] = Link(run, me, keys[name].identity.public, asks=True)
            link = Link(run, keys[name].identity, me.public, asks=False)
            sessions[name] = self._session(party, keys[name], link)
        coordinator = Coordinator(
            links,
            self._witness.engine(engine(sessions)),
            self.rules,
            blind_totals(self.protection, names, self.rules, run),
            recorder,
        )
        try:
            coordinator.run()
        except SecureFLError as error:
            # On one machine the operator may see what the failing party would only log at home.
            own = sessions.get(str(error.where.get("party", "")))
            if own is not None and own.error is not None and not own.stopped:
                raise own.error from own.error.__cause__
            raise

    def _session(self, party: _Party, keys: PartyKeys, link: Link) -> Session:
        site = party.site
        sums = party_sum(self.protection, keys, self.rules, run=link.run, seed=self.seed)
        sums = self._witness.sums(keys, sums)
        cohort = Cohort(
            site.name,
            host=self.rules.host,
            min_cohort=self.rules.min_cohort,
            threshold=self.rules.threshold,
            sums=sums,
            checkpoints=party.checkpoints,
            recorder=site.recorder,
            noise=party.noise,
        )
        cohort.until = self.until
        return Session(
            lambda door: self.entry.program(door, site, self.algorithm),
            cohort,
            link,
            sums=sums,
            checkpoints=party.checkpoints,
            recorder=site.recorder,
            surroundings=site.surroundings,
        )

    def _party(self, silo: Silo, folder: RunFolder | None, listen: Listener) -> _Party:
        recorder = Recorder(silo.name, listen)
        passes = self.algorithm.rounds * self.algorithm.epochs
        site = Site(
            silo,
            self.tasks[silo.name],
            self.model,
            self.training,
            self.seed,
            recorder,
            self.hospitals if self.entry.pools_data else None,
            privacy_of(silo, self.training, passes, self.folder),
            local_head=self.local_heads,
        )
        kept = folder.party(silo.name, site) if folder else NoCheckpoints()
        noise = noise_of(silo, self.protection.noise, self.rules.threshold, self.folder)
        return _Party(site, kept, noise)

    def _listener(self, folder: RunFolder | None) -> Listener:
        def listen(event: Event) -> None:
            if folder is not None:
                folder.record(event)
            if self.listener is not None:
                self.listener(event)

        return listen

    def _describe(self) -> str:
        """The settings of a run started from the library, for `resume` to compare."""
        sections = {
            "algorithm": self.algorithm,
            "task": self.task_settings,
            "model": self.model,
            "training": self.training,
            "protection": self.protection,
        }
        lines = [f"[run]\nseed = {self.seed}"]
        for name, section in sections.items():
            fields = section.model_dump(mode="json", exclude_none=True)
            lines += [f"[{name}]", *(f"{key} = {value!r}" for key, value in fields.items())]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Party:
    site: Site
    checkpoints: Checkpoints
    noise: NoiseLedger | None
