"""Algorithms of other packages, by entry points; and of a program, which passes its own class."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from click.testing import CliRunner

from secure_fl import FedAvg
from secure_fl.algorithms.base import Algorithm, Demands, Entry
from secure_fl.algorithms.fedavg import fedavg
from secure_fl.algorithms.registry import ALGORITHMS, BUILT_IN, GROUP, Registry
from secure_fl.cli.main import main
from secure_fl.config import load as config
from secure_fl.errors import SettingsError
from secure_fl.events import ExtensionEvent
from secure_fl.federation.federation import Federation
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.pilot.plan import read_plan, write_plan
from secure_fl.policy.rules import PolicyRefusal, check
from secure_fl.settings import ModelSettings, Positive, TrainingSettings
from secure_fl.testing.hospitals import small
from tests.support.event_documents import into
from tests.support.policy_plans import COMPANY, TODAY, plan, policy
from tests.support.raising import raises

MODULE = '''
from typing import Literal

from secure_fl.algorithms.base import Entry
from secure_fl.algorithms.fedavg import FedAvg, fedavg


class Mine(FedAvg):
    """As FedAvg, from another package."""

    name: Literal["mine"] = "mine"
    patience: int = 3
    """a field of its own"""


ENTRY = Entry(Mine, fedavg, dp_covers_all=True, summary="as FedAvg, from another package")
OTHER = 5
'''
FILE = """
[data]
corpus = "ade"
size = 12
[task]
max_length = 16
[model]
layers = 1
[training]
device = "cpu"
[protection]
bits = 16
[algorithm]
name = "mine"
rounds = 1
patience = 4
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package beside this one, as an installer would: its module and its metadata."""

    def installed(package: str = "faraway", **points: str) -> Path:
        place = tmp_path / "packages"
        metadata = place / f"{package}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (place / f"{package}.py").write_text(MODULE)
        about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        (metadata / "METADATA").write_text(about)
        rows = [f"{name} = {where}" for name, where in points.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *rows, ""]))
        monkeypatch.syspath_prepend(str(place))
        vars(ALGORITHMS).pop("plugins", None)  # as in a process that begins now
        return place

    yield installed
    sys.modules.pop("faraway", None)
    vars(ALGORITHMS).pop("plugins", None)
    ALGORITHMS.data.pop("mine", None)


def test_an_entry_point_is_an_algorithm_that_is_imported_on_use(install: Install) -> None:
    install(mine="faraway:ENTRY")
    assert {*ALGORITHMS} == {*BUILT_IN, "mine"} and len(ALGORITHMS) == len(BUILT_IN) + 1
    assert "mine" in ALGORITHMS and "faraway" not in sys.modules
    assert ALGORITHMS["mine"].summary == "as FedAvg, from another package"
    assert "faraway" in sys.modules


def test_settings_files_and_commands_know_it(install: Install, tmp_path: Path) -> None:
    install(mine="faraway:ENTRY")
    settings = config.loads(FILE)
    assert config.loads(config.dump(settings)) == settings
    made = Federation.of(settings)
    assert made.run().document["algorithm_settings"]["patience"] == 4
    shown = CliRunner().invoke(main, ["settings", "mine"])
    assert "a field of its own" in shown.output
    assert "algorithm, mine" in CliRunner().invoke(main, ["settings"]).output
    done = CliRunner().invoke(main, ["init", str(tmp_path), "--algorithm", "mine"])
    assert done.exit_code == 0, done.output
    written = config.load(tmp_path / "federation.toml")
    assert written.algorithm.model_dump()["patience"] == 3


def test_a_site_runs_it_only_if_it_is_installed_there_and_named(install: Install) -> None:
    install(mine="faraway:ENTRY")
    asked = plan().model_copy(update={"algorithm": ALGORITHMS["mine"].settings(name="mine")})
    text = write_plan(asked)
    with raises(PolicyRefusal, "site.algorithms"):
        check(policy(), read_plan(text), COMPANY, today=TODAY)
    check(policy(algorithms=("mine",)), read_plan(text), COMPANY, today=TODAY)
    vars(ALGORITHMS)["plugins"] = {}  # at a site without the package
    ALGORITHMS.data.pop("mine")
    with raises(SettingsError, "'mine'"):
        read_plan(text)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ({"fedavg": "faraway:ENTRY"}, "'fedavg'"),
        ({"mine": "faraway:NOTHING"}, "AttributeError"),
        ({"mine": "nowhere:ENTRY"}, "ModuleNotFoundError"),
        ({"mine": "faraway:OTHER"}, "type int"),
        ({"yours": "faraway:ENTRY"}, "called 'mine'"),
    ],
)
def test_a_faulty_entry_point_is_explained(
    install: Install, points: dict[str, str], words: str
) -> None:
    install(**points)
    with raises(SettingsError, words, "faraway"):
        Registry(BUILT_IN)[next(iter(points))]


def test_two_packages_cannot_share_a_name(install: Install) -> None:
    install(mine="faraway:ENTRY")
    install("nearby", mine="nearby:ENTRY")
    with raises(SettingsError, "'mine'"):
        list(Registry(BUILT_IN))


class HalvesRun(ExtensionEvent, frozen=True, tag="halves"):
    times: int


class Halves(FedAvg):
    """Handed to a `Federation`, and in no registry."""

    name: Literal["halves"] = "halves"  # type: ignore[assignment]
    times: Positive = 1

    @classmethod
    def entry(cls) -> Entry:
        return Entry(cls, halves)


async def halves(cohort: Cohort, site: Site, cfg: Halves) -> None:
    site.recorder.event(HalvesRun(times=cfg.times))
    await fedavg(cohort, site, cfg)


class Lost(FedAvg):
    """In no registry, and without an entry."""

    name: Literal["lost"] = "lost"  # type: ignore[assignment]


class Taken(Halves):
    """It calls itself what another algorithm is called."""

    name: Literal["fedadam"] = "fedadam"  # type: ignore[assignment]


def test_a_program_passes_its_own_class(tmp_path: Path) -> None:
    events: list[Any] = []
    found = small(Halves(rounds=2, times=7), "he+secagg", listener=into(events), folder=tmp_path)
    mine, usual = found.run(), small(FedAvg(rounds=2), "he+secagg").run()
    assert [event["times"] for event in events if event["event"] == "halves"] == [7, 7, 7]
    assert mine.document["algorithm"] == "halves"
    assert mine.document["protection"]["mode"] == "he+secagg"
    for name, weight in trainable(usual.models["model"]).items():
        assert torch.equal(weight, trainable(mine.models["model"])[name])
    assert "halves" not in ALGORITHMS


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_program_is_there(name: str) -> None:
    """Programs are named by strings, so that settings load without torch."""
    coroutine = BUILT_IN[name].program(None, None, None)
    assert inspect.iscoroutine(coroutine)
    coroutine.close()


def test_the_registry_loads_no_torch() -> None:
    code = "import sys, secure_fl.algorithms.registry; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "False"


def test_an_unregistered_class_is_explained() -> None:
    with raises(SettingsError, "Lost is not registered", "Lost.entry()", GROUP):
        small(Lost())
    with raises(SettingsError, "'fedadam'"):
        small(Taken())


# --- every algorithm says what it asks of a site, whatever its fields are called ----------------


MANY = 10**9
VALUES = 10**6  # of a model
MODEL, TRAINING = ModelSettings(), TrainingSettings()

# Whole numbers that a site's limits need not know, and why.
JUDGED_OTHERWISE = {
    "fedkd.max_rank": "an upper bound: factors are never larger than the matrices they stand for",
    "fedkd.student_rank": "of adapters, if the model has any: `trains` has the student",
    "fedid.batches_per_exchange": "predictions that travel together; records are still read by "
    "the batch",
    "fetchsgd.k": "how many of the model's own weights move",
    "probe.components": "directions of public texts: features are not more than they were",
    "statistics.min_patients": "hides more counts; a site's own rule has the minimum",
    "statistics.records_per_patient": "a site's [site.statistics] limits it",
    "heterofl.tiers": "depths whose size a narrower model equals; the whole model is demanded",
}


REQUIRED: dict[str, dict[str, Any]] = {  # fields without a default
    "statistics": {"variables": {"a": {"values": ("x",)}}, "tables": {"a": ("a",)}}
}
LARGE: dict[str, Any] = {"tiers": {"strong": MANY}, "values": {"a": (MANY,)}}
SWITCHED: dict[str, dict[str, Any]] = {  # what a field needs
    "student_epochs": {"student_layers": 1},
    "fedkd.steps": {"exchange": "gradient"},
    "fedkd.student_rank": {"teachers": "shared"},
    "fedid.feedback_batch": {"feedback": "scalar"},
}


def whole_numbers(kind: Any) -> bool:
    """Return True if values of this type are whole numbers, or can contain some."""
    inner = [part for part in get_args(kind) if isinstance(part, type) or get_args(part)]
    return kind is int or any(map(whole_numbers, inner))


def enlarging() -> Iterator[tuple[str, str]]:
    for name, entry in ALGORITHMS.items():
        for field, info in entry.settings.model_fields.items():
            if field != "alone" and whole_numbers(info.annotation):  # that asks for less
                yield name, field


def enlarged(name: str, field: str) -> Algorithm:
    """The defaults, but for one field that asks for much more."""
    kind: Any = ALGORITHMS[name].settings
    steps = {"fit": "logistic"} if (name, field) == ("probe", "rounds") else {}  # a ridge has one
    changed = {field: LARGE.get(field, MANY)}
    made: Algorithm = kind(**steps, **needed(name, field), **changed)
    return made


def plainly(name: str, field: str) -> Algorithm:
    """The defaults, what has none, and what switches this field on."""
    return ALGORITHMS[name].settings(name=name, **needed(name, field))


def needed(name: str, field: str) -> dict[str, Any]:
    switched = SWITCHED.get(f"{name}.{field}") or SWITCHED.get(field, {})
    return REQUIRED.get(name, {}) | switched


def asked(algorithm: Algorithm) -> tuple[object, ...]:
    return algorithm.demands(TRAINING, VALUES), algorithm.trains(MODEL)


@pytest.mark.parametrize(("name", "field"), list(enlarging()))
def test_a_whole_number_that_asks_for_more_is_demanded(name: str, field: str) -> None:
    found = asked(enlarged(name, field)) != asked(plainly(name, field))
    assert found != (f"{name}.{field}" in JUDGED_OTHERWISE)


def test_the_fields_that_are_judged_otherwise_are_there() -> None:
    assert set(JUDGED_OTHERWISE) <= {f"{name}.{field}" for name, field in enlarging()}
    assert {"fedavg.rounds", "fedkd.steps", "fetchsgd.rows", "inclusivefl.tiers"} <= {
        f"{name}.{field}" for name, field in enlarging()
    }


@pytest.mark.parametrize("name", [n for n, e in ALGORITHMS.items() if not e.trains_nothing])
def test_a_batch_of_training_records_is_in_memory(name: str) -> None:
    algorithm = ALGORITHMS[name].settings(name=name)
    assert algorithm.demands(TrainingSettings(batch_size=4096), 0).batch >= 4096


class Silent(Algorithm):
    """It would compute for ever, and does not say so."""

    name: Literal["silent"] = "silent"
    local_iterations: Positive = MANY

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        return (model,)


async def nothing(*_: object) -> None: ...


def test_who_does_not_say_what_it_asks_for_is_no_algorithm() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?demands"):
        Silent()  # type: ignore[abstract]
    with raises(SettingsError, "Silent", "demands"):
        Entry(Silent, nothing)  # type: ignore[type-abstract]
    with pytest.raises(TypeError, match="drawn"):
        Demands(exchanges=1, passes=1, steps=0, batch=1, cells=0)  # type: ignore[call-arg]


class Long(FedAvg):
    """A field of a name that no rule knows, but demanded."""

    local_iterations: Positive = 1

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        return replace(Demands.of_fit(self, training), steps=self.local_iterations)


def test_a_limit_holds_whatever_a_field_is_called() -> None:
    def of(iterations: int) -> Any:
        algorithm = Long(rounds=1, local_iterations=iterations)
        return plan().model_copy(update={"algorithm": algorithm})

    check(policy(), of(100), COMPANY, today=TODAY)
    with raises(PolicyRefusal, "site.max_steps", "101", party="north"):
        check(policy(), of(101), COMPANY, today=TODAY)
