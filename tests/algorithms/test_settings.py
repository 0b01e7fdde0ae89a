"""Settings of algorithms without sense are refused, with the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.reference_points import AllSmall
from secure_fl.algorithms.baselines.settings import FetchSGD
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.errors import SettingsError
from secure_fl.settings import TaskSettings, TrainingSettings
from tests.support.raising import raises

REFUSED: list[tuple[type[Algorithm], dict[str, Any], str | None]] = [
    (FedID, {"distill": False, "feedback": "none"}, None),
    (FedID, {"feedback": "exact"}, None),
    (FedID, {"feedback": "exact", "targets": "hard"}, None),
    (FedID, {"feedback": "exact", "fresh_optimizers": True}, None),
    (FedID, {"sample": 0.5}, None),
    (FedID, {"feedback": "some"}, "feedback"),
    (FedID, {"sample": 1.5}, "sample"),
    (FedID, {"host_learning_rate": 0}, "host_learning_rate"),
    (FedKD, {"max_rank": 0}, "max_rank"),
    (FedKD, {"energy_start": 0.0}, "energy_start"),
    (FedKD, {"energy_end": 1.5}, "energy_end"),
    (FedKD, {"energy_start": 0.99, "energy_end": 0.95}, None),
    (FedKD, {"joint_loss": True, "mutual": False}, None),
    (FedKD, {"factors": "shared"}, "factors"),
    (FetchSGD, {"k": 0}, "k"),
    (FetchSGD, {"momentum": 1.0}, "momentum"),
    (FetchSGD, {"columns": 100, "compression": 4.0}, None),
    (FedKD, {"factors": "none", "max_rank": 4}, None),
    (FedKD, {"factors": "none", "energy_end": 0.99}, None),
    (FedKD, {"teachers": "shared", "energy_start": 0.9}, None),
    (InclusiveFL, {"tau": 0.1}, None),
    (AllSmall, {"server_learning_rate": 0.1}, None),
    (InclusiveFL, {"server_optimizer": "fedadam", "linear_rate": 0.5}, None),
    (InclusiveFL, {"tiers": {"weak": 2, "strong": 2}}, "tiers"),
    (InclusiveFL, {"tiers": {}}, "tiers"),
    (InclusiveFL, {"tiers": {"weak": 0}}, "tiers"),
    (InclusiveFL, {"shares": {"weak": 1, "huge": 2}}, None),
    (InclusiveFL, {"server_optimizer": "linear", "weights": "samples"}, None),
    (InclusiveFL, {"sample": 0.5, "server_optimizer": "fedadam", "weights": "samples"}, None),
]


@pytest.mark.parametrize(("algorithm", "fields", "field"), REFUSED)
def test_settings_without_sense_are_refused(
    algorithm: type[Algorithm], fields: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(SettingsError) as caught:
        algorithm(**fields)
    assert caught.value.where.get("field") == field


def test_a_weight_of_momentum_without_momentum_is_refused() -> None:
    """AdamW's updates carry no momentum, so the default has none with it."""
    adamw, sgd = TrainingSettings(), TrainingSettings(optimizer="sgd")
    with raises(SettingsError, "adamw", field="algorithm.beta"):
        InclusiveFL(beta=0.2).check_task(TaskSettings(), adamw)
    with raises(SettingsError, "off", field="algorithm.beta"):
        InclusiveFL(beta=0.2, momentum="off").check_task(TaskSettings(), sgd)
    InclusiveFL(beta=0.2).check_task(TaskSettings(), sgd)
    InclusiveFL(beta=0.2, momentum="unmixed").check_task(TaskSettings(), adamw)
    InclusiveFL().check_task(TaskSettings(), adamw)
