"""Every algorithm whose state is more than a model: killed runs resume, and heads stay local."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secure_fl import AdapterSettings, Federation, ModelSettings, ProtectionSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.settings import FedDropout, FetchSGD, HeteroFL
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.probe import Probe
from secure_fl.algorithms.settings import FedAvgM, Scaffold
from secure_fl.testing.hospitals import hosted, silos, small
from tests.support.equality import equal, weights
from tests.support.event_documents import into
from tests.support.fedkd_runs import kd
from tests.support.fedkd_runs import run as fedkd_run
from tests.support.killing import Killed, after, at_event, kill_when
from tests.support.sampling import mostly_slow
from tests.support.token_hospitals import HEAD, corpora, ner

ADAPTER = ModelSettings(layers=1, adapter=AdapterSettings(kind="exact", rank=2))
DEPTHS = {"weak": 1, "medium": 2, "strong": 3}
DEEP = {"weak": 2, "medium": 3, "strong": 4}


def tiered(algorithm: Algorithm, mode: Any, **options: Any) -> Federation:
    parties = [replace(s, tier=t) for s, t in zip(silos(3, 24), DEPTHS, strict=True)]
    protection = ProtectionSettings(mode=mode, bits=16, min_cohort=1)
    given = {"silos": parties, "model": ModelSettings(), "protection": protection} | options
    return small(algorithm, mode, **given)


few = partial(small, silos=silos(size=16))
adapters = partial(few, model=ADAPTER)
lora = partial(few, model=ModelSettings(layers=2, adapter=AdapterSettings(rank=2)))


def own_layers(algorithm: Algorithm, mode: Any, **options: Any) -> Federation:
    places = ("weak", "weak", "medium", "strong")
    parties = [replace(s, tier=t) for s, t in zip(silos(4, 16), places, strict=True)]
    return small(algorithm, mode, **{"silos": parties, "model": ModelSettings()} | options)


MIXED = InclusiveFL(rounds=2, tiers=DEPTHS, momentum="mixed")
RUNS: dict[str, tuple[Callable[..., Federation], Algorithm, Any]] = {
    "exact adapters": (adapters, FedAvg(rounds=2), "he+secagg"),
    "fedkd joint": (fedkd_run, kd(max_rank=8), "he+secagg"),
    "fedkd per party": (fedkd_run, kd(max_rank=8, factors="per_party"), "none"),
    "fedkd gradient": (fedkd_run, kd(max_rank=8, exchange="gradient", steps=2), "none"),
    "fedkd shared": (lora, kd(teachers="shared"), "he+secagg"),
    "fedkd personal": (lora, kd(teachers="personal"), "none"),
    "fedid": (hosted, FedID(rounds=2, feedback="scalar", batches_per_exchange=1), "he+secagg"),
    "sealed mixing": (tiered, MIXED, "he+secagg"),
    "tier sums": (tiered, MIXED.model_copy(update={"server_optimizer": "fedadam"}), "he+secagg"),
    "own layers": (own_layers, InclusiveFL(rounds=2, tiers=DEEP), "he+secagg"),
    "heterofl": (few, HeteroFL(rounds=2, mix="wide"), "he+secagg"),
    "feddropout": (few, FedDropout(rounds=2), "he+secagg"),
    "probe": (few, Probe(fit="logistic", rounds=4), "he+secagg"),
    "fetchsgd": (few, FetchSGD(rounds=4, k=0.05), "he+secagg"),
    "scaffold": (few, Scaffold(rounds=4, average=0.5), "he+secagg"),
    "fedavgm": (few, FedAvgM(rounds=4, proximal=0.1), "secagg"),
}


@pytest.mark.parametrize("name", mostly_slow(RUNS, *(RUNS.keys() - {"sealed mixing"})))
def test_a_killed_run_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Killed at 60 % of all events, and once more a quarter of them later."""
    make, algorithm, mode = RUNS[name]
    events: list[dict[str, Any]] = []
    complete = make(algorithm, mode, listener=into(events)).run()
    for share in (0.6, 0.25):
        stop = kill_when(at_event(int(share * len(events))))
        with pytest.raises(Killed):
            make(algorithm, mode, folder=tmp_path, listener=stop, resume=share < 0.5).run()
    resumed = make(algorithm, mode, folder=tmp_path, resume=True).run()
    assert complete.models.keys() == resumed.models.keys()
    for model in complete.models:
        assert equal(weights(complete, model), weights(resumed, model)), model
    assert complete.document["history"] == resumed.document["history"]


@pytest.mark.parametrize("name", ["inclusivefl", "heterofl"])
def test_a_lost_hospital_changes_no_tier_of_a_resumed_run(name: str, tmp_path: Path) -> None:
    """By default, tiers follow the places among the names; hospital-3 would get another model."""
    parties = silos(4, 8)
    algorithm: Algorithm = InclusiveFL(rounds=2, tiers={"weak": 1, "strong": 2})
    if name == "heterofl":
        algorithm = HeteroFL(rounds=2, widths={"weak": 0.5, "strong": 1.0}, mix="wide")
    protection = ProtectionSettings(mode="none", min_cohort=1, threshold=3)
    options: dict[str, Any] = {"protection": protection, "model": ModelSettings(layers=2)}
    options["folder"] = tmp_path
    stop = kill_when(after(1))
    with pytest.raises(Killed):
        small(algorithm, silos=parties, listener=stop, **options).run()
    events: list[dict[str, Any]] = []
    small(algorithm, silos=parties[1:], resume=True, listener=into(events), **options).run()
    assert {e["round"] for e in events if e["event"] == "round_saved"} == {2}


LOCAL_HEADS: list[tuple[Algorithm, str]] = [
    (kd(), "student"),
    (InclusiveFL(rounds=1, tiers=DEPTHS), "model"),
    (HeteroFL(rounds=1, mix="wide"), "model"),
]


@pytest.mark.parametrize(("algorithm", "label"), LOCAL_HEADS, ids=lambda a: getattr(a, "name", a))
def test_heads_of_different_labels_are_not_sent(
    algorithm: Algorithm, label: str, sent: dict[str, set[str]]
) -> None:
    parties = [replace(s, tier=t) for s, t in zip(corpora(), DEPTHS, strict=True)]
    protection = ProtectionSettings(mode="he+secagg", bits=16, min_cohort=1)
    options: dict[str, Any] = {"model": ModelSettings(), "protection": protection}
    result = ner(algorithm, "he+secagg", silos=parties, **options).run()
    assert {f"{silo.name}/{label}" for silo in parties} <= set(result.models)
    assert len({tuple(task.labels) for task in result.tasks.values()}) == 3
    names = {n for names in sent.values() for n in names}
    assert len(names) > 5 and not any(head in name for name in names for head in HEAD)
