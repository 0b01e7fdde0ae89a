"""Every algorithm in bad weather: who takes part, under which plan, and a run led to its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.settings import FedDF, FedDropout, FetchSGD, HeteroFL
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.settings import FedAdam, Scaffold
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError
from secure_fl.policy.plan import Plan
from secure_fl.settings import DPSettings, ModelSettings, ProtectionSettings, TrainingSettings
from secure_fl.testing.hospitals import members, silos
from tests.support.faults import CoordinatorKilled, Storm
from tests.support.local_pilot import plan_of

TIERS = ("weak", "strong")
DEPTHS = {"weak": 1, "strong": 2}
CPU = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
DP = DPSettings(epsilon=1e4, noise_multiplier=0.25, accountant="rdp")  # ε beyond PRV's grid

WAYS: dict[str, tuple[Algorithm, tuple[str, ...]]] = {  # with what is equal at all parties
    "fedavg": (FedAvg(rounds=2), ("model",)),
    "fedavg-dp": (FedAvg(rounds=2), ("model",)),
    "fedadam": (FedAdam(rounds=2), ("model", "server")),
    "fedkd": (FedKD(rounds=2, student_layers=1), ("student", "factors", "student_optimizer")),
    "fedkd-gradient": (
        FedKD(rounds=2, student_layers=1, exchange="gradient", steps=2),
        ("student", "factors", "student_optimizer"),
    ),
    "fetchsgd": (FetchSGD(rounds=2, columns=2000), ("model", "aggregator")),
    "feddropout": (FedDropout(rounds=2), ("model",)),
    "inclusivefl": (InclusiveFL(rounds=2, tiers=DEPTHS), ()),
    "heterofl": (HeteroFL(rounds=2, mix="wide"), ()),
    "fedid": (FedID(rounds=2), ()),
    "feddf": (FedDF(rounds=2), ("model",)),
    "scaffold": (Scaffold(rounds=2, average=0.5), ("model", "variates", "average")),
}
MODES = ("secagg", "he+secagg", "none")


def people(way: str) -> list[Silo]:
    """A few parties of a few records; with a host, or in tiers, where the algorithm needs it."""
    if way in ("fedid", "feddf"):
        return members(4, size=12, shared=8, labelled=8)
    if way in ("inclusivefl", "heterofl"):
        ranks = ("weak", "weak", "weak", "strong", "strong", "strong")
        return [replace(s, tier=t) for s, t in zip(silos(6, 12), ranks, strict=True)]
    return silos(4, 12)


def plan(way: str, mode: Any) -> Plan:
    return plan_of(
        WAYS[way][0],
        training=CPU.model_copy(update={"dp": DP}) if way == "fedavg-dp" else CPU,
        model=ModelSettings(layers=2 if way in ("inclusivefl", "fedkd", "fedkd-gradient") else 1),
        protection=ProtectionSettings(mode=mode, bits=16, min_cohort=2),
    )


def storm(folder: Path, way: str, seed: int, **options: Any) -> Storm:
    mode = options.pop("mode", MODES[seed % len(MODES)])
    who = {silo.name: silo for silo in people(way)}
    return Storm(folder, plan(way, mode), who, seed=seed, **options)


def play(town: Storm, patience: float) -> list[BaseException]:
    """Lead until it ends; an operator brings back who is missing, and starts again."""
    stops: list[BaseException] = []
    while True:
        assert len(stops) < 40, "it never ends"
        try:
            town.lead(patience=patience).run()
            return stops
        except CoordinatorKilled as killed:
            stops.append(killed)
        except CohortError as error:  # anything else is no clear end
            stops.append(error)
            calm = len(town.log) >= town.most and not town.down
            town.everybody()
            if calm and len(stops) > 3:
                return stops
