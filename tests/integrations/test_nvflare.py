"""The sealed sum in jobs of NVFLARE: real filters, messages, services and coordinator."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.vault import Cost
from secure_fl.errors import CohortError, SettingsError, TrainingError
from secure_fl.policy.plan import Plan
from tests.support.carried_pilot import (
    NAMES,
    START,
    CarriedPilot,
    carried_pilot,
    carried_plan,
    expected,
    moved,
)
from tests.support.raising import raises

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.app_opt.pt.recipes.scaffold import ScaffoldRecipe
from nvflare.fuel.utils import fobs

from secure_fl.integrations.nvflare import (
    SealedAggregator,
    SealedResult,
    SealedSimEnv,
    SealedTask,
    client,
    require_nvflare,
    sealed,
    server,
)
from secure_fl.integrations.nvflare.messages import DATA
from secure_fl.integrations.site_messages import Failure, SiteClient, read_reply
from tests.support.nvflare_job import LocalJob, trained

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"


def train(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
    weight = NAMES.index(name) + 1
    return trained(moved(name, round, arrays), weight, loss=weight)


def differences(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
    """Return differences, as some scripts do."""
    result = train(name, round, arrays)
    result.params = {key: value - arrays[key] for key, value in result.params.items()}
    result.params_type = ParamsType.DIFF
    return result


@contextmanager
def job_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    processes: Sequence[str] = (),
    **options: Any,
) -> Iterator[tuple[CarriedPilot, LocalJob]]:
    """Run the services of the sites, and wire them and the server by their environment."""
    with carried_pilot(folder, plan, processes=processes) as pilot:
        monkeypatch.setenv("SECURE_FL_SITE", f"{folder}/{{name}}/site.sock")
        monkeypatch.setenv("SECURE_FL_COORDINATOR", str(pilot.hub))
        monkeypatch.setattr(client, "PATIENCE", 90.0 if processes else 20.0)
        client._PARTS.clear()
        yield pilot, LocalJob(NAMES, plan, **{"train": train, **options})


@pytest.mark.parametrize(("opened", "trains"), [(False, train), (True, train), (True, differences)])
def test_a_job_gives_the_mean_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool, trains: Any
) -> None:
    with job_of(tmp_path, monkeypatch, carried_plan(opened=opened), train=trains) as (pilot, job):
        model = job.run(START)
        assert pilot.ended(), pilot.errors
    mean = expected(*[NAMES] * 3)
    assert not job.errors and not job.panics
    for key, value in mean.items():
        for name in NAMES:
            found = load_file(tmp_path / name / "runs" / "job" / "model.safetensors")
            assert np.abs(found[key] - value).max() < 1e-3
        assert np.abs(model[key] - (value if opened else START[key])).max() < 1e-3
    losses = [one.metrics["loss"] for one in job.means] if opened else []
    assert np.allclose(losses, np.average([1, 2, 3], weights=[1, 2, 3]), atol=1e-3)


def test_a_server_sees_chance_of_one_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes from a site are correlated with its update, as int16, uint8 and float32."""
    draw = {name: np.random.default_rng(k).normal(size=4096) for k, name in enumerate(NAMES)}
    start = {"w": np.zeros(4096, np.float32)}

    def normal(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
        return trained({"w": (arrays["w"] + draw[name]).astype(np.float32)}, 1.0)

    with job_of(tmp_path, monkeypatch, carried_plan(1, w=(4096,)), train=normal) as (pilot, job):
        job.run(start)
        assert pilot.ended(), pilot.errors
    plain = fobs.dumps(FLModelUtils.to_shareable(normal("east", 1, start)))
    assert correlation(plain, draw["east"]) > 0.99
    for name in NAMES:
        assert correlation(b"".join(job.seen[name]), draw[name]) < 0.12


@pytest.mark.parametrize("opened", [False, True])
def test_other_settings_for_one_site_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """A learning rate of 0 for all other sites would make the mean one site's update."""

    class Isolating(LocalJob):
        def task(self, name: str, *args: Any, **more: Any) -> Any:
            task, context = super().task(name, *args, **more)
            model = FLModelUtils.from_shareable(task)
            model.meta = {"lr": float(name == "east")}
            return FLModelUtils.to_shareable(model), context

    plan = carried_plan(1, opened=opened)
    with job_of(tmp_path, monkeypatch, plan) as (_, job):
        job.__class__ = Isolating
        with raises(CohortError, "must be equal everywhere differs"):
            job.run(START)
    assert not job.means


def correlation(seen: bytes, update: Any) -> float:
    """Return the largest correlation of an update with any run of values in the bytes."""
    found = [0.0]
    spectrum = np.conj(np.fft.rfft(update - update.mean(), 2**20))
    for kind in ("<f4", "<i2", "u1"):
        width = np.dtype(kind).itemsize
        for offset in range(width):
            cut = seen[offset : offset + width * ((len(seen) - offset) // width)]
            with np.errstate(invalid="ignore"):
                values = np.frombuffer(cut, kind).astype(float)
            values = np.clip(np.nan_to_num(values, posinf=0, neginf=0), -1e4, 1e4)
            for begin in range(0, len(values), 2**19):
                part = values[begin : begin + 2**20]
                if len(part) < len(update):
                    continue
                sums = np.cumsum(np.concatenate([[0.0], part]))
                squares = np.cumsum(np.concatenate([[0.0], part**2]))
                n, last = len(update), len(part) - len(update) + 1
                mean = (sums[n:] - sums[:-n]) / n
                spread = np.sqrt(np.maximum((squares[n:] - squares[:-n]) / n - mean**2, 1e-12))
                product = np.fft.irfft(np.fft.rfft(part, 2**20) * spectrum, 2**20)[:last]
                found.append(float(np.abs(product / (n * spread * update.std())).max()))
    return max(found)


def test_nan_at_one_site_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow needs all three results, and gets two."""

    def spoilt(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
        found = train(name, round, arrays)
        if name == "north":
            found.params["0"] = np.full_like(found.params["0"], np.nan)
        return found

    with job_of(tmp_path, monkeypatch, carried_plan(), train=spoilt) as (_, job):
        job.run(START)
    assert job.errors.keys() == {"north"}
    assert "holds NaN or infinity; nothing was sent" in str(job.errors["north"])
    assert not job.means


@pytest.mark.parametrize("spoil", ["name", "metric"])
def test_a_result_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """The coordinator is told at once, and does not wait for values."""

    def spoilt(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
        found = differences(name, round, arrays)
        if name == "north" and spoil == "name":
            found.params["unknown"] = found.params["0"]
        elif name == "north":
            found.metrics["loss"] = "a text"
        return found

    with job_of(tmp_path, monkeypatch, carried_plan(), train=spoilt) as (_, job):
        job.run(START)
        (part,) = (one for (_, name), one in client._PARTS.items() if name == "north")
    assert job.errors.keys() == {"north"} and part._error is job.errors["north"]
    assert isinstance(part._error, TrainingError) and "nothing was sent" in str(part._error)
    assert not job.means


def test_a_site_without_a_step_weighs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def idle(name: str, round: int, arrays: Mapping[str, Any]) -> FLModel:
        weight = 0 if name == NAMES[0] else 2
        return trained(moved(name, round, arrays), weight, loss=NAMES.index(name))

    with job_of(tmp_path, monkeypatch, carried_plan(1, opened=True), train=idle) as (pilot, job):
        job.run(START)
        assert pilot.ended(), pilot.errors
    assert job.means[0].metrics["loss"] == pytest.approx(1.5, abs=1e-3)


def test_a_repeated_round_gets_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service of a site is killed after its values were given, and started again."""
    with job_of(tmp_path, monkeypatch, carried_plan(), processes=["north"]) as (pilot, job):
        sent = client.SealedPart.give

        def give(part: Any, result: Any) -> Any:
            found = sent(part, result)
            if part._given.round == 2 and part._site._path == pilot.socket("north"):
                pilot.kill("north")
                pilot.start("north")
            return found

        monkeypatch.setattr(client.SealedPart, "give", give)
        job.run(START)
        assert pilot.ended(), (pilot.errors, pilot.log("north"))
    assert not job.errors and not job.panics
    for key, value in expected(*[NAMES] * 3).items():
        found = load_file(tmp_path / "north" / "runs" / "job" / "model.safetensors")
        assert np.abs(found[key] - value).max() < 1e-3


def test_other_tasks_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with job_of(tmp_path, monkeypatch, carried_plan()) as (_, job):
        task, context = job.task("east", 1, START, "submit_model")
        with pytest.raises(SettingsError, match="'submit_model' without a sealed sum"):
            SealedTask().process(task, context)
        assert isinstance(client.part_of(context)._error, SettingsError)  # the coordinator gets it
        with pytest.raises(CohortError, match="EXECUTION_EXCEPTION"):
            SealedResult().process(make_reply(ReturnCode.EXECUTION_EXCEPTION), context)
        with pytest.raises(SettingsError, match="no arrays that are due"):
            SealedResult().process(FLModelUtils.to_shareable(train("east", 1, START)), context)


def test_a_bad_request_is_answered_and_ends_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_of(tmp_path, monkeypatch, carried_plan()) as (_, job):
        _, context = job.task("east", 1, START)
        part = client.part_of(context)
        reply = part._handle("", make_reply(ReturnCode.OK), context)
        with pytest.raises(TrainingError, match="a request of the coordinator cannot be read"):
            part._wait(context)
    assert read_reply(reply[DATA]) == Failure(TrainingError("").code)


def test_a_service_that_hangs_does_not_block_the_coordinators_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CHECK_EVERY", 0.01)
    part = client.SealedPart(None, SiteClient(tmp_path / "site.sock"))
    with socket.socket(socket.AF_UNIX) as service, ThreadPoolExecutor() as pool:
        service.bind(str(tmp_path / "site.sock"))
        service.listen()
        waiting = pool.submit(part._wait, FLContext())
        asked, _ = service.accept()  # and no answer
        pool.submit(part._fail, CohortError("another fault")).result(10)
        asked.close()
        with pytest.raises(CohortError, match="another fault"):
            waiting.result(10)


def test_without_a_service_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client._PARTS.clear()
    monkeypatch.delenv("SECURE_FL_SITE", raising=False)
    job = LocalJob(NAMES, carried_plan(), train)
    with pytest.raises(SettingsError, match="SECURE_FL_SITE is not set"):
        SealedTask().process(*job.task("east", 1, START))
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "site.sock"))
    with pytest.raises(CohortError, match="service of this site does not answer"):
        SealedTask().process(*job.task("east", 1, START))


def test_other_keys_of_a_server_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another identity than the roster's coordinator."""
    monkeypatch.setattr("secure_fl.pilot.kits.require_coordinator", lambda *_: None)  # it lies
    with job_of(tmp_path, monkeypatch, carried_plan()) as (pilot, job):
        for folder in ("keys", "passphrase"):
            (pilot.hub / folder).rename(pilot.hub / f"old-{folder}")
        ring = KeyRing(pilot.hub / "keys", "words of a passphrase", Cost(log_n=10))
        ring.create(Identity.generate("hub"))
        (pilot.hub / "passphrase").write_text("words of a passphrase")
        (pilot.hub / "passphrase").chmod(0o600)
        job.run(START)
    assert job.errors.keys() == set(NAMES)
    for error in job.errors.values():
        assert "signature" in str(error)
    assert not job.means


def test_one_site_alone_is_never_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server drops the answers of two sites, so the sum would be of one."""

    def alter(name: str, request: Any, reply: Any) -> Any:
        return reply if name == "east" else make_reply(ReturnCode.TIMEOUT)

    monkeypatch.setattr(server, "GRACE", 1.0)
    with job_of(tmp_path, monkeypatch, carried_plan(), alter=alter) as (_, job):
        job.run(START)
    assert job.errors.keys() == set(NAMES)
    assert "began no round" in str(job.errors["east"])
    assert not job.means


def test_the_mean_of_another_round_is_not_the_model() -> None:
    """The coordinator ended after round 2, for example by an error without a text."""
    job = LocalJob(NAMES, carried_plan(3, opened=True), train)
    folder: Any = SimpleNamespace(algorithm=job.plan.algorithm)
    job.server._folder = folder
    job.server.take(2, START)
    assert job.server.mean(2) is START
    job.server._over = True
    with pytest.raises(CohortError, match="ended without the mean of round 3"):
        job.server.mean(3)


@pytest.mark.parametrize("found", ["2.8.1", "2.10.0", "3.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr("secure_fl.integrations.nvflare.version", lambda name: found)
    with pytest.raises(SettingsError, match=f"NVFLARE {found} is not supported"):
        require_nvflare()


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's model."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return import_module("model").Net()


def recipe(folder: Path, net: Any, **options: Any) -> FedAvgRecipe:
    """Make a FedAvg recipe of a small model."""
    (folder / "train.py").touch()
    given = {"model": net, "name": "study", "min_clients": 3, "num_rounds": 4}
    return FedAvgRecipe(train_script=str(folder / "train.py"), **given | options)


def test_a_sealed_recipe_has_a_plan_and_neither_keys_nor_our_code(tmp_path: Path, net: Any) -> None:
    given = recipe(tmp_path, net)
    found = sealed(given, metrics=["accuracy"], dataset="notes")
    assert found is given
    plan = given._job.sealed
    assert plan.dataset == "notes" and plan.rounds == 4
    assert plan.algorithm.values["hidden.weight"] == (8, 4)
    assert plan.algorithm.values["accuracy"] == ()
    assert not plan.algorithm.means_to_coordinator
    given.export(str(tmp_path / "job"))
    files = {file.name: file.read_text() for file in (tmp_path / "job").rglob("*.*")}
    assert "SealedTask" in files["config_fed_client.json"]
    assert "SealedResult" in files["config_fed_client.json"]
    assert files.keys() >= {"model.py", "train.py"}
    text = "".join(files.values())
    assert not any(word in text for word in ("passphrase", "kit", "SECURE_FL_SITE"))


def test_recipes_that_need_more_than_the_mean_are_refused(tmp_path: Path, net: Any) -> None:
    own = recipe(tmp_path, net, aggregator=SealedAggregator())
    with pytest.raises(SettingsError, match="needs more than the mean"):
        sealed(own)
    scaffold = ScaffoldRecipe(
        name="study", model=net, min_clients=3, num_rounds=4,
        train_script=str(tmp_path / "train.py"),
    )  # fmt: skip
    with pytest.raises(SettingsError, match=r"\(Scaffold\) needs more than the mean"):
        sealed(scaffold)
    with pytest.raises(SettingsError, match="no model whose parameters could be listed"):
        sealed(recipe(tmp_path, {"class_path": "model.Net", "args": {}}))
    with pytest.raises(SettingsError, match="this recipe is not sealed"):
        SealedSimEnv(num_clients=3, workspace_root=str(tmp_path)).deploy(recipe(tmp_path, net)._job)


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("exclude_vars", "bias"),
        ("aggregation_weights", {"site-1": 10.0}),
        ("stop_cond", "accuracy >= 80"),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
def test_options_that_a_sealed_sum_would_ignore_are_refused(
    tmp_path: Path, net: Any, field: str, option: Any, opened: bool
) -> None:
    with raises(SettingsError, f"the recipe has {field}, which would have no effect", field=field):
        sealed(recipe(tmp_path, net, **{field: option}), means_to_server=opened, metrics=["loss"])


def test_a_server_with_the_metric_may_stop_early(tmp_path: Path, net: Any) -> None:
    given = recipe(tmp_path, net, stop_cond="accuracy >= 80", patience=2)
    with raises(SettingsError, "the server does not get 'accuracy'", field="stop_cond"):
        sealed(given, metrics=["accuracy"])
    assert sealed(given, means_to_server=True, metrics=["accuracy"]) is given
