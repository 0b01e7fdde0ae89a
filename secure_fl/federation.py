"""A whole federation in one process: the hospitals' sessions, the coordinator, the local engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.cohort import Cohort
from secure_fl.coordinator import Coordinator, Engine
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.secure_sum import PartyKeys
from secure_fl.engines.local import LocalEngine
from secure_fl.errors import SecureFLError
from secure_fl.ground_rules import pooled, rules_of, statement, tasks_of
from secure_fl.link import Link
from secure_fl.privacy import Privacy, document
from secure_fl.private_scope import open_ledger, require_private, sampling_units
from secure_fl.protection import make_keys, party_sum
from secure_fl.recorder import Event, Recorder
from secure_fl.result import SCHEMA, Result, machine, spent, summarise, versions
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
from secure_fl.thresholds import collusion_bound
from secure_fl.totals import blind_totals

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
        self._settings = settings or self._describe()
        self.rules = rules_of(self.silos, self.protection, self.entry)
        self.tasks = tasks_of(self.task_settings, self.silos, self.entry)
        if self.training.dp is not None:
            kind, through_fit = self.task_settings.kind, self.entry.through_fit
            require_private(kind, algorithm.name, through_fit=through_fit)

    def run(self, engine: Callable[[Mapping[str, Session]], Engine] = LocalEngine) -> Result:
        """Train from the first round (or the last checkpoint) to the end."""
        started = time.perf_counter()
        folder = None
        if self.folder is not None:
            folder = RunFolder.open(self.folder, self._settings, resume=self.resume)
        try:
            listen = self._listener(folder)
            parties = [self._party(silo, folder, listen) for silo in self.silos]
            coordinator = Recorder(COORDINATOR, listen)
            with coordinator.phase("run"):
                self._coordinate(parties, engine, coordinator)
            recorders = [coordinator, *(party.site.recorder for party in parties)]
            seconds = spent(recorders, time.perf_counter() - started)
            document = self._document(parties, seconds)
            result = self._result(parties, document)
            if folder is not None:
                self._export(folder.path, parties)
                folder.finish(document)
            return result
        finally:
            if folder is not None:
                folder.close()

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
        links, sessions = {}, {}
        for party in parties:
            name = party.site.name
            links[name] = Link(run, me, keys[name].identity.public, asks=True)
            link = Link(run, keys[name].identity, me.public, asks=False)
            sessions[name] = self._session(party, keys[name], link)
        coordinator = Coordinator(
            links,
            engine(sessions),
            self.rules,
            blind_totals(self.protection, names, self.rules, run),
            recorder,
        )
        try:
            coordinator.run()
        except SecureFLError as error:
            # On one machine the operator may see what the failing party would only log at home.
            own = sessions.get(str(error.where.get("party", "")))
            if own is not None and own.error is not None:
                raise own.error from own.error.__cause__
            raise

    def _session(self, party: _Party, keys: PartyKeys, link: Link) -> Session:
        site = party.site
        sums = party_sum(self.protection, keys, self.rules, run=link.run, seed=self.seed)
        cohort = Cohort(
            site.name,
            host=self.rules.host,
            min_cohort=self.rules.min_cohort,
            threshold=self.rules.threshold,
            sums=sums,
            checkpoints=party.checkpoints,
            recorder=site.recorder,
        )
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
        site = Site(
            silo,
            self.tasks[silo.name],
            self.model,
            self.training,
            self.seed,
            recorder,
            self.hospitals if self.entry.pools_data else None,
            self._privacy(silo),
        )
        return _Party(site, folder.party(silo.name, site) if folder else NoCheckpoints())

    def _privacy(self, silo: Silo) -> Privacy | None:
        """What the party may spend: from its ledger, if the settings or the run have a place."""
        dp = self.training.dp
        if dp is None:
            return None
        place = Path(dp.ledger) if dp.ledger else self.folder and self.folder / "parties"
        run = os.urandom(8) if self.folder is None else str(self.folder.resolve()).encode()
        return Privacy(
            silo.name,
            dp,
            sampling_units(silo.train, dp, silo.name),
            self.training.batch_size,
            passes=self.algorithm.rounds * self.algorithm.epochs,
            ledger=open_ledger(place / silo.name, silo.name) if place else None,
            run=sha256(run).hexdigest()[:16],  # the same when it is resumed
        )

    def _listener(self, folder: RunFolder | None) -> Listener:
        def listen(event: Event) -> None:
            if folder is not None:
                folder.record(event)
            if self.listener is not None:
                self.listener(event)

        return listen

    def _document(self, parties: Sequence[_Party], seconds: Mapping[str, Any]) -> dict[str, Any]:
        recorders = [party.site.recorder for party in parties]
        metric = next(iter(self.tasks.values())).metric
        spending = {p.site.name: p.site.privacy for p in parties if p.site.privacy is not None}
        return {
            "schema": SCHEMA,
            "status": "finished",
            "algorithm": self.algorithm.name,
            "algorithm_settings": self.algorithm.model_dump(mode="json"),
            "protection": self._protection(),
            "privacy": document(self.training.dp, spending) if self.training.dp else None,
            "task": self.task_settings.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "parties": [silo.name for silo in self.hospitals],
            "seed": self.seed,
            "rounds": self.algorithm.rounds,
            "main_metric": metric,
            "metrics": summarise(recorders, metric),
            "history": [{"party": r.party} | entry for r in recorders for entry in r.history],
            "bytes": {r.party: {"up": r.bytes_up, "down": r.bytes_down} for r in recorders},
            "seconds": seconds,
            "versions": dict(versions()),
            "machine": dict(machine()),
        }

    def _protection(self) -> dict[str, Any]:
        parties = len(self.silos) - (self.rules.host is not None)
        bound = collusion_bound(parties, self.rules.threshold)
        return self.protection.model_dump(mode="json") | {
            "parties": parties,
            "threshold": self.rules.threshold,
            "collusion_bound": {
                "honest_coordinator": bound.honest,
                "lying_coordinator": bound.lying,
            },
            "statement": statement(self.protection.mode, bound.sentence()),
        }

    def _result(self, parties: Sequence[_Party], document: Mapping[str, Any]) -> Result:
        models: dict[str, Any] = {}
        tokenizers: dict[str, Any] = {}
        for party in parties:
            for name, delivery in party.site.delivered.items():
                key = name if delivery.shared else f"{party.site.name}/{name}"
                models.setdefault(key, delivery.model)
                tokenizers.setdefault(key, party.site.tokenizer)
        return Result(document, models, parties[0].site.task, tokenizers)

    def _export(self, run: Path, parties: Sequence[_Party]) -> None:
        from secure_fl.models import export

        shared: set[str] = set()
        for party in parties:
            site = party.site
            for name, delivery in site.delivered.items():
                if delivery.shared and name in shared:
                    continue
                shared |= {name} if delivery.shared else set()
                folder = run / name if delivery.shared else run / "parties" / site.name / name
                export(delivery.model, site.tokenizer, folder, site.task)

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
