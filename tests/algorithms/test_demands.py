"""Every algorithm says what it asks of a site, whatever its fields are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import pytest

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.errors import SettingsError
from secure_fl.policy.rules import PolicyRefusal, check
from secure_fl.settings import ModelSettings, Positive, TrainingSettings
from tests.support.policy_plans import COMPANY, TODAY, plan, policy
from tests.support.raising import raises

MANY = 10**9
VALUES = 10**6  # of a model
MODEL, TRAINING = ModelSettings(), TrainingSettings()

# Whole numbers that a site's limits need not know, and why.
JUDGED_OTHERWISE = {
    "fedkd.max_rank": "an upper bound: factors are never larger than the matrices they stand for",
    "fedid.batches_per_exchange": "predictions that travel together; records are still read by "
    "the batch",
    "fetchsgd.k": "how many of the model's own weights move",
    "heterofl.tiers": "depths whose size a narrower model equals; the whole model is demanded",
}


def whole_numbers(kind: Any) -> bool:
    """Whether values of this type are whole numbers, or may hold some."""
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
    return kind(**{field: {"strong": MANY} if field == "tiers" else MANY})  # type: ignore[no-any-return]


def asked(algorithm: Algorithm) -> tuple[object, ...]:
    return algorithm.demands(TRAINING, VALUES), algorithm.trains(MODEL)


@pytest.mark.parametrize(("name", "field"), list(enlarging()))
def test_a_whole_number_that_asks_for_more_is_demanded(name: str, field: str) -> None:
    found = asked(enlarged(name, field)) != asked(ALGORITHMS[name].settings(name=name))
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
