"""FedSGD: one step for each sum, independent of the spread of records, and its noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl import FedSGD, ModelSettings, Silo, TrainingSettings
from secure_fl.algorithms.fedsgd import Adam
from secure_fl.corpora import make
from secure_fl.crypto.privacy.accounting import DpSgdSteps
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.errors import SettingsError
from secure_fl.settings import AdapterSettings, DPSettings, TaskSettings
from secure_fl.testing.hospitals import LABELS, small
from tests.support.raising import raises

TASK = TaskSettings(labels=LABELS, positive="ade", max_length=16)
LORA = ModelSettings(name="tiny", layers=2, pooling="mean", adapter=AdapterSettings(rank=2, last=1))
CPU = TrainingSettings(device="cpu", class_weights="none")
SHARED = DPSettings(epsilon=8.0, noise="shared", dropouts=0)


def run(algorithm: FedSGD, mode: Any, **options: Any) -> Any:
    given = {"training": CPU, "task": TASK, "model": LORA} | options
    return small(algorithm, mode, **given).run()


def weights(result: Any) -> torch.Tensor:
    return torch.cat([w.flatten() for w in result.model.parameters() if w.requires_grad])


def spread(parts: int) -> list[Silo]:
    """The same 60 notes at so many hospitals."""
    records = [e for s in make("ade", parties=3, seed=0, size=20) for e in s.train]
    cuts = np.array_split(np.arange(len(records)), parts)
    return [Silo(f"h{i}", [records[j] for j in cut]) for i, cut in enumerate(cuts)]


def test_the_model_does_not_depend_on_how_records_are_spread() -> None:
    algorithm = FedSGD(rounds=3, sample_rate=1.0)
    models = [weights(run(algorithm, "none", silos=spread(parts))) for parts in (3, 5)]
    torch.testing.assert_close(*models, rtol=1e-3, atol=1e-5)


def test_a_step_is_adam_on_the_mean_gradient() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    theirs = torch.optim.Adam([weight], lr=0.1)
    ours, moved = Adam(), torch.zeros(3, dtype=torch.float64)
    for k in range(4):
        g = torch.tensor([1.0, -2.0, 0.5 * k], dtype=torch.float64)
        weight.grad = g
        theirs.step()
        moved += ours.step(g, 0.1)
    torch.testing.assert_close(moved, weight.detach())


@pytest.mark.parametrize(
    ("field", "value"), [("optimizer", "sgd"), ("weight_decay", 0.1), ("max_grad_norm", 0.5)]
)
def test_settings_that_would_change_no_step_are_refused(field: str, value: Any) -> None:
    with raises(SettingsError, "Adam", value, field=f"training.{field}"):
        FedSGD().check_task(TASK, CPU.model_copy(update={field: value}))
    taught = FedSGD(student_layers=1)  # the student has the optimiser of [training]
    taught.check_task(TASK, CPU.model_copy(update={"weight_decay": 0.1}))


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_steps_with_noise_are_samples_that_the_ledger_knows(noise: Any, tmp_path: Path) -> None:
    dp = SHARED.model_copy(update={"noise": noise})
    training = CPU.model_copy(update={"dp": dp})
    result = run(
        FedSGD(rounds=4, sample_rate=0.5), "secagg", training=training, folder=tmp_path / "run"
    )
    privacy = result.document["privacy"]
    assert privacy["noise"] == noise and privacy["members"] <= 8.0
    assert set(privacy["steps"].values()) == {4} and set(privacy["sample_rate"].values()) == {0.5}
    assert (privacy["model"] < privacy["members"]) == (noise == "shared")
    for ledger in (tmp_path / "run").glob("parties/*/*/ledger.sqlite"):
        events = [row.event for row in load_chain(ledger).entries if row.state == "reserved"]
        assert sum(DpSgdSteps.__name__ in event or '"steps"' in event for event in events) == 4
    assert torch.isfinite(weights(result)).all()


def test_only_the_last_layers_have_adapters() -> None:
    model = run(FedSGD(rounds=1), "none").model
    trained = {name for name, w in model.named_parameters() if w.requires_grad}
    assert all("layer.1." in name or name.startswith("classifier") for name in trained)
    assert any("lora" in name for name in trained)
