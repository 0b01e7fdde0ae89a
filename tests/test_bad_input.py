"""What users get wrong, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from secure_fl import FedAvg, Local, ProtectionSettings, Silo, TaskSettings, TrainingSettings
from secure_fl.errors import (
    DataError,
    ModelError,
    SettingsError,
    TooFewParties,
    TrainingError,
)
from secure_fl.examples import Example, Text
from secure_fl.settings import ModelSettings, Protection
from tests.hospitals import silos, small


def test_an_empty_training_split() -> None:
    with pytest.raises(DataError, match="party north, field train: the training split is empty"):
        Silo("north", [])


def test_a_label_never_seen_in_training() -> None:
    odd, *others = silos()
    odd = replace(odd, test=(*odd.test, Text("x", "a new thing", label="unheard-of")))
    with pytest.raises(DataError) as caught:
        small(silos=[odd, *others]).run()
    message = str(caught.value)
    assert "hospital-1" in message and "test" in message and "ade, no-ade" in message
    assert "a new thing" not in message  # never record text


def renamed(examples: Sequence[Example]) -> list[Example]:
    names = {"ade": "ade", "no-ade": "nothing"}
    return [replace(e, label=names[str(e.label)]) for e in examples if isinstance(e, Text)]


def test_different_label_sets_where_one_is_needed() -> None:
    odd, *others = silos()
    odd = replace(odd, train=renamed(odd.train), dev=renamed(odd.dev), test=renamed(odd.test))
    with pytest.raises(DataError, match="hospital-1 lacks no-ade; hospital-2 lacks nothing"):
        small(silos=[odd, *others], task=TaskSettings())
    small(Local(rounds=1), silos=[odd, *others], task=TaskSettings()).run()  # heads may differ


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_a_diverging_party_is_named_and_nothing_is_half_applied(mode: Protection) -> None:
    diverging = TrainingSettings(
        learning_rate=1e30, optimizer="sgd", max_grad_norm=None, batch_size=8, device="cpu"
    )
    federation = small(training=diverging, protection=ProtectionSettings(mode=mode))
    with pytest.raises(TrainingError) as caught:
        federation.run()
    assert caught.value.where["party"] == "hospital-1" and caught.value.where["round"] == 1
    assert "learning_rate" in str(caught.value)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        small(model=ModelSettings(name="somebody/no-such-model")).run()


def test_more_layers_than_the_model_has() -> None:
    with pytest.raises(ModelError, match="layers"):
        small(model=ModelSettings(layers=99)).run()


def test_too_few_parties_for_any_sum() -> None:
    with pytest.raises(TooFewParties, match="min_cohort = 3"):
        small(silos=silos(2))
    small(silos=silos(2), protection=ProtectionSettings(mode="none", min_cohort=2))


def test_thresholds_that_protect_nobody() -> None:
    with pytest.raises(SettingsError, match="take 2 to 3"):
        small(protection=ProtectionSettings(threshold=1))
    with pytest.raises(SettingsError, match="take 2 to 3"):
        small(protection=ProtectionSettings(threshold=4))


def test_a_host_where_none_is_needed() -> None:
    one, *others = silos(4)
    with pytest.raises(SettingsError, match="no use for one"):
        small(silos=[replace(one, role="host"), *others])


def test_two_parties_of_one_name() -> None:
    one, *_ = silos()
    with pytest.raises(SettingsError, match="same name"):
        small(silos=[one, one, one])


def test_no_cuda_here() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ModelError, match="no CUDA device"):
        small(FedAvg(), training=TrainingSettings(device="cuda")).run()
