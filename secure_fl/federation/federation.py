"""A federation in one process: the hospitals' sessions, the coordinator and the local engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from secure_fl.algorithms.base import Algorithm
from secure_fl.capture.recording import Capture, FolderCapture, NoCapture
from secure_fl.config.build import Settings
from secure_fl.config.load import dump, settings_to_resume, silos
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.machine import Engine
from secure_fl.coordinator.resume import unfinished
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.data.silo import Silo
from secure_fl.display.run_page import PageWriter
from secure_fl.display.watch import watching
from secure_fl.errors import PartyFailed, SecureFLError, nearest
from secure_fl.events import Event, EventLog, Listener, MembershipChanged, RoundStarted
from secure_fl.federation import validation
from secure_fl.federation.assembly import COORDINATOR, connect, make_keys
from secure_fl.federation.outcome import ResultContext, deliver, document_of, export_to
from secure_fl.federation.prepared import Prepared, RunContext, prepare
from secure_fl.federation.result import Result
from secure_fl.federation.run_feature import SiteLimits, finish_run
from secure_fl.federation.run_spec import Model, RunSpec, algorithm_of, model_of, section_of
from secure_fl.learning.scores import Metric
from secure_fl.learning.site_context import BatchedTrainer, ModelCache
from secure_fl.learning.tasks import Task, settings_of
from secure_fl.party.session import LocalEngine, Session
from secure_fl.protocol.messages import Ready
from secure_fl.runs.folder import RunFolder, finished
from secure_fl.runs.result_document import crossed, spent
from secure_fl.settings import ProtectionSettings, Section, TaskSettings, TrainingSettings

MakeEngine = Callable[[Mapping[str, Session]], Engine]


@dataclass(frozen=True, slots=True)
class RunSegment:
    """All rounds of a run, or the end of one round that only some parties began."""

    spec: RunSpec
    parties: Mapping[str, Prepared]
    rules: CoordinatorRules
    until: int | None = None  # the last round, if it is not the algorithm's

    def train(self, engine: MakeEngine, capture: Capture, log: EventLog) -> None:
        """Lead these parties to the end, with new keys and a new run id."""
        mode, names = self.spec.protection.mode, tuple(self.parties)
        keys = make_keys(mode, names, self.rules.host)
        wires = connect(keys)
        capture.begin(mode, self.rules.host, names, wires.run)
        sessions = {
            name: party.join(keys[name], wires.parties[name], until=self.until, capture=capture)
            for name, party in self.parties.items()
        }
        coordinator = lead_run(
            wires.coordinator,
            capture.engine(engine(sessions)),
            self.rules,
            self.spec.protection,
            recorder=log,
        )
        try:
            coordinator.run()
        except SecureFLError as error:
            # In one process the operator may see an error that a hospital keeps in its own log.
            named = error.members if isinstance(error, PartyFailed) else (error.party,)
            for failed in (sessions[name] for name in named if name in sessions):
                if failed.error is not None and not failed.stopped:
                    raise failed.error from failed.error.__cause__
            raise


class FederationOptions(TypedDict, total=False):
    """Options of `Federation` that few programs need; its docstring explains them."""

    sections: Mapping[str, Section]
    metrics: Mapping[str, Metric] | None
    listener: Listener | None
    progress: bool | None
    resume: bool
    keep_checkpoints: bool
    record: bool
    trainer: Callable[[], BatchedTrainer] | None
    limits: Callable[[str], SiteLimits] | None
    settings_text: str | None


class Federation:
    """Hospitals, an algorithm and the rules of their run. `run()` trains.

    Args:
        silos: The hospitals with their records.
        algorithm: Its settings, its class or its name: FedAvg(rounds=8), FedAvg, "fedavg".
        task: The learning task: settings, a dictionary of their fields, or a task of the program's
            own. Default: classification with the labels of the records.
        model: The transformer: a name or folder, a model of transformers with its weights, or
            settings. Default: the built-in one.
        training: Learning rate, batch size, device, DP-SGD and other settings of local training.
        protection: Protection of sums. Default: encryption and masks.
        seed: Seed of all random draws.
        folder: Folder for checkpoints, events and the result. Default: nothing is written.

    Other Args:
        sections (Mapping[str, Section]): Settings of optional features, by section name.
        metrics (Mapping[str, Metric]): Your own metrics by name, in addition to the task's.
        listener (Listener): A function that receives every event.
        progress (bool): Show progress. Default: only on a terminal, and only without a listener.
        resume (bool): Continue the run in the folder after its last checkpoint.
        keep_checkpoints (bool): Keep the checkpoints of a finished run. Default: true.
        record (bool): Record each role's view in the folder, for an audit.
        limits (Callable): Returns the limits of a hospital by its name.
        trainer (Callable): Makes an object that trains many small sites as one batch.
        settings_text (str): Content of the folder's settings file. Default: from the settings.

    """

    def __init__(
        self,
        silos: Sequence[Silo],
        algorithm: Algorithm | type[Algorithm] | str,
        *,
        task: TaskSettings | Task | Mapping[str, Any] | None = None,
        model: Model | None = None,
        training: TrainingSettings | Mapping[str, Any] | None = None,
        protection: ProtectionSettings | Mapping[str, Any] | None = None,
        seed: int = 0,
        folder: Path | str | None = None,
        **options: Unpack[FederationOptions],
    ) -> None:
        """Check that these hospitals can run these settings; nothing is trained yet."""
        given = self._options = _known_options(options)
        validation.require_silos(silos)
        self.spec = RunSpec(
            algorithm_of(algorithm),
            settings_of(task) if isinstance(task, Task) else section_of(TaskSettings, task, "task"),
            model_of(model, self),
            section_of(TrainingSettings, training, "training"),
            section_of(ProtectionSettings, protection, "protection"),
            seed,
            given.get("metrics", {}),
            given.get("sections", {}),
        )
        entry = self.spec.entry
        validation.require_trainable(silos, entry)
        self.hospitals = tuple(sorted(silos, key=lambda s: s.name))
        self.silos = (validation.pooled(self.hospitals),) if entry.pools_data else self.hospitals
        self.folder = None if folder is None else Path(folder)
        self.resume, self.listener = given.get("resume", False), given.get("listener")
        self.until: int | None = None  # the last round, if it is not the algorithm's
        self._settings = given.get("settings_text") or self.spec.describe()
        self.rules = validation.rules_of(self.silos, self.spec.protection, entry)
        own_task = {silo.name: task for silo in self.silos if isinstance(task, Task)}
        self.tasks = own_task or validation.tasks_of(self.spec.task, self.silos, entry)
        self.local_heads = validation.local_heads(self.tasks)
        validation.check_spec(self.spec)
        tiers = {silo.name: silo.tier for silo in self.silos if silo.role != "host"}
        validation.check_members(self.spec, tiers, self.rules)
        validation.require_labels(self.silos, self.tasks)

    @classmethod
    def of_spec(
        cls,
        spec: RunSpec,
        silos: Sequence[Silo],
        folder: Path | str | None = None,
        **options: Unpack[FederationOptions],
    ) -> Federation:
        """Make the federation of a specification."""
        all_options = cast(
            FederationOptions, {"metrics": spec.metrics, "sections": spec.sections, **options}
        )
        return cls(
            silos,
            spec.algorithm,
            task=spec.task,
            model=spec.model,
            training=spec.training,
            protection=spec.protection,
            seed=spec.seed,
            folder=folder,
            **all_options,
        )

    @classmethod
    def of(
        cls,
        settings: Settings,
        folder: Path | None = None,
        *,
        hospitals: Sequence[Silo] | None = None,
        **options: Unpack[FederationOptions],
    ) -> Federation:
        """Make the federation of a settings file; a resumed run must have the same settings.

        `hospitals`: the members with their records, if these are loaded already.
        """
        resumes = options.get("resume", False) and folder is not None
        text = settings_to_resume(settings, folder) if resumes and folder else dump(settings)
        options["settings_text"] = text
        options["record"] = settings.run.record
        options["keep_checkpoints"] = settings.run.keep_checkpoints
        members = silos(settings) if hospitals is None else hospitals
        return cls.of_spec(RunSpec.of(settings), members, folder, **options)

    def run(self, engine: MakeEngine = LocalEngine) -> Result:
        """Train from the first round, or from the last checkpoint, to the end."""
        started = time.perf_counter()
        with ExitStack() as stack:
            folder, capture = self._open(stack)
            if self.resume and folder is not None and finished(folder.path):
                return Result.load(folder.path)
            listen = self._listener(folder, stack)
            before = folder.spent() if folder is not None else {}
            log = EventLog(COORDINATOR, listen)
            known = folder.known() if folder is not None else frozenset[str]()
            segment = self._segment(self.silos, self.rules, self.until, folder, listen)
            parties = list(segment.parties.values())
            spending = RunCosts(log, [party.site.recorder for party in parties], before, started)
            if folder is not None:
                self._report_members(known, log)
                begun = self._unfinished_round(segment, folder, listen)
                if begun is not None:
                    begun.train(engine, capture, log)
                log.listener = spending.noted_in(folder)
            with log.phase("run"):
                segment.train(engine, capture, log)
            return self._finish(parties, folder, spending)

    @property
    def outline(self) -> ResultContext:
        """The facts of its result that no site measures."""
        return ResultContext(
            self.spec,
            self.rules,
            self.tasks,
            tuple(silo.name for silo in self.hospitals),
            len(self.silos) - (self.rules.host is not None),
            self.local_heads,
            whole=True,
        )

    def _open(self, stack: ExitStack) -> tuple[RunFolder | None, Capture]:
        """Open the run's folder, and the recording of each role's view."""
        if self.folder is None:
            return None, NoCapture()
        folder = RunFolder.open(self.folder, self._settings, resume=self.resume)
        stack.push(folder.withdraw)
        stack.callback(folder.close)
        records = self._options.get("record", False)
        capture: Capture = FolderCapture(folder.path, self.hospitals) if records else NoCapture()
        stack.callback(capture.close)
        return folder, capture

    def _segment(
        self,
        silos: Sequence[Silo],
        rules: CoordinatorRules,
        until: int | None,
        folder: RunFolder | None,
        listen: Listener,
    ) -> RunSegment:
        """Prepare these parties."""
        context = RunContext(
            rules,
            self.tasks,
            folder,
            listen,
            local_heads=self.local_heads,
            measured=self.hospitals if self.spec.entry.pools_data else None,
            cache=ModelCache(len(silos)),
            trainer=self._options["trainer"]() if "trainer" in self._options else None,
        )
        limits = self._options.get("limits", lambda name: SiteLimits())
        parties = {
            silo.name: prepare(self.spec, silo, replace(context, limits=limits(silo.name)))
            for silo in silos
        }
        return RunSegment(self.spec, parties, rules, until)

    def _unfinished_round(
        self, segment: RunSegment, folder: RunFolder, listen: Listener
    ) -> RunSegment | None:
        """Prepare the parties that must end a round before the others can join."""
        ready = {
            name: Ready(party.checkpoints.available(), opened=party.checkpoints.opened())
            for name, party in segment.parties.items()
        }
        begun = unfinished(ready, self.rules.host, self.rules.threshold)
        if begun is None:
            return None
        until, names = begun
        silos = tuple(silo for silo in self.silos if silo.name in names)
        rules = validation.rules_of(silos, self.spec.protection, self.spec.entry)
        return self._segment(silos, rules, until, folder, listen)

    def _report_members(self, before: frozenset[str], log: EventLog) -> None:
        """Log the parties that joined or left a resumed run."""
        now = {silo.name for silo in self.silos}
        if before and before != now:
            joined, left = tuple(sorted(now - before)), tuple(sorted(before - now))
            log.event(MembershipChanged(joined=joined, left=left))

    def _finish(
        self, parties: Sequence[Prepared], folder: RunFolder | None, spending: RunCosts
    ) -> Result:
        """Make the result, and write it into the run's folder."""
        sites = [party.site for party in parties]
        bytes_before = spending.before.get("bytes")
        document = document_of(self.outline, parties, spending.seconds(), bytes_before)
        result = deliver(sites, document)
        if folder is not None:
            export_to(folder.path, sites)
            folder.finish(document)
            finish_run(folder.path)
            if self.until is None:  # a part of a run, as audits make, has no page
                PageWriter(folder.path).write()
                if not self._options.get("keep_checkpoints", True):
                    folder.drop_checkpoints()
        return result

    def _listener(self, folder: RunFolder | None, stack: ExitStack) -> Listener:
        """Combine the listeners: the folder, its page, the progress display and the program's."""
        listeners: list[Listener] = []
        if folder is not None:
            listeners.append(folder.record)
            if self.until is None:
                listeners.append(PageWriter(folder.path))
        progress = self._options.get("progress")
        shown = self.listener is None if progress is None else progress
        task = next(iter(self.tasks.values()))
        name, rounds = self.spec.algorithm.name, self.spec.algorithm.rounds
        display = watching(name, rounds, task.metric, shown, task.scored_class)
        if watch := stack.enter_context(display):
            listeners.append(watch)
        if self.listener is not None:
            listeners.append(self.listener)

        def listen(event: Event) -> None:
            for listener in listeners:
                listener(event)

        return listen


class RunCosts:
    """The seconds and bytes of a run, in this session and in earlier ones."""

    def __init__(
        self,
        log: EventLog,
        recorders: Sequence[EventLog],
        before: Mapping[str, Any],
        started: float,
    ) -> None:
        """`log`: the coordinator's. `recorders`: the parties'. `before`: of earlier sessions."""
        self.before = before
        self._log, self._recorders, self._started = log, recorders, started

    def seconds(self) -> dict[str, Any]:
        """Return the seconds spent so far, by phase."""
        total = time.perf_counter() - self._started
        return spent([self._log, *self._recorders], total, self.before.get("seconds"))

    def noted_in(self, folder: RunFolder) -> Listener:
        """Extend the coordinator's listener to write the spending down after each round."""
        listen = self._log.listener

        def noting(event: Event) -> None:
            if isinstance(event, RoundStarted):
                bytes_so_far = crossed(self._recorders, self.before.get("bytes"))
                folder.note_spent(self.seconds(), bytes_so_far)
            if listen is not None:
                listen(event)

        return noting


def _known_options(options: FederationOptions) -> dict[str, Any]:
    """Return the options that are not None; refuse unknown ones."""
    names = list(FederationOptions.__annotations__)
    for name in options:
        if name not in names:
            raise TypeError(f"Federation() has no option {name!r}; {nearest(name, names)}")
    return {name: value for name, value in options.items() if value is not None}
