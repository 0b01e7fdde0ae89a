"""Differential privacy with local and shared noise: probes, and adapters of the whole encoder.

Settings were chosen on seed 100. Probes have none to choose; adapters have the rate of the steps,
which is not chosen yet (1e-2 is that of a spike).
Training records are drawn as they are, so a fifth of ade_cls's is positive. Nothing is tuned on
private records. With shared noise one colluder and no dropout is planned for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.claims import Arm, Claim, Figure
from benchmarks.evidence.tables.base import Section, Table

Plain = Mapping[str, Any]

GROUPS = {"4 hospitals of 600 records": 4, "10 hospitals of 600 records": 10}
TEXTS = {"sst2": "imdb/train10k", "ade_cls": "ncbi_disease/train"}  # public, for the probe's PCA
PUBLIC, RECORDS = 600, 600
LENGTHS = {"ade_cls": 64, "sst2": 64}
TESTED = {"ade_cls": 1000, "sst2": None}
PROBE = {"name": "probe", "fit": "logistic"}
CLEAR, SHARED, LOCAL = "Probe, no DP", "Probe, shared noise", "Probe, local noise"
LORA_SHARED, LORA_LOCAL = "LoRA, shared noise", "LoRA, local noise"
ADAPTER = {"pooling": "mean", "adapter": {"kind": "lora", "rank": 4, "last": 2}}
STEPS = {"name": "fedsgd", "rounds": 60, "sample_rate": 0.1}
TODAY = {"name": "fedavg", "rounds": 3, "epochs": 2}
EPSILONS = (8.0, 3.0, 1.0)


def cells(seed: int) -> Iterator[Cell]:
    """Yield all methods on both sets."""
    for group, parties in GROUPS.items():
        for data in TEXTS:
            yield from _probes(group, parties, data, seed)
            if parties == 4 and seed < 3:
                yield from _adapters(group, parties, data, seed)


def _probes(group: str, parties: int, data: str, seed: int) -> Iterator[Cell]:
    yield _cell(group, parties, data, CLEAR, seed, PROBE, {})
    for ε in EPSILONS:
        yield _cell(group, parties, data, named(SHARED, ε), seed, PROBE, shared(ε))
    yield _cell(group, parties, data, named(LOCAL, 8.0), seed, PROBE, local(8.0))


def _adapters(group: str, parties: int, data: str, seed: int) -> Iterator[Cell]:
    for ε in EPSILONS[:2]:
        training = {**shared(ε), "learning_rate": 1e-2}
        yield _cell(group, parties, data, named(LORA_SHARED, ε), seed, STEPS, training, ADAPTER)
    training = {**local(8.0), "batch_size": 64, "learning_rate": 1e-2}
    model = {"pooling": "attentive", "adapter": {"kind": "lora", "rank": 8}}
    yield _cell(group, parties, data, named(LORA_LOCAL, 8.0), seed, TODAY, training, model)


def _cell(
    group: str,
    parties: int,
    data: str,
    method: str,
    seed: int,
    algorithm: Plain,
    training: Plain,
    model: Plain | None = None,
) -> Cell:
    probes = algorithm is PROBE
    spread = Spread((data,), parties, parties * RECORDS, dev=60, test=TESTED[data])
    if probes:
        spread = replace(spread, texts=TEXTS[data], texts_kept=PUBLIC)
    about = {"mode": "secagg"}, LENGTHS[data], group
    return Cell(data, method, seed, spread, algorithm, model or {}, training, *about)


def named(method: str, epsilon: float) -> str:
    """Name a method with its ε."""
    return f"{method}, ε = {epsilon:g}"


def shared(epsilon: float) -> dict[str, Any]:
    """Return training settings with shared noise."""
    return {"dp": {"epsilon": epsilon, "noise": "shared", "dropouts": 0, "colluders": 1}}


def local(epsilon: float) -> dict[str, Any]:
    """Return training settings with each hospital's own noise."""
    return {"dp": {"epsilon": epsilon}}


def _near(points: float, epsilon: float, figure: Figure) -> Iterator[Claim]:
    what = f"{points:g} point{'s' * (points != 1)}{' of AUROC' * (figure == 'auroc')}"
    for group in GROUPS:
        yield Claim(
            f"At ε = {epsilon:g} a probe with shared noise is within {what} of no DP.",
            group,
            Arm(named(SHARED, epsilon)),
            (Arm(CLEAR),),
            more_than=-points,
            figure=figure,
        )


def _pairs() -> Iterator[Claim]:
    for group in GROUPS:
        yield Claim(
            "Shared noise at ε = 3 is level with local noise at ε = 8, or better: probe.",
            group,
            Arm(named(SHARED, 3.0)),
            (Arm(named(LOCAL, 8.0)),),
        )
    group = next(iter(GROUPS))
    yield Claim(
        "Shared noise at ε = 3 is level with local noise at ε = 8, or better: adapters.",
        group,
        Arm(named(LORA_SHARED, 3.0)),
        (Arm(named(LORA_LOCAL, 8.0)),),
    )
    for data, points in (("sst2", 7.0), ("ade_cls", 15.0)):
        yield Claim(
            f"At ε = 8 a probe with shared noise is {points:g} points above adapters with local "
            "noise.",
            group,
            Arm(named(SHARED, 8.0)),
            (Arm(named(LORA_LOCAL, 8.0)),),
            data=(data,),
            more_than=points,
        )


TABLE = Table(
    "dp",
    "Differential privacy: local and shared noise",
    cells,
    reference=f"{LORA_LOCAL}, ε = 8",
    sections=tuple(
        Section(group, "Probes have 257 values; ε is per record, over the whole run, at δ = 1e-5.")
        for group in GROUPS
    ),
    claims=(
        *_near(1, 8.0, "score"),
        *_near(1, 3.0, "score"),
        *_near(2, 1.0, "score"),
        *_near(2, 8.0, "auroc"),
        *_near(2, 3.0, "auroc"),
        *_near(5, 1.0, "auroc"),
        *_pairs(),
    ),
)
