"""A whole federation in one process: the hospitals' sessions, the coordinator, the local engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.capture.capture import Capture, NoCapture
from secure_fl.capture.recording import FolderCapture
from secure_fl.config.build import Settings
from secure_fl.config.load import dump, settings_to_resume, silos
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.data.silo import Silo
from secure_fl.display.run_page import PageWriter
from secure_fl.display.watch import watching
from secure_fl.engines.local import LocalEngine
from secure_fl.events import Event, EventLog, Listener, MembershipChanged, RoundStarted
from secure_fl.federation.assembly import COORDINATOR
from secure_fl.federation.outcome import Outline, deliver, document_of, export_to
from secure_fl.federation.prepared import Prepared, prepare
from secure_fl.federation.result import Result
from secure_fl.federation.run_spec import RunSpec, algorithm_of
from secure_fl.federation.stretch import MakeEngine, Stretch
from secure_fl.federation.validation import (
    local_heads,
    pooled,
    require_silos,
    require_trainable,
    rules_of,
    tasks_of,
)
from secure_fl.learning.scores import Metric
from secure_fl.learning.site_context import BatchedTrainer, ModelCache
from secure_fl.learning.tasks import Task, settings_of
from secure_fl.runs.folder import RunFolder, finished
from secure_fl.runs.model_card import write_cards
from secure_fl.runs.result_document import crossed, spent
from secure_fl.settings import (
    GuardSettings,
    ModelSettings,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)


class Federation:
    """Hospitals, an algorithm and the rules of their run. `run()` trains."""

    def __init__(
        self,
        silos: Sequence[Silo],
        algorithm: Algorithm | type[Algorithm] | str,
        *,
        task: TaskSettings | Task | None = None,
        model: ModelSettings | None = None,
        training: TrainingSettings | None = None,
        protection: ProtectionSettings | None = None,
        guard: GuardSettings | None = None,
        seed: int = 0,
        folder: Path | str | None = None,
        resume: bool = False,
        listener: Listener | None = None,
        settings: str | None = None,
        record: bool = False,
        keep_checkpoints: bool = True,
        progress: bool | None = None,
        metrics: Mapping[str, Metric] | None = None,
        trainer: Callable[[], BatchedTrainer] | None = None,
    ) -> None:
        """`trainer`: trains many small sites as one batch: `features.batched_simulation`."""
        require_silos(silos)
        own = task if isinstance(task, Task) else None  # a task of the program's own
        self.spec = RunSpec(
            algorithm_of(algorithm),
            settings_of(task) if isinstance(task, Task) else task or TaskSettings(),
            model or ModelSettings(),
            training or TrainingSettings(),
            protection or ProtectionSettings(),
            seed,
            metrics or {},
            {} if guard is None else {"guard": guard},
        )
        entry = self.spec.entry
        require_trainable(silos, entry)
        self.hospitals = tuple(sorted(silos, key=lambda s: s.name))
        self.silos = (pooled(self.hospitals),) if entry.pools_data else self.hospitals
        self.resume, self.listener = resume, listener
        self.folder = None if folder is None else Path(folder)
        self.until: int | None = None  # the round to end with, if not the last
        self._record = record  # every role's view, for an audit: needs a folder
        self._keep_checkpoints = keep_checkpoints  # when the run is finished
        self._trainer = trainer
        self._progress = progress  # None: shown to whoever looks, unless a listener is there
        self._settings = settings or self.spec.describe()
        self.rules = rules_of(self.silos, self.spec.protection, entry)
        self.tasks = (
            dict.fromkeys((silo.name for silo in self.silos), own)
            if own is not None
            else tasks_of(self.spec.task, self.silos, entry)
        )
        self.local_heads = local_heads(self.tasks)
        self.spec.check()
        self.spec.check_members(len(self.silos), self.rules.min_cohort)

    @classmethod
    def of(
        cls,
        settings: Settings,
        folder: Path | None = None,
        *,
        hospitals: Sequence[Silo] | None = None,
        resume: bool = False,
        listener: Listener | None = None,
        progress: bool | None = None,
    ) -> Federation:
        """The federation that a settings file describes; to resume, they must be the run's own.

        `hospitals`: the members with their records, where these were read already.
        """
        text = settings_to_resume(settings, folder) if resume and folder else dump(settings)
        return cls(
            silos(settings) if hospitals is None else hospitals,
            settings.algorithm,
            task=settings.task,
            model=settings.model,
            training=settings.training,
            protection=settings.protection,
            guard=settings.guard,
            seed=settings.run.seed,
            folder=folder,
            resume=resume,
            listener=listener,
            settings=text,
            record=settings.run.record,
            keep_checkpoints=settings.run.keep_checkpoints,
            progress=progress,
        )

    def run(self, engine: MakeEngine = LocalEngine) -> Result:
        """Train from the first round (or the last checkpoint) to the end."""
        started = time.perf_counter()
        with ExitStack() as stack:
            folder, capture = self._opened(stack)
            if self.resume and folder is not None and finished(folder.path):
                return Result.load(folder.path)
            listen = self._listener(folder, stack)
            before = folder.spent() if folder is not None else {}
            log = EventLog(COORDINATOR, listen)
            known = folder.known() if folder is not None else frozenset[str]()
            whole = self._stretch(self.silos, self.rules, self.until, folder, listen)
            if folder is not None:
                self._note_parties(known, log)
                begun = self._begun(whole, folder, listen)
                if begun is not None:
                    begun.train(engine, capture, log)
            parties = list(whole.parties.values())
            if folder is not None:
                log.listener = _noting(folder, parties, log, started, before)
            with log.phase("run"):
                whole.train(engine, capture, log)
            return self._finished(parties, folder, log, started, before)

    @property
    def outline(self) -> Outline:
        """What its result says of the run beside what was measured."""
        return Outline(
            self.spec,
            self.rules,
            self.tasks,
            tuple(silo.name for silo in self.hospitals),
            len(self.silos) - (self.rules.host is not None),
            self.local_heads,
            whole=True,
        )

    def _opened(self, stack: ExitStack) -> tuple[RunFolder | None, Capture]:
        """The run's folder, and who watches the run."""
        if self.folder is None:
            return None, NoCapture()
        folder = RunFolder.open(self.folder, self._settings, resume=self.resume)
        stack.push(folder.withdraw)
        stack.callback(folder.close)
        capture: Capture = FolderCapture(folder.path) if self._record else NoCapture()
        stack.callback(capture.close)
        return folder, capture

    def _stretch(
        self,
        silos: Sequence[Silo],
        rules: CoordinatorRules,
        until: int | None,
        folder: RunFolder | None,
        listen: Listener,
    ) -> Stretch:
        """Prepare these parties."""
        cache = ModelCache(len(silos))
        trainer = None if self._trainer is None else self._trainer()
        parties = {
            silo.name: prepare(
                self.spec,
                silo,
                self.tasks[silo.name],
                rules.threshold,
                folder=folder,
                listen=listen,
                hospitals=self.hospitals if self.spec.entry.pools_data else None,
                local_head=self.local_heads,
                cache=cache,
                trainer=trainer,
            )
            for silo in silos
        }
        return Stretch(self.spec, parties, rules, until)

    def _begun(self, whole: Stretch, folder: RunFolder, listen: Listener) -> Stretch | None:
        """The end of a round for those who began it, where others can join only after it."""
        begun = whole.begun()
        if begun is None:
            return None
        until, who = begun
        silos = tuple(silo for silo in self.silos if silo.name in who)
        rules = rules_of(silos, self.spec.protection, self.spec.entry)
        return self._stretch(silos, rules, until, folder, listen)

    def _note_parties(self, before: frozenset[str], log: EventLog) -> None:
        """Say who takes part in a resumed run that did not before, and who no longer does."""
        now = {silo.name for silo in self.silos}
        if before and before != now:
            joined, left = tuple(sorted(now - before)), tuple(sorted(before - now))
            log.event(MembershipChanged(joined=joined, left=left))

    def _finished(
        self,
        parties: Sequence[Prepared],
        folder: RunFolder | None,
        log: EventLog,
        started: float,
        before: Mapping[str, Any],
    ) -> Result:
        """What comes out; it is also written into the run's folder."""
        sites = [party.site for party in parties]
        recorders = [log, *(site.recorder for site in sites)]
        seconds = spent(recorders, time.perf_counter() - started, before.get("seconds"))
        accounts = {p.site.name: p.noise for p in parties if p.noise is not None}
        document = document_of(
            self.outline, sites, seconds, accounts, before.get("bytes"), hooks=parties[0].hooks
        )
        result = deliver(sites, document)
        if folder is not None:
            export_to(folder.path, sites)
            folder.finish(document)
            write_cards(folder.path)
            PageWriter(folder.path).write()
            if self.until is None and not self._keep_checkpoints:
                folder.drop_checkpoints()
        return result

    def _listener(self, folder: RunFolder | None, stack: ExitStack) -> Listener:
        """Everybody who is told what happens: the folder, the program's own, whoever looks."""
        own = () if self.listener is None else (self.listener,)
        shown = self._progress if self._progress is not None or not own else False
        metric = next(iter(self.tasks.values())).metric
        name, rounds = self.spec.algorithm.name, self.spec.algorithm.rounds
        watch = stack.enter_context(watching(name, rounds, metric, shown))
        kept: list[Listener] = [] if folder is None else [folder.record, PageWriter(folder.path)]
        told = [*kept, *([watch] if watch else []), *own]

        def listen(event: Event) -> None:
            for listener in told:
                listener(event)

        return listen


def _noting(
    folder: RunFolder,
    parties: Sequence[Prepared],
    log: EventLog,
    started: float,
    before: Mapping[str, Any],
) -> Listener:
    """Tell what the coordinator tells, and write down after each round what was spent so far."""
    listen, recorders = log.listener, [party.site.recorder for party in parties]

    def noting(event: Event) -> None:
        if isinstance(event, RoundStarted):
            now = time.perf_counter() - started
            seconds = spent([log, *recorders], now, before.get("seconds"))
            folder.note_spent(seconds, crossed(recorders, before.get("bytes")))
        if listen is not None:
            listen(event)

    return noting
