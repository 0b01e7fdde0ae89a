"""How long audits take, and what recording costs: the promises of docs/audits.md in numbers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, Target, table
from secure_fl.audits.attacks.gradient_spans import InputSpan, in_span
from secure_fl.audits.attacks.layer_inputs import Inputs
from secure_fl.audits.document import AuditDocument
from secure_fl.audits.run import audit
from secure_fl.cli.demo_runs import attack, summary, together
from secure_fl.federation.federation import Federation

DEMO, FULL, SPAN = 60.0, 300.0, 10.0  # seconds that are promised
WORDS, WIDTH = 30_000, 384
TURNS = 3  # runs with and without recording


def measure(*, full: bool = True, words: int = WORDS, turns: int = TURNS) -> Report:
    """Run the demo's audit, a full audit of its protected run, and the span check at full width."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        quick, documents = _timed(lambda: _demonstrated(folder / "demo"))
        protected = folder / "demo" / together()[-1].folder
        seconds = _timed(lambda: audit(protected))[0] if full else None
        recording = _recording(folder, turns)
        size = sum(f.stat().st_size for f in protected.rglob("view*/*") if f.is_file())
    span = _span_check(words)
    rows = [
        ("the demo's three federations, trained and audited", f"{quick:.1f} s"),
        ("a full audit of the protected one", "-" if seconds is None else f"{seconds:.1f} s"),
        (f"span check, {words:,} words at d = {WIDTH}", f"{span:.1f} s"),
        ("a recorded run beside one that is not", f"{recording:.2f}x"),
        ("what a recorded run keeps", f"{size / 1e6:.1f} MB"),
    ]
    targets = [
        Target("demo's audit: seconds", DEMO, quick),
        Target("span check: seconds", SPAN, span),
    ]
    if seconds is not None:
        targets.append(Target("full audit: seconds", FULL, seconds))
    results: dict[str, Any] = {
        "demo_seconds": quick,
        "full_seconds": seconds,
        "span_seconds": span,
        "recording_ratio": recording,
        "recorded_bytes": size,
        "demo": summary(documents),
    }
    return Report(
        "audits",
        {"words": words, "width": WIDTH, "turns": turns},
        0,
        results,
        [table("audits", ("", ""), rows)],
        targets,
        seconds=time.perf_counter() - started,
    )


def _recording(folder: Path, turns: int) -> float:
    """Seconds of the protected run with its views recorded, over those without; best of turns."""
    run = together()[-1]
    best: dict[bool, float] = {}
    for turn in range(turns):
        for record in (True, False):
            made = Federation.of(run.settings(record=record), folder / f"{turn}-{record}")
            spent, _ = _timed(made.run)
            best[record] = min(spent, best.get(record, spent))
    return best[True] / best[False]


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


def _timed(step: Any) -> tuple[float, Any]:
    before = time.perf_counter()
    made = step()
    return time.perf_counter() - before, made
