"""Every algorithm ends with the same bits, however its frames travelled.

Three ways for the same plan, seed and records: a federation in one process; a pilot in weather that
a run must not notice; a pilot over FLARE and TLS. Each hospital's files are compared byte for byte,
its result.json in all but `seconds`. Not compared are the files that tell how it went (`TOLD`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secure_fl import Federation
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.config.build import RunSettings
from secure_fl.data.silo import Silo
from secure_fl.display.run_page import PAGE
from secure_fl.engines.flare.cell import FlareParty
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.errors import CohortError
from secure_fl.events import EventLog
from secure_fl.files import OPENED
from secure_fl.learning.tasks import make_task
from secure_fl.pilot.certificates import make_kits
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Frame
from secure_fl.runs.folder import EVENTS, RESULT, SETTINGS, SPENT
from secure_fl.runs.party_checkpoints import TOLD as SIGNED
from secure_fl.runs.result_document import summarise
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import HOST, members, silos
from tests.support.faults import Storm
from tests.support.hubs import free_url
from tests.support.local_pilot import LocalPilot, plan_of
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

# Settings that make models small or tiers known, for whichever algorithm has them.
SMALL = {"student_layers": 1, "tiers": {"weak": 1, "strong": 2}, "columns": 2000}
RANKS = ("weak", "weak", "strong", "strong")  # two are the fewest that a sum is over
UNNOTICED = ("delivered twice", "answered twice", "old frame again")
MEASURED = "seconds"  # of result.json; all else must be equal
# Times, who asked, digests under fresh keys, and a card with the digest of a result.
TOLD = {EVENTS, SETTINGS, SIGNED, "transcript.jsonl", ".lock", "README.md"}
PILOTED = [n for n, e in ALGORITHMS.items() if not (e.pools_data or e.trains_nothing or e.records)]
NAMES = [*(f"hospital-{number}" for number in range(1, len(RANKS) + 1)), HOST]


def smallest(entry: Entry) -> Algorithm:
    """Two rounds, unless the algorithm has only one."""
    fields = entry.settings.model_fields
    given: dict[str, Any] = {name: value for name, value in SMALL.items() if name in fields}
    if "student_epochs" in fields:  # that student needs public texts
        del given["student_layers"]
    return entry.settings(rounds=min(2, fields["rounds"].default), **given)


def people(entry: Entry) -> list[Silo]:
    """A few records each; with a host, or in tiers, where the algorithm has them."""
    if entry.has_host:
        return members(3, size=8, shared=8, labelled=8)
    if "tiers" in entry.settings.model_fields:
        return [replace(s, tier=t) for s, t in zip(silos(4, 8), RANKS, strict=True)]
    return silos(3, 8)


def plan(entry: Entry, seed: int = 0) -> Plan:
    """Under the protection that is the default, but for the size of cohorts."""
    return plan_of(
        smallest(entry),
        training=TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu"),
        model=ModelSettings(layers=2 if "tiers" in entry.settings.model_fields else 1),
        protection=ProtectionSettings(min_cohort=2),
        run=RunSettings(seed=seed),
    )


@dataclass
class Drizzle(Storm):
    """Frames and answers come twice, again much later, and late: after all others, in any order.

    In one process nobody measures time, so a stall below the patience is nothing but an order.
    """

    most: int = 10_000
    chance: float = 0.6
    kinds: tuple[str, ...] = UNNOTICED

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        answers = list(super().exchange(frames, deadline))
        self._rng.shuffle(answers)
        yield from answers


class Line:
    """FLARE over TLS between a hub and whoever may be a member; each town in turn uses it."""

    def __init__(self, stack: ExitStack, kits: Path) -> None:
        made, url = make_kits(kits, NAMES), free_url()
        self.town: LocalPilot | None = None
        self._turn = threading.Lock()  # torch has one random state in a process, hospitals one each
        self._hub = stack.enter_context(FlareHub(url, made.coordinator, NAMES))
        for name in NAMES:
            party = stack.enter_context(FlareParty(name, url, made.sites[name]))
            thread = threading.Thread(target=party.serve, args=(partial(self._step, name),))
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(party.stop)
        assert not self._hub.wait_for(NAMES, 20)

    def _step(self, name: str, frame: Frame) -> Frame:
        with self._turn:
            assert self.town is not None
            return self.town.processes[name].step(frame)

    def connected(self) -> frozenset[str]:
        assert self.town is not None
        return self._hub.connected() & frozenset(self.town.members)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        yield from self._hub.exchange(frames, deadline)

    def carry(self, town: LocalPilot) -> None:
        """Lead a town's run to its end."""
        self.town = town
        recorder = EventLog("coordinator", town.record)
        RunLeader(self, town.coordinator, town.roster, town.plan, recorder).run()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with ExitStack() as stack:
        yield Line(stack, tmp_path_factory.mktemp("kits"))


def alone(folder: Path, entry: Entry, seed: int = 0) -> None:
    """A federation in one process, over the local engine."""
    same = plan(entry, seed)
    Federation(
        people(entry),
        same.algorithm,
        task=same.task,
        model=same.model,
        training=same.training,
        protection=same.protection,
        seed=same.run.seed,
        folder=folder,
    ).run()


def files(run: Path) -> dict[Path, bytes]:
    """Models, checkpoints with random states, and what was noted of each sum."""
    return {
        file.relative_to(run): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name not in TOLD | {RESULT, PAGE, SPENT}
    }


def result(run: Path) -> dict[str, Any]:
    """What a result says but for times."""
    document: dict[str, Any] = json.loads((run / RESULT).read_text())
    assert document.pop(MEASURED)
    return document


def own_part(whole: dict[str, Any], name: str, roster: str) -> dict[str, Any]:
    """What one hospital must find, given the result of all: what is said of itself."""
    recorder = EventLog(name)
    for entry in whole["history"]:
        if entry["party"] == name:
            recorder.history.append({key: entry[key] for key in entry if key != "party"})
    return whole | {
        "parties": [name],
        "metrics": summarise(
            [recorder], whole["main_metric"], reader=make_task(TaskSettings(**whole["task"]))
        ),
        "history": [{"party": name} | entry for entry in recorder.history],
        "bytes": {name: whole["bytes"][name]},
        "convicted": [],  # said where hospitals are apart
        "records": None,  # a hospital does not know the others', and a pilot has a roster
        "roster": roster,
    }


def bits(document: dict[str, Any]) -> str:
    """A text that two documents share only if no bit differs, NaN included."""
    return json.dumps(document, sort_keys=True)


def require_same(run: Path, town: LocalPilot) -> None:
    """Every hospital has its part of the federation's files and results, and together all."""
    assert all(seat.done for seat in town.processes.values()), town.events[-5:]
    whole, expected, found = result(run), files(run), set()
    for name in town.members:
        own = town.folder / name / town.plan.run.name
        part, said = own_part(whole, name, town.roster.fingerprint()), result(own)
        own_models = {name: said[name] for name in ("values", "model_round")}
        assert all(own_models[name] in (None, *range(whole[name] + 1)) for name in own_models)
        assert bits(said) == bits(part | own_models)
        kept = files(own)
        for noted in (town.folder / name / "ledger").rglob("opened/*/*.jsonl"):  # outlives the run
            kept[Path("parties", name, "checkpoints", OPENED)] = noted.read_bytes()
        assert not [file for file, data in kept.items() if data != expected.get(file)], name
        found |= set(kept)
    assert found == set(expected)
    assert {file.suffix for file in found} >= {".safetensors", ".json"}


def town_of(kind: type[LocalPilot], folder: Path, entry: Entry, **options: Any) -> Any:
    return kind(folder, plan(entry), {silo.name: silo for silo in people(entry)}, **options)


@pytest.mark.parametrize("name", mostly_slow(PILOTED, "fedavg", "fedid", "fedkd", "inclusivefl"))
def test_the_engine_changes_no_bit(tmp_path: Path, line: Line, name: str) -> None:
    entry = ALGORITHMS[name]
    alone(tmp_path / "alone", entry)
    rain = town_of(Drizzle, tmp_path / "rain", entry, seed=len(name))
    rain.lead().run()
    assert {fault for _, _, fault in rain.log} == set(UNNOTICED)
    require_same(tmp_path / "alone", rain)
    far = town_of(LocalPilot, tmp_path / "far", entry)
    line.carry(far)
    require_same(tmp_path / "alone", far)


def test_another_seed_is_noticed(tmp_path: Path) -> None:
    """The comparison sees a difference where there is one, in files and in results."""
    entry = ALGORITHMS["fedavg"]
    town = town_of(LocalPilot, tmp_path / "town", entry)
    town.lead().run()
    for seed in (0, 1):
        alone(tmp_path / f"{seed}", entry, seed)
    require_same(tmp_path / "0", town)
    with pytest.raises(AssertionError):
        require_same(tmp_path / "1", town)
    one, other = files(tmp_path / "0"), files(tmp_path / "1")
    weights = Path("model", "model.safetensors")
    assert one.keys() == other.keys() and one[weights] != other[weights]


@pytest.mark.parametrize("name", sorted(n for n, e in ALGORITHMS.items() if e.pools_data))
def test_what_pools_all_records_is_refused_by_every_hospital(tmp_path: Path, name: str) -> None:
    """So it has no parties, and no engine but one process: that is why it is left out above."""
    town = town_of(LocalPilot, tmp_path, ALGORITHMS[name])
    with raises(CohortError, "(settings)", party="hospital-1"):
        town.lead().run()
    assert "one place" in town.seen("refused")[0]["why"]
