"""Adapters in federations: products are summed exactly, factors are not; who takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secure_fl import FedAvg, ModelSettings, ProtectionSettings, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.algorithms.settings import FedAdam
from secure_fl.errors import SettingsError
from secure_fl.events import EventLog
from secure_fl.federation.federation import Federation
from secure_fl.learning.anatomy import adapted, trainable
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.party.rounds import Round
from secure_fl.settings import AdapterSettings, DPSettings
from secure_fl.testing.hospitals import hosted, silos, small
from tests.support.raising import raises

RANK, HOSPITALS = 2, 3
FAST = TrainingSettings(learning_rate=2e-2, batch_size=16, device="cpu", max_grad_norm=None)


def with_adapter(kind: Any, layers: int = 1, **fields: Any) -> ModelSettings:
    return ModelSettings(layers=layers, adapter=AdapterSettings(kind=kind, rank=RANK, **fields))


def moves(model: nn.Module) -> dict[str, Tensor]:
    """What adapters add to each layer's weight."""
    with torch.no_grad():
        return {name: layer.get_delta_weight("default") for name, layer in adapted(model).items()}


def dense_mean(federation: Federation, model: ModelSettings) -> dict[str, Tensor]:
    """The mean of the parties' own products, by records, as if one could look at them."""
    total: dict[str, Tensor] = {}
    weight = sum(len(silo.train) for silo in federation.silos)
    for silo in federation.silos:
        terms, task = federation.spec, federation.tasks[silo.name]
        site = Site(
            silo,
            SiteSpec(task, model, terms.training, terms.seed),
            SiteContext(EventLog(silo.name)),
        )
        with site.surroundings():
            trained = site.model()
            site.fit(trained, terms.algorithm.epochs, Round(1, 1))
        for name, move in moves(trained).items():
            total[name] = total.get(name, 0) + len(silo.train) / weight * move
    return total


def error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[n] - e).norm() / e.norm()) for n, e in expected.items())


def run(kind: Any, mode: Any = "none", *, rounds: int = 1, bits: Any = 16, **options: Any) -> Any:
    given: dict[str, Any] = {"model": with_adapter(kind), "training": FAST}
    given["protection"] = ProtectionSettings(mode=mode, bits=bits)
    return small(FedAvg(rounds=rounds, epochs=3), mode, **given | options)


def test_the_sum_of_products_is_exact_and_the_product_of_mean_factors_is_not() -> None:
    expected = dense_mean(run("exact"), with_adapter("exact"))
    exact, factors = run("exact").run().model, run("lora").run().model
    assert error(moves(exact), expected) < 1e-5
    assert error(moves(factors), expected) > 0.1
    ranks = [layer.r["default"] for layer in adapted(exact).values()]
    assert max(ranks) == HOSPITALS * RANK  # a sum may have fewer directions, never more


def test_a_frozen_a_makes_factors_exact_too() -> None:
    expected = dense_mean(run("ffa"), with_adapter("ffa"))
    assert error(moves(run("ffa").run().model), expected) < 1e-5


def test_sealed_products_are_those_in_the_clear() -> None:
    clear = moves(run("exact").run().model)
    assert error(moves(run("exact", "he+secagg", bits=24).run().model), clear) < 1e-3
    assert error(moves(run("exact", "he+secagg", bits=8).run().model), clear) < 0.05


def test_frozen_weights_come_back_and_adapters_hold_all_that_was_learned(tmp_path: Path) -> None:
    result = run("exact", rounds=3, folder=tmp_path).run()
    model, first = result.model, run("exact").run().model
    for name, layer in adapted(model).items():
        before = adapted(first)[name].base_layer.weight
        torch.testing.assert_close(layer.base_layer.weight, before)
    last = result.document["metrics"]["last"]["party"]["hospital-1"]["test"]["loss"]
    silo = silos()[0]
    loaded, tokenizer, task = load_exported(tmp_path / "model")
    found = task.evaluate(loaded, task.encode(silo.test, tokenizer), 64)
    assert found["loss"] == pytest.approx(last, abs=1e-4)


TRAINED: dict[str, Algorithm] = {
    "fedadam": FedAdam(rounds=1),
    "fedkd": FedKD(rounds=1, student_layers=1),
    "fedid": FedID(rounds=1),
    "inclusivefl": InclusiveFL(rounds=1, tiers={"one": 2}),
}


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("name", TRAINED)
def test_algorithms_train_adapters_and_heads_alone(name: str, kind: Any) -> None:
    make = hosted if ALGORITHMS[name].has_host else small
    result = make(TRAINED[name], model=with_adapter(kind, layers=2), training=FAST).run()
    for model in result.models.values():
        assert all(".lora_" in n or n.startswith("classifier") for n in trainable(model))
        learned = [layer.lora_B["default"].weight for layer in adapted(model).values()]
        assert all(bool(B.any()) for B in learned)


def test_dp_trains_adapters_without_magnitudes() -> None:
    dp = DPSettings(epsilon=50.0, noise_multiplier=0.5, accountant="rdp")
    private = FAST.model_copy(update={"dp": dp})
    result = run("exact", training=private).run()
    assert any(bool(move.any()) for move in moves(result.model).values())
    with raises(SettingsError, "dora", field="model.adapter.kind"):
        run("dora", training=private)


def test_what_makes_no_sense_is_refused() -> None:
    for name, kind in (("fetchsgd", "lora"), ("heterofl", "ffa"), ("fedkd", "exact")):
        algorithm = ALGORITHMS[name].settings(name=name, rounds=1)
        with raises(SettingsError, kind, field="model.adapter.kind"):
            small(algorithm, model=with_adapter(kind))
    own = [replace(silo, model=with_adapter("exact")) for silo in silos()]
    with raises(SettingsError, "exact", field="model.adapter.kind"):
        small(FedKD(rounds=1, student_layers=1), silos=own, model=with_adapter("lora")).run()
