"""What DP-SGD costs over plain training of the same model on the same records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.report import Report, table
from secure_fl import corpora
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.dp.account import DpAccount
from secure_fl.learning.dp.scope import sampling_units
from secure_fl.learning.schedule import ALONE
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings

BATCH = 32
WAYS: Mapping[str, Mapping[str, Any] | None] = MappingProxyType(
    {"plain": None, "per_sample": {"clipping": "per_sample"}, "ghost": {"clipping": "ghost"}}
)
MODELS: Mapping[str, ModelSettings] = MappingProxyType(
    {"all but embeddings": ModelSettings(), "all": ModelSettings(freeze_embeddings=False)}
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way of training: median CPU seconds of an epoch, and how often plain's that is."""

    weights: str  # which are trained
    way: str
    cpu_seconds: float
    over_plain: float


def measure(*, records: int = 480, repeats: int = 5, seed: int = 0) -> Report:
    """Train an epoch in each way, in turns; the built-in model, torch on one thread."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [
            row
            for weights, model in MODELS.items()
            for row in rows(weights, model, records, repeats)
        ]
    finally:
        torch.set_num_threads(threads)
    cells = [(r.weights, r.way, f"{r.cpu_seconds:.3f}", f"{r.over_plain:.2f}") for r in found]
    return Report(
        "dp",
        {"records": records, "batch": BATCH, "repeats": repeats},
        seed,
        {"rows": [asdict(row) for row in found]},
        [table("an epoch by DP-SGD", ("trained", "way", "CPU s", "over plain"), cells)],
        seconds=time.perf_counter() - started,
    )


def rows(weights: str, model: ModelSettings, records: int, repeats: int) -> list[Row]:
    """Epochs of one model in each way, in turns: plain training first."""
    sites = {way: _site(fields, model, records) for way, fields in WAYS.items()}
    models = {way: site.model() for way, site in sites.items()}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        for way, site in sites.items():
            before = time.process_time()
            site.fit(models[way], 1, ALONE)
            if turn:  # the first turn warms up
                taken[way].append(time.process_time() - before)
    plain = taken["plain"]
    return [
        Row(
            weights,
            way,
            median(seconds),
            median(s / p for s, p in zip(seconds, plain, strict=True)),
        )
        for way, seconds in taken.items()
    ]


def _site(fields: Mapping[str, Any] | None, model: ModelSettings, records: int) -> Site:
    silo = Silo("north", corpora.make("ade", parties=1, seed=0, size=records)[0].train)
    dp = None
    if fields is not None:
        dp = DPSettings(epsilon=1e6, noise_multiplier=1.0, accountant="rdp", **fields)
    training = TrainingSettings(batch_size=BATCH, device="cpu", dp=dp)
    privacy = None
    if dp is not None:
        privacy = DpAccount(silo.name, dp, sampling_units(silo.train, dp, silo.name), BATCH)
    return Site(
        silo,
        make_task(TaskSettings(), silo.train),
        model,
        training,
        0,
        EventLog(silo.name),
        privacy=privacy,
    )
