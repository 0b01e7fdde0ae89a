"""How long audits take, and what recording costs: the promises of docs/audits.md in numbers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Grid, Report, Target
from secure_fl.audits.attacks.geometry import time_span_check
from secure_fl.audits.demonstration import demonstrate, summary, together
from secure_fl.audits.run import audit
from secure_fl.federation.federation import Federation

DEMO, FULL, SPAN = 60.0, 300.0, 10.0  # seconds that are promised
WORDS, WIDTH = 30_000, 384
TURNS = 3  # runs with and without recording


def measure(*, full: bool = True, words: int = WORDS, turns: int = TURNS) -> Report:
    """Run the demo's audit, a full audit of its protected run, and the span check at full width."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        quick, documents = _timed(lambda: demonstrate(0, folder / "demo"))
        protected = folder / "demo" / together()[-1].folder
        seconds = _timed(lambda: audit(protected))[0] if full else None
        recording = _recording(folder, turns)
        size = sum(f.stat().st_size for f in protected.rglob("view*/*") if f.is_file())
    span, _ = time_span_check(words=words, width=WIDTH)
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
        [Grid("audits", ("", ""), rows)],
        targets,
        seconds=time.perf_counter() - started,
    )


def _recording(folder: Path, turns: int) -> float:
    """Seconds of the protected run with its views recorded, over those without; best of turns."""
    way = together()[-1]
    best: dict[bool, float] = {}
    for turn in range(turns):
        for record in (True, False):
            made = Federation.of(way.settings(record=record), folder / f"{turn}-{record}")
            spent, _ = _timed(made.run)
            best[record] = min(spent, best.get(record, spent))
    return best[True] / best[False]


def _timed(step: Any) -> tuple[float, Any]:
    before = time.perf_counter()
    made = step()
    return time.perf_counter() - before, made
