"""A whole federation in one process: the hospitals' sessions, the coordinator, the local engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path

from secure_fl.algorithms.base import Algorithm
from secure_fl.capture.capture import Capture, NoCapture
from secure_fl.capture.recording import FolderCapture
from secure_fl.config.build import Settings
from secure_fl.config.load import dump, settings_to_resume, silos
from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.coordinator.resume import unfinished
from secure_fl.coordinator.totals import blind_totals
from secure_fl.crypto.identity import Identity
from secure_fl.data.silo import Silo
from secure_fl.engines.local import LocalEngine
from secure_fl.errors import SecureFLError
from secure_fl.events import Event, EventLog
from secure_fl.federation.assembly import Listener, Prepared, Terms, seat, session_of
from secure_fl.federation.ground_rules import local_heads, pooled, rules_of, tasks_of
from secure_fl.federation.keys import make_keys
from secure_fl.federation.outcome import Outline, deliver, document_of, export_to
from secure_fl.party.session import Session
from secure_fl.protocol.link import Link
from secure_fl.protocol.messages import Ready
from secure_fl.runs.folder import RunFolder
from secure_fl.runs.result import Result, spent
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings

COORDINATOR = "coordinator"


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
        self.terms = Terms(
            algorithm,
            task or TaskSettings(),
            model or ModelSettings(),
            training or TrainingSettings(),
            protection or ProtectionSettings(),
            seed,
        )
        self.algorithm, self.entry = algorithm, self.terms.entry
        self.hospitals = tuple(sorted(silos, key=lambda s: s.name))
        self.silos = (pooled(self.hospitals),) if self.entry.pools_data else self.hospitals
        self.task_settings, self.model = self.terms.task, self.terms.model
        self.training, self.protection = self.terms.training, self.terms.protection
        self.seed, self.resume, self.listener = seed, resume, listener
        self.folder = None if folder is None else Path(folder)
        self.until: int | None = None  # the round to end with, if not the last
        self._witness: Capture = NoCapture()
        self._record = record  # every role's view, for an audit: needs a folder
        self._settings = settings or self._describe()
        self.rules = rules_of(self.silos, self.protection, self.entry)
        self.tasks = tasks_of(self.task_settings, self.silos, self.entry)
        self.local_heads = local_heads(self.tasks)
        self.terms.require_sound()

    @classmethod
    def of(
        cls,
        settings: Settings,
        folder: Path | None = None,
        *,
        resume: bool = False,
        listener: Listener | None = None,
    ) -> Federation:
        """The federation that a settings file describes; to resume, they must be the run's own."""
        text = settings_to_resume(settings, folder) if resume and folder else dump(settings)
        return cls(
            silos(settings),
            settings.algorithm,
            task=settings.task,
            model=settings.model,
            training=settings.training,
            protection=settings.protection,
            seed=settings.run.seed,
            folder=folder,
            resume=resume,
            listener=listener,
            settings=text,
            record=settings.run.record,
        )

    def run(self, engine: Callable[[Mapping[str, Session]], Engine] = LocalEngine) -> Result:
        """Train from the first round (or the last checkpoint) to the end."""
        started = time.perf_counter()
        folder = None
        if self.folder is not None:
            folder = RunFolder.open(self.folder, self._settings, resume=self.resume)
        try:
            if self._record and folder is not None:
                self._witness = FolderCapture(folder.path)
            listen = self._listener(folder)
            known = folder.known() if folder is not None else frozenset[str]()
            parties = [self._party(silo, folder, listen) for silo in self.silos]
            coordinator = EventLog(COORDINATOR, listen)
            if folder is not None:
                self._note_parties(known, coordinator)
                self._finish_begun(parties, folder, listen, engine, coordinator)
            with coordinator.phase("run"):
                self._coordinate(parties, engine, coordinator)
            sites = [party.site for party in parties]
            recorders = [coordinator, *(site.recorder for site in sites)]
            seconds = spent(recorders, time.perf_counter() - started)
            accounts = {p.site.name: p.noise for p in parties if p.noise is not None}
            document = document_of(self.outline, sites, seconds, accounts)
            result = deliver(sites, document)
            if folder is not None:
                export_to(folder.path, sites)
                folder.finish(document)
            return result
        finally:
            self._witness.close()
            if folder is not None:
                folder.close()

    @property
    def outline(self) -> Outline:
        """What its result says of the run beside what was measured."""
        return Outline(
            self.terms,
            self.rules,
            self.tasks,
            tuple(silo.name for silo in self.hospitals),
            len(self.silos) - (self.rules.host is not None),
            self.local_heads,
        )

    def _note_parties(self, before: frozenset[str], recorder: EventLog) -> None:
        """Say who takes part in a resumed run that did not before, and who no longer does."""
        now = {silo.name for silo in self.silos}
        if before and before != now:
            joined, left = sorted(now - before), sorted(before - now)
            recorder.event("parties", joined=joined, left=left)

    def _finish_begun(
        self,
        parties: Sequence[Prepared],
        folder: RunFolder,
        listen: Listener,
        engine: Callable[[Mapping[str, Session]], Engine],
        recorder: EventLog,
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
        parties: Sequence[Prepared],
        engine: Callable[[Mapping[str, Session]], Engine],
        recorder: EventLog,
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
            sessions[name] = session_of(
                party,
                self.terms,
                self.rules,
                keys[name],
                link,
                until=self.until,
                witness=self._witness,
            )
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

    def _party(self, silo: Silo, folder: RunFolder | None, listen: Listener) -> Prepared:
        return seat(
            self.terms,
            silo,
            self.tasks[silo.name],
            self.rules.threshold,
            folder=folder,
            listen=listen,
            hospitals=self.hospitals if self.entry.pools_data else None,
            local_head=self.local_heads,
        )

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
