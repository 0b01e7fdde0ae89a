"""A round of FedKD over FLARE, against the same round in one process.

Three ways take turns, with the same hospitals, records and plan (`engine_processes`), and their
rounds are compared one by one; the first of a run is left out: it makes the models. All must end
with the same bits.

Processes run side by side where cores are free, and that is no merit of an engine. So a round is
also timed with everybody on one core, and the CPU seconds of all processes are added up. What
processes cost without FLARE (caches of their own, switching) is seen behind pipes.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from benchmarks.micro.engine.processes import RUNS, InProcess, Piped, join_flare, ring_of
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.config.build import RunSettings
from secure_fl.crypto.keys.vault import Cost
from secure_fl.errors import RunError
from secure_fl.events import Event, EventLog, RoundStarted
from secure_fl.pilot.coordinator_process import HubEngine, RunLeader
from secure_fl.pilot.kits import load_kit
from secure_fl.policy.rules import Plan
from secure_fl.settings import ModelSettings, TaskSettings
from secure_fl.testing.hospitals import LABELS
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders

IN_PROCESS, PIPES, FLARE = "in process", "processes, pipes", "processes, FLARE"
TASK = TaskSettings(labels=LABELS, max_length=64)


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds by the clock, and of CPU: the coordinator's and all hospitals'."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One way on so many cores: medians of rounds, and of shares of the round in one process."""

    way: str
    cores: int
    rounds: int
    median: Round
    beyond_in_process: Round
    beyond_pipes: Round  # what it takes more than processes behind pipes


@dataclass(frozen=True, slots=True)
class Way:
    """An engine, the processes behind it, and where its hospitals keep their runs."""

    hub: HubEngine
    pids: Collection[int]
    runs: Mapping[str, Path]


def compare(parties: int, records: int, epochs: int, rounds: int, repeats: int) -> list[Row]:
    """All ways in turns: with everybody on one core, then on all cores."""
    algorithm = FedKD(rounds=rounds, epochs=epochs, student_layers=1)
    plan = plan_of(algorithm, model=ModelSettings(layers=2), task=TASK)
    every = sorted(os.sched_getaffinity(0))
    choices = [every[:1], every] if len(every) > 1 else [every]
    return [row for cores in choices for row in _turns(plan, parties, records, repeats, cores)]


def _turns(
    plan: Plan, parties: int, records: int, repeats: int, cores: Sequence[int]
) -> Iterator[Row]:
    with ExitStack() as stack:
        stack.enter_context(_alone_on(cores))  # what is started from here on inherits it
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trial = make_pilot_folders(
            folder / "trial",
            [f"hospital-{number}" for number in range(1, parties + 1)],
            plan,
            port=_free_port(),
            size=records,
            cost=Cost(log_n=10),
        )
        ways = _ways(trial, folder, stack)
        took: dict[str, list[Round]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            run = RunSettings(name=f"turn-{turn}", seed=turn)  # a site repeats no seed
            named = plan.model_copy(update={"run": run})
            for name, way in ways.items():
                found = _rounds(trial, named, way)
                took[name] += found if turn else []  # the first one warms up
            _require_equal(ways, trial, run.name)
    for name, found in took.items():
        yield Row(
            name,
            len(cores),
            len(found),
            _middle(found),
            _middle(_beyond(found, took[IN_PROCESS], took[IN_PROCESS])),
            _middle(_beyond(found, took[PIPES], took[IN_PROCESS])),
        )


def _ways(trial: PilotFolders, folder: Path, stack: ExitStack) -> dict[str, Way]:
    piped = Piped(trial, folder / "piped", stack)
    hub, pids = join_flare(trial, stack)
    return {
        IN_PROCESS: Way(
            InProcess(trial, folder / "here", stack), (), _runs(trial, folder / "here", "")
        ),
        PIPES: Way(piped, piped.pids, _runs(trial, folder / "piped", RUNS)),
        FLARE: Way(hub, pids, _runs(trial, trial.folder, RUNS)),
    }


def _runs(trial: PilotFolders, place: Path, runs: str) -> dict[str, Path]:
    return {name: place / name / runs for name in trial.names}


def _rounds(trial: PilotFolders, plan: Plan, way: Way) -> list[Round]:
    """Lead a run; a round is what lies between two boundaries."""
    marks = list[Round]()

    def hear(event: Event) -> None:
        if isinstance(event, RoundStarted):
            marks.append(Round(time.perf_counter(), _cpu(way.pids)))

    me, roster = ring_of(trial.of(HUB)).identity(), load_kit(trial.of(HUB) / "kit").roster
    RunLeader(way.hub, me, roster, plan, EventLog("coordinator", hear)).run()
    return [
        Round(end.seconds - begin.seconds, end.cpu_seconds - begin.cpu_seconds)
        for begin, end in pairwise(marks[1:])
    ]


def _cpu(pids: Collection[int]) -> float:
    import psutil  # comes with FLARE

    spent = [psutil.Process(pid).cpu_times() for pid in pids]
    return time.process_time() + float(sum(times.user + times.system for times in spent))


def _require_equal(ways: Mapping[str, Way], trial: PilotFolders, run: str) -> None:
    """All ways did the same work: their students have the same bits."""
    for name in trial.names:
        files = [way.runs[name] / run / "student" / "model.safetensors" for way in ways.values()]
        if len({file.read_bytes() for file in files}) > 1:
            raise RunError(
                "another model came out of another engine",
                party=name,
                fix="report it: the same seed gives the same model, whatever carries the frames",
                reason="changed",
            )


def _middle(found: Sequence[Round]) -> Round:
    return Round(median(r.seconds for r in found), median(r.cpu_seconds for r in found))


def _beyond(found: Sequence[Round], other: Sequence[Round], unit: Sequence[Round]) -> list[Round]:
    """What each takes more than the other's, in rounds of the third."""
    return [
        Round((a.seconds - b.seconds) / c.seconds, (a.cpu_seconds - b.cpu_seconds) / c.cpu_seconds)
        for a, b, c in zip(found, other, unit, strict=True)
    ]


@contextmanager
def _alone_on(cores: Collection[int]) -> Iterator[None]:
    """Run this thread, and all that it starts, on these cores; torch takes one thread here."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
