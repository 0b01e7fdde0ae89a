"""Flower's client apps and strategies over sealed sums, with real messages of Flower."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.carried_pilot import NAMES, CarriedPilot, carried_pilot, carried_plan

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedYogi, Krum

from secure_fl.errors import Disagreement, PartyFailed, SettingsError
from secure_fl.integrations import flower
from secure_fl.integrations.flower import SealedStrategy, sealed_mod
from secure_fl.integrations.site_messages import Answer, Failure, Turn, Who, encode, read_reply
from secure_fl.pilot.plan import write_plan
from tests.support.flower_grid import LocalGrid
from tests.support.raising import raises

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
VALUES = {"0": (20,), "1": (1,), "train_loss": ()}
ROUNDS = 3
GRID = 1e-3


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ClientApp, ClientApp, Any]]:
    """The example's client, the same without our mod, and its module of records."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from sealed_app import client_app, task

    plain = ClientApp()
    plain.train()(client_app.train)
    yield client_app.app, plain, task
    for name in [name for name in sys.modules if name.startswith("sealed_app")]:
        del sys.modules[name]


@pytest.fixture
def pilot(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CarriedPilot]:
    """Running sites; the parameter says whether means are opened to the coordinator."""
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "{site}" / "site.sock"))
    plan = carried_plan(ROUNDS, opened=getattr(request, "param", False), **VALUES)
    with carried_pilot(tmp_path, plan) as made:
        monkeypatch.setenv("SECURE_FL_COORDINATOR", str(made.hub))
        yield made


opened = pytest.mark.parametrize("pilot", [True], indirect=True)


def start(strategy: Any, app: ClientApp, task: Any, **grid: Any) -> tuple[Any, LocalGrid]:
    place = LocalGrid(app, NAMES, **grid)
    arrays = ArrayRecord(task.initial_model())
    return strategy.start(grid=place, initial_arrays=arrays, num_rounds=ROUNDS), place


def all_of(**more: Any) -> dict[str, Any]:
    return {"min_available_nodes": 3, "min_train_nodes": 3, "fraction_evaluate": 0.0, **more}


def off(one: Mapping[str, Any], record: ArrayRecord) -> float:
    return max(float(np.abs(one[name] - record[name].numpy()).max()) for name in record)


def test_only_sites_get_the_averaged_model(pilot: CarriedPilot, apps: Any, tmp_path: Path) -> None:
    sealed, plain, task = apps
    expected, _ = start(FedAvg(**all_of()), plain, task)
    result, grid = start(SealedStrategy(FedAvg(**all_of())), sealed, task)
    assert pilot.ended(), pilot.errors
    for name in NAMES:
        found = load_file(tmp_path / name / "runs" / "run" / "model.safetensors")
        assert off(found, expected.arrays) < GRID
    assert not result.arrays and not result.train_metrics_clientapp
    for at, message in grid.seen:  # nothing but sealed bytes comes from a site
        if at.startswith("from"):
            assert list(message.content) == ["secure_fl"]
            assert not message.content.array_records and not message.content.metric_records


@opened
@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedYogi])
def test_strategies_that_need_only_the_mean_give_what_they_give_in_plain_flower(
    pilot: CarriedPilot, apps: Any, kind: type[Any]
) -> None:
    sealed, plain, task = apps
    expected, _ = start(kind(**all_of()), plain, task)
    result, _ = start(SealedStrategy(kind(**all_of())), sealed, task)
    assert pilot.ended(), pilot.errors
    found = {name: result.arrays[name].numpy() for name in result.arrays}
    assert off(found, expected.arrays) < GRID
    metrics = result.train_metrics_clientapp[ROUNDS]
    assert (
        abs(metrics["train_loss"] - expected.train_metrics_clientapp[ROUNDS]["train_loss"]) < GRID
    )


@pytest.mark.parametrize("states", [1, 3])
def test_a_round_that_one_site_states_changes_no_step_of_the_server(states: int) -> None:
    """The strategy configures the training of that site, and then gets the mean of the others."""
    found = []
    for rounds in ([1, 2], [1, 2, states]):
        grid, given = LocalGrid(ClientApp(), NAMES), ArrayRecord({"w": Array(np.zeros(4))})
        server = flower.WrappedRounds(FedAdam(**all_of()), grid, given, None, None)
        for round in rounds:
            assert server.messages(round)
            if round == 1 and not server.result.arrays:
                server.take(1, {"w": np.ones(4)})
        server.take(2, {"w": 2 * np.ones(4)})
        found.append(server.result.arrays["w"].numpy())
    assert np.array_equal(*found) and not np.array_equal(found[0], 2 * np.ones(4))


# --- what the server knows ---------------------------------------------------------------------


def known(grid: LocalGrid, site: str, update: Any) -> float:
    """The best correlation of what a site sent with its update, over readings of the bytes."""
    best = 0.0
    for at, message in grid.seen:
        if at != f"from {site}":
            continue
        for values in _readings(message):
            values, other = values - values.mean(), update - update.mean()
            norm = float(np.linalg.norm(values) * np.linalg.norm(other))
            best = max(best, abs(float(values @ other)) / norm if np.isfinite(norm) and norm else 0)
    return best


def _readings(message: Message) -> Iterator[Any]:
    for record in message.content.array_records.values():
        yield np.concatenate([array.numpy().ravel() for array in record.values()]).astype(float)
    for record in message.content.config_records.values():
        reply = read_reply(record["message"])
        if isinstance(reply, Answer | Turn) and reply.mean is not None:
            yield from (vector.array().astype(float) for vector in reply.mean.vectors.values())
        data = reply.bulk if isinstance(reply, Answer) else b""
        for kind in (np.uint8, np.int16, np.uint32, np.uint64):
            found = np.frombuffer(data[: len(data) // 8 * 8], kind).astype(float)
            for begin in range(0, found.size - WIDE + 1, 97):
                yield found[begin : begin + WIDE]


WIDE = 3000


def wide_app(mods: list[Any]) -> ClientApp:
    """A client whose update is its own, and large enough for a correlation."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(msg: Message, context: Any) -> Message:
        random = np.random.default_rng(int(context.node_config["partition-id"]))
        given = msg.content["arrays"]["w"].numpy()
        arrays = ArrayRecord({"w": Array(given + random.normal(size=WIDE).astype(np.float32))})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

    return app


@pytest.mark.parametrize("means", [False, True])
def test_the_server_finds_an_update_in_plain_flower_and_chance_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, means: bool
) -> None:
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "{site}" / "site.sock"))
    update = np.random.default_rng(0).normal(size=WIDE)
    given = ArrayRecord({"w": Array(np.zeros(WIDE, np.float32))})
    plain, ours = LocalGrid(wide_app([]), NAMES), LocalGrid(wide_app([sealed_mod]), NAMES)
    FedAvg(**all_of()).start(plain, given, num_rounds=1)
    with carried_pilot(tmp_path, carried_plan(1, opened=means, w=(WIDE,))) as pilot:
        SealedStrategy(FedAvg(**all_of()), pilot.hub).start(ours, given, num_rounds=1)
        assert pilot.ended(), pilot.errors
    assert known(plain, "east", update) > 0.99
    seen = known(ours, "east", update)
    third = 1 / np.sqrt(3)  # of a mean over three sites, which everyone may read
    assert (abs(seen - third) < 0.05) if means else seen < 5 / np.sqrt(WIDE)


# --- bad input ---------------------------------------------------------------------------------


def refused(reply: Message) -> Failure:
    assert list(reply.content) == ["secure_fl"]
    found = read_reply(reply.content["secure_fl"]["message"])
    assert isinstance(found, Failure) and not found.what
    return found


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_unsealed_messages_do_not_reach_an_app(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = LocalGrid(ClientApp(), NAMES)
    message = Message(RecordDict({"arrays": ArrayRecord([np.ones(3)])}), 2, kind)
    reply = sealed_mod(message, SimpleNamespace(node_config={}), pytest.fail)
    assert refused(reply).code == "settings" and grid.sites
    assert f"asks for {kind} without a sealed sum; nothing was sent" in capsys.readouterr().err


def test_a_site_that_wired_no_service_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("SECURE_FL_SITE", raising=False)
    LocalGrid(ClientApp(), NAMES)
    content = RecordDict({"secure_fl": ConfigRecord({"message": encode(Who())})})
    for place, text in ((None, "SECURE_FL_SITE is not set"), (tmp_path / "x", "does not answer")):
        if place is not None:
            monkeypatch.setenv("SECURE_FL_SITE", str(place))
        context = SimpleNamespace(node_config={})
        reply = sealed_mod(Message(content, 2, "train"), context, pytest.fail)
        assert refused(reply).code and text in capsys.readouterr().err


@pytest.mark.parametrize("sealed", [False, True])
def test_the_text_of_a_failed_training_stays_at_the_site(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sealed: bool,
) -> None:
    """Flower sends it to the server, and it can quote a record."""
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "{site}" / "site.sock"))
    app = ClientApp(mods=[sealed_mod] if sealed else [])

    @app.train()
    def train(msg: Message, context: Any) -> Message:
        raise ValueError("could not convert string to float: 'Mueller, born 1961'")

    grid, given = LocalGrid(app, NAMES), ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    if sealed:
        with carried_pilot(tmp_path, carried_plan(1, w=(2,))) as pilot:
            with raises(PartyFailed, "training failed at all 3 sites (training)"):
                SealedStrategy(FedAvg(**all_of()), pilot.hub).start(grid, given, num_rounds=1)
    else:
        FedAvg(**all_of()).start(grid, given, num_rounds=1)
    sent = [message for at, message in grid.seen if at.startswith("from")]
    assert any(message.has_error() for message in sent) is not sealed
    assert ("Mueller" in "".join(str(one.error) for one in sent if one.has_error())) is not sealed
    assert "Mueller, born 1961" in capsys.readouterr().err


def test_other_rounds_than_the_plan_has_are_refused(tmp_path: Path, apps: Any) -> None:
    sealed, _, task = apps
    (tmp_path / "plan.toml").write_text((EXAMPLE / "plan.toml").read_text())
    grid, arrays = LocalGrid(sealed, NAMES), ArrayRecord(task.initial_model())
    with raises(SettingsError, "num_rounds is 4", "3 rounds", field="algorithm.rounds"):
        SealedStrategy(FedAvg(), tmp_path).start(grid, arrays, num_rounds=4)
    assert not grid.seen


class Saves(FedAdam):  # type: ignore[misc]
    """A user's own strategy."""

    def aggregate_train(self, *args: Any) -> Any:
        return super().aggregate_train(*args)


@pytest.mark.parametrize(
    ("inner", "opened", "text"),
    [
        (FedMedian(), True, "FedMedian needs the update of each site"),
        (Krum(), False, "Krum needs the update of each site"),
        (Saves(), False, "Saves changes the mean at the server"),
        (FedAvg(weighted_by_key="patients"), True, "weighted by 'patients'"),
    ],
)
def test_other_strategies_are_refused(
    tmp_path: Path, inner: FedAvg, opened: bool, text: str
) -> None:
    (tmp_path / "plan.toml").write_text(write_plan(carried_plan(opened=opened)))
    grid = LocalGrid(ClientApp(), NAMES)
    with raises(SettingsError, text):
        SealedStrategy(inner, tmp_path).start(grid, ArrayRecord(), num_rounds=3)
    assert not grid.seen


@pytest.mark.parametrize("found", ["1.39.1", "1.43.0", "2.0.0"])
def test_an_untested_version_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flower.require_flower()
    monkeypatch.setattr(flower, "version", lambda name: found)
    with raises(SettingsError, f"Flower {found}", "1.40 to 1.42"):
        flower.require_flower()


class Apart(FedAvg):  # type: ignore[misc]
    """A server that sends one site another model."""

    def configure_train(self, *args: Any) -> Any:
        first, *rest = super().configure_train(*args)
        other = [array.numpy() + 1 for array in first.content["arrays"].values()]
        content = RecordDict({**first.content, "arrays": ArrayRecord(other)})
        return [Message(content, first.metadata.dst_node_id, "train"), *rest]


@pytest.mark.parametrize("pilot", [False, True], indirect=True)
def test_unlike_models_at_sites_open_nothing(
    pilot: CarriedPilot, apps: Any, tmp_path: Path
) -> None:
    sealed, _, task = apps
    with raises(Disagreement, "state that must be equal everywhere differs"):
        start(SealedStrategy(Apart(**all_of())), sealed, task)
    assert not list(tmp_path.rglob("model.safetensors"))


class Isolating(FedAvg):  # type: ignore[misc]
    """A server that lets one site train, and gives all others a learning rate of 0."""

    def configure_train(self, *args: Any) -> Any:
        found = super().configure_train(*args)
        for one in found:
            rate = float(one.metadata.dst_node_id == 2)
            one.content = RecordDict({**one.content, "config": ConfigRecord({"lr": rate})})
        return found


@pytest.mark.parametrize("agree", [False, True])
def test_a_server_cannot_isolate_a_site_by_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agree: bool
) -> None:
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "{site}" / "site.sock"))
    if not agree:
        monkeypatch.setattr(flower, "_settings", lambda *_: b"")
    app = ClientApp(mods=[sealed_mod])

    @app.train()
    def train(msg: Message, context: Any) -> Message:
        random = np.random.default_rng(int(context.node_config["partition-id"]))
        change = float(msg.content["config"]["lr"]) * random.normal(size=WIDE)
        arrays = ArrayRecord({"w": Array(change.astype(np.float32))})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

    given, grid = ArrayRecord({"w": Array(np.zeros(WIDE, np.float32))}), LocalGrid(app, NAMES)
    with carried_pilot(tmp_path, carried_plan(1, opened=True, w=(WIDE,))) as pilot:
        strategy = SealedStrategy(Isolating(**all_of()), pilot.hub)
        if agree:
            with raises(Disagreement, "state that must be equal everywhere differs"):
                strategy.start(grid, given, num_rounds=1)
            return
        mean = strategy.start(grid, given, num_rounds=1).arrays["w"].numpy()
    update = np.random.default_rng(0).normal(size=WIDE)
    assert np.corrcoef(mean, update)[0, 1] > 0.99  # east's


def test_a_shape_that_the_plan_does_not_have_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECURE_FL_SITE", str(tmp_path / "{site}" / "site.sock"))
    grid = LocalGrid(wide_app([sealed_mod]), NAMES)
    given = ArrayRecord({"w": Array(np.zeros(WIDE, np.float32))})
    with carried_pilot(tmp_path, carried_plan(1, w=(WIDE + 1,))) as pilot:
        with raises(PartyFailed, "training failed at all 3 sites (settings)"):
            SealedStrategy(FedAvg(**all_of()), pilot.hub).start(grid, given, num_rounds=1)
    assert "w has the shape [3000] instead of [3001]; nothing was sent" in capsys.readouterr().err
