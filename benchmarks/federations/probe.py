"""Probes of a checkpoint's frozen encoder on real text, with public texts of another source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev

from benchmarks import checkpoint, collection
from benchmarks.datasets import Spread, silos
from benchmarks.report import Columns, Grid, Report, cpu
from secure_fl.algorithms.probe import Probe
from secure_fl.federation.federation import Federation
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)

PARTIES = 4
SOURCES = {"sst2": "imdb/train10k", "ade_cls": "ncbi_disease/train"}  # of public texts
FITS = {"ridge": Probe(), "logistic": Probe(fit="logistic")}
COLUMNS: Columns = {
    "set": "{r.set}",
    "fit": "{r.fit}",
    "accuracy": "{r.accuracy}",
    "F1": "{r.f1}",
    "AUROC": "{r.auroc}",
    "calibration error": "{r.calibration_error}",
    "kB up": "{r.kilobytes:.0f}",
    "CPU s a hospital": "{r.cpu_seconds:.1f}",
}


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """Scores x 100 on test records: mean ± standard deviation over seeds."""

    set: str
    fit: str
    accuracy: str
    f1: str
    auroc: str
    calibration_error: str
    kilobytes: float
    cpu_seconds: float


def measure(
    sets: Sequence[str] = tuple(SOURCES),
    *,
    records: int = 600,
    test: int | None = None,
    seeds: int = 3,
    model: str | None = None,
    data: Path | None = None,
) -> Report:
    """Fit probes over four hospitals, each with so many records, sums in the clear."""
    found, folder = checkpoint.require(model), collection.find(data)
    collection.require(sets, folder)
    sizes = {"parties": PARTIES, "records": records, "seeds": seeds}
    rows = [
        _row(name, fit, [_scores(name, fit, seed, folder, found.name, records, test)
                         for seed in range(seeds)])
        for name in sets for fit in FITS
    ]  # fmt: skip
    grid = Grid.of("probes, scores on test records x 100", rows, COLUMNS)
    named = sizes | {"model": found.identity}
    return Report("probe", named, 0, {"rows": [asdict(row) for row in rows]}, [grid])


def _scores(
    name: str, fit: str, seed: int, folder: Path | None, model: str, records: int, test: int | None
) -> dict[str, float]:
    about = collection.SETS[name]
    texts = SOURCES[name]
    spread = Spread((name,), PARTIES, PARTIES * records, dev=20, test=test, texts=texts)
    run = Federation(
        silos(spread, folder, seed),
        FITS[fit],
        task=TaskSettings(labels=about.labels, positive=about.positive, max_length=64),
        model=ModelSettings(name=model),
        training=TrainingSettings(precision="bfloat16", device="cpu"),
        protection=ProtectionSettings(mode="none"),
        seed=seed,
    )
    seconds, result = cpu(run.run)
    sent = fmean(traffic["up"] for traffic in result.document["bytes"].values())
    return {**result.pooled("test"), "bytes": sent, "seconds": seconds / PARTIES}


def _row(name: str, fit: str, scores: Sequence[dict[str, float]]) -> ProbeRow:
    def shown(metric: str) -> str:
        values = [100 * score[metric] for score in scores]
        return f"{fmean(values):.1f} ± {pstdev(values):.1f}"

    return ProbeRow(
        name,
        fit,
        shown("accuracy"),
        shown("f1"),
        shown("auroc"),
        shown("calibration_error"),
        fmean(score["bytes"] for score in scores) / 1000,
        fmean(score["seconds"] for score in scores),
    )
