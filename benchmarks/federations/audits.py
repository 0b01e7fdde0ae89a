"""Seconds of audits and cost of recording."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoint import installed
from benchmarks.report import Grid, Report, Target
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.audits.attacks.layer_inputs import Inputs, InputSpan, in_span
from secure_fl.audits.document import AuditDocument
from secure_fl.audits.run import audit
from secure_fl.cli.demo_runs import attack, summary, together
from secure_fl.config.build import RunSettings
from secure_fl.config.data import CorpusData
from secure_fl.config.load import Settings
from secure_fl.federation.federation import Federation
from secure_fl.settings import ModelSettings, ProtectionSettings, TrainingSettings

LIMITS = {  # seconds
    "the demo's three federations, trained and audited": 60.0,
    "a quick audit of the demo's sealed run": 30.0,
    "a quick audit of 6 layers of 384, embeddings sent": 300.0,
    "a full audit of the demo's last run": 300.0,
    "the span check": 10.0,
}
WORDS, WIDTH = 30_000, 384
TURNS = 3  # runs with and without recording


def measure(
    *, full: bool = True, words: int = WORDS, turns: int = TURNS, records: int = 60
) -> Report:
    """Audit the demo's runs and a checkpoint's, and run the span check at full width."""
    checkpoint = installed() if full else None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        demo, documents = _timed(lambda: _demonstrated(folder / "demo"))
        last = folder / "demo" / together()[-1].folder
        quick = _audited(together()[1].settings(record=True), folder / "tiny")
        seconds = {"demo": demo, "quick": quick, "large": None, "full": None}
        if checkpoint:
            seconds["large"] = _audited(_sent_whole(checkpoint, records), folder / "large")
        if full:
            seconds["full"] = _timed(lambda: audit(last))[0]
        recording = _recording(folder, turns)
        size = sum(f.stat().st_size for f in last.rglob("view*/*") if f.is_file())
    seconds["span"] = _span_check(words)
    measured = dict(zip(LIMITS, seconds.values(), strict=True))
    rows = [(what, "-" if s is None else f"{s:.1f} s") for what, s in measured.items()]
    rows += [
        ("a recorded run over one without views", f"{recording:.2f}x"),
        ("views of a recorded run", f"{size / 1e6:.1f} MB"),
    ]
    return Report(
        "audits",
        {"words": words, "width": WIDTH, "turns": turns, "records": records},
        0,
        {
            "seconds": seconds,
            "recording_ratio": recording,
            "recorded_bytes": size,
            "demo": summary(documents),
        },
        [Grid("audits", ("", ""), rows)],
        [
            Target(f"{what}: seconds", LIMITS[what], taken)
            for what, taken in measured.items()
            if taken is not None
        ],
    )


def _sent_whole(model: Path, records: int) -> Settings:
    """Define the largest run to audit with this checkpoint: embeddings are sent, too."""
    return Settings(
        run=RunSettings(name="large", record=True),
        data=CorpusData(corpus="ade", parties=3, size=records),
        model=ModelSettings(name=str(model), freeze_embeddings=False),
        training=TrainingSettings(device="cpu", batch_size=16),
        protection=ProtectionSettings(),
        algorithm=FedAvg(rounds=1, epochs=1),
    )


def _demonstrated(folder: Path) -> list[AuditDocument]:
    """Train, record and attack the demo's federated runs."""
    folders = []
    for run in together():
        folders.append(folder / run.folder)
        Federation.of(run.settings(record=True), folders[-1], progress=False).run()
    return attack(folders, folder)


def _span_check(words: int, places: int = 128, tokens: int = 64) -> float:
    """Time the search over all (word, place) pairs, on synthetic tables."""
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, WIDTH)) * 0.02 for n in (words, places)]
    inputs = Inputs(tables[0], tables[1], np.ones(WIDTH), np.zeros(WIDTH), 1e-12)
    truth = {(place % places, int(rng.integers(words))) for place in range(tokens)}
    at = np.array(sorted(truth))
    basis = np.linalg.qr(inputs.rows(at[:, 1], at[:, 0]).T)[0]
    seconds, hits = _timed(lambda: in_span(inputs, [InputSpan(basis)], places))
    assert {(place, token) for _, place, token in sorted(hits)[: len(truth)]} == truth  # noqa: S101
    return float(seconds)


def _audited(settings: Settings, folder: Path) -> float:
    """Record a run and return the seconds of its quick audit."""
    Federation.of(settings, folder).run()
    return _timed(lambda: audit(folder, quick=True))[0]


def _recording(folder: Path, turns: int) -> float:
    """Divide the seconds of a recorded run by those of an ordinary one; best of turns."""
    way = together()[-1]
    best: dict[bool, float] = {}
    for turn in range(turns):
        for record in (True, False):
            made = Federation.of(way.settings(record=record), folder / f"{turn}-{record}")
            spent, _ = _timed(made.run)
            best[record] = min(spent, best.get(record, spent))
    return best[True] / best[False]


def _timed(step: Callable[[], Any]) -> tuple[float, Any]:
    before = time.perf_counter()
    made = step()
    return time.perf_counter() - before, made
