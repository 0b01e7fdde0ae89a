"""How long quick audits take: of the demo's sealed run, and of a checkpoint of six layers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import installed
from benchmarks.report import Report, Target, table
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.audits.run import audit
from secure_fl.cli.demo_runs import together
from secure_fl.config.build import RunSettings
from secure_fl.config.data import CorpusData
from secure_fl.config.load import Settings
from secure_fl.federation.federation import Federation
from secure_fl.settings import ModelSettings, ProtectionSettings, TrainingSettings

TINY, LARGE = 30.0, 300.0  # seconds that are promised
RECORDS = 60  # of each hospital


def measure(*, records: int = RECORDS, large: bool = True) -> Report:
    """Record a run of each model, and audit it as `secure-fl audit --quick` does."""
    started = time.perf_counter()
    found = installed() if large else None
    with tempfile.TemporaryDirectory() as place:
        tiny = _audited(together()[1].settings(record=True), Path(place) / "tiny")
        big = _audited(_sent_whole(found, records), Path(place) / "big") if found else None
    rows = [
        ("of the demo's sealed run", f"{tiny:.1f} s"),
        ("of 6 layers of 384, all sent", "no such package" if big is None else f"{big:.1f} s"),
    ]
    targets = [Target("tiny: seconds", TINY, tiny)]
    targets += [] if big is None else [Target("6 layers of 384: seconds", LARGE, big)]
    results: dict[str, Any] = {"tiny_seconds": tiny, "large_seconds": big}
    return Report(
        "quick-audit",
        {"records": records},
        0,
        results,
        [table("quick audits, by the clock", ("", ""), rows)],
        targets,
        seconds=time.perf_counter() - started,
    )


def _sent_whole(model: Path, records: int) -> Settings:
    """The most that an audit of this checkpoint has to look at: embeddings travel, too."""
    return Settings(
        run=RunSettings(name="large", record=True),
        data=CorpusData(corpus="ade", parties=3, size=records),
        model=ModelSettings(name=str(model), freeze_embeddings=False),
        training=TrainingSettings(device="cpu", batch_size=16),
        protection=ProtectionSettings(),
        algorithm=FedAvg(rounds=1, epochs=1),
    )


def _audited(settings: Settings, folder: Path) -> float:
    Federation.of(settings, folder).run()
    before = time.perf_counter()
    audit(folder, quick=True)
    return time.perf_counter() - before
