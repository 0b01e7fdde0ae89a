"""FedKD when a run is killed, a hospital joins late, or one leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.testing.harness import LossyEngine
from secure_fl.testing.hospitals import silos
from tests.support.equality import equal, weights
from tests.support.fedkd_runs import NAMES, WAYS, kd, run
from tests.support.killing import Killed, after, kill_when
from tests.support.run_states import kept_state

SLOW = pytest.mark.slow


def stopped_after(round: int, cfg: FedKD, mode: Any, folder: Path, **options: Any) -> None:
    with pytest.raises(Killed):
        run(cfg, mode, folder=folder, listener=kill_when(after(round)), **options).run()


GRADIENT = {"exchange": "gradient", "steps": 2}
HOW: list[Any] = [
    pytest.param({"factors": "joint"}, "he+secagg", id="joint"),
    pytest.param({"factors": "per_party"}, "none", id="per_party", marks=SLOW),
    pytest.param(GRADIENT, "none", id="gradient"),
    *(
        pytest.param({"factors": way} | more, mode, marks=SLOW)
        for way in WAYS
        for more in ({}, GRADIENT)
        for mode in ("none", "he+secagg")
    ),
]


@pytest.mark.parametrize(("how", "mode"), HOW)
def test_resume_is_bit_for_bit(tmp_path: Path, how: dict[str, Any], mode: Any) -> None:
    cfg = kd(rounds=2, max_rank=8, **how)
    whole = run(cfg, mode, folder=tmp_path / "whole").run()
    stopped_after(1, cfg, mode, tmp_path / "again")
    again = run(cfg, mode, folder=tmp_path / "again", resume=True).run()
    for name in ("student", *(f"{name}/model" for name in NAMES)):
        assert equal(weights(whole, name), weights(again, name)), name
    assert whole.document["history"] == again.document["history"]


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ({}, "he+secagg"),
        pytest.param(GRADIENT, "none", marks=SLOW),
        pytest.param(GRADIENT, "he+secagg", marks=SLOW),
    ],
)
def test_who_joins_late_is_given_the_student(
    tmp_path: Path, how: dict[str, Any], mode: Any
) -> None:
    cfg, four = kd(rounds=2, **how), silos(4, size=20)
    late = four[3].name
    stopped_after(1, cfg, mode, tmp_path, silos=four[:3])
    result = run(cfg, mode, folder=tmp_path, silos=four, resume=True).run()
    assert f"{late}/model" in result.models
    states = [kept_state(tmp_path, silo.name, 2) for silo in four]
    for state in states[1:]:
        assert equal(states[0]["student"], state["student"])
        assert {n for n in state["factors"]} == {n for n in states[0]["factors"]}
        for name, subspace in state["factors"].items():
            if name != "count":
                assert torch.equal(subspace["B"], states[0]["factors"][name]["B"])


@pytest.mark.parametrize("exchange", [4, 9, *(pytest.param(e, marks=SLOW) for e in (6, 8, 11, 15))])
def test_who_leaves_is_not_missed(exchange: int) -> None:
    four = silos(4, size=20)

    def losing(sessions: Any) -> LossyEngine:
        return LossyEngine(sessions, lose={four[3].name: exchange})

    result = run(kd(rounds=2), "he+secagg", silos=four).run(losing)
    assert "student" in result.models
    assert all(w.isfinite().all() for w in result.models["student"].parameters())
