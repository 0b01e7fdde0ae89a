"""A pair of models that trains under differential privacy as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.fedkd.algorithm import losses
from secure_fl.algorithms.fedkd.mutual_distillation import make_pair
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.errors import SettingsError
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.dp.training import fit_privately
from secure_fl.settings import DPSettings, ModelSettings, TrainingSettings
from tests.support.fedkd_runs import kd, run
from tests.support.private import make_site, notes, seeded

SLOW = pytest.mark.slow

DP = DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0, accountant="rdp")
PRIVATE = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", dp=DP)


@pytest.mark.parametrize("clipping", ["ghost", pytest.param("per_sample", marks=SLOW)])
def test_a_pair_trains_privately_as_one_module(clipping: Any, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", Identity.generate("north"))
    site = make_site(notes(40), ledger=ledger, clipping=clipping, learning_rate=1e-2)
    site.shared_model_settings = site.model_settings = ModelSettings(layers=2)
    pair = make_pair(site, kd(adaptive="sample"))
    before = {n: w.detach().clone() for n, w in trainable(pair).items()}
    fit_privately(site, pair, 2, objective=losses, generator=seeded())
    assert site.privacy is not None
    assert site.privacy.statement()["steps"] == 2 * 4  # two passes of 40 / 10, not four
    for name, weight in trainable(pair).items():
        assert not torch.equal(weight, before[name])
    assert {name.split(".")[0] for name in before} == {"teacher", "student"}  # one network


def test_a_round_spends_one_pass_for_both_models() -> None:
    result = run(kd(adaptive="sample", epochs=1), "he+secagg", training=PRIVATE).run()
    steps = 2 * 2  # rounds, and steps of a pass over 20 records by 16
    assert set(result.document["privacy"]["steps"].values()) == {steps}


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"adaptive": "batch"}, "touch each other"),
        ({"adaptive": "sample", "exchange": "gradient"}, "passes"),
    ],
)
def test_what_dp_does_not_cover_is_refused(how: dict[str, Any], found: str) -> None:
    with pytest.raises(SettingsError, match=found) as caught:
        run(kd(**how), training=PRIVATE).run()
    assert (
        caught.value.where["field"]
        == f"algorithm.{'exchange' if 'exchange' in how else 'adaptive'}"
    )
