"""FedAvg at its defaults, by `init` and by `tune`, beside a whole grid of rates and passes.

Built-in records and the built-in model: every point trains in seconds. All runs are of one seed, so
the point that `tune` ends with is one of the grid's, and has that one's test score.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import Report, Target, cpu, table
from secure_fl.cli.init import SHORT
from secure_fl.config.load import Settings, loads
from secure_fl.features.tuning.tuning import RATE, combinations, tune, with_choice
from secure_fl.federation.federation import Federation

SEED = 7
EPOCHS = "algorithm.epochs"
RATES, PASSES = (5e-4, 1e-3, 2e-3, 4e-3), (1, 2, 3)
STUDY = """\
run = {{seed = {seed}}}
data = {{corpus = "{corpus}", parties = 4, size = {size}}}
task = {{kind = "{kind}"}}
training = {{device = "cpu"}}
protection = {{mode = "none"}}
algorithm = {{name = "fedavg"}}
"""
KINDS = {"ade": "classification", "pairs": "classification", "ner": "ner"}
WRITTEN = {f"algorithm.{field}": value for field, value in SHORT.items()}  # by `secure-fl init`
COLUMNS = ("corpus", "metric", "default", "init's", "tuned", "best of the grid", "tune", "grid")


@dataclass(frozen=True, slots=True)
class Row:
    """One corpus: test scores, and CPU seconds of the searches."""

    corpus: str
    metric: str
    default: float
    written: float
    tuned: float
    best: float
    tune_seconds: float
    grid_seconds: float
    choice: dict[str, Any]
    grid: list[tuple[dict[str, Any], float]]


def measure(
    corpora: Sequence[str] = tuple(KINDS),
    size: int = 240,
    rates: Sequence[float] = RATES,
    passes: Sequence[int] = PASSES,
    seed: int = SEED,
) -> Report:
    """Train every point of the grid, the default, and let `tune` search the same grid."""
    started = time.perf_counter()
    rows = [_row(name, size, {RATE: rates, EPOCHS: passes}, seed) for name in corpora]
    targets = []
    for row in rows:
        targets += [
            Target(f"{row.corpus}: default below the best, points", 2, _less(row, row.default)),
            Target(f"{row.corpus}: init's below the best, points", 2, _less(row, row.written)),
            Target(f"{row.corpus}: tuned below the best, points", 1, _less(row, row.tuned)),
            Target(f"{row.corpus}: tune's CPU, of the grid's", 0.34, _share(row)),
        ]
    shown = [
        (
            row.corpus,
            row.metric,
            *(f"{100 * score:.1f}" for score in (row.default, row.written, row.tuned, row.best)),
            *(f"{seconds:.0f} s" for seconds in (row.tune_seconds, row.grid_seconds)),
        )
        for row in rows
    ]
    return Report(
        "tuned",
        {"size": size, "parties": 4, "rates": list(rates), "passes": list(passes)},
        seed,
        {"rows": [asdict(row) for row in rows]},
        [table("FedAvg, scores on test records", COLUMNS, shown)],
        targets,
        seconds=time.perf_counter() - started,
    )


def _row(corpus: str, size: int, values: dict[str, Sequence[Any]], seed: int) -> Row:
    settings = loads(STUDY.format(seed=seed, corpus=corpus, size=size, kind=KINDS[corpus]))
    spent, points = cpu(lambda: [(dict(c), *_scores(settings, c)) for c in _grid(settings, values)])
    searched, found = cpu(lambda: tune(settings, values))
    best = max(points, key=lambda point: point[1])  # by dev records, as whoever has a grid would
    tuned = next(test for choice, _, test in points if choice == dict(found.best.choice))
    (_, default), (_, written) = _scores(settings, {}), _scores(settings, WRITTEN)
    grid = [(choice, round(test, 4)) for choice, _, test in points]
    return Row(
        corpus,
        found.metric,
        default,
        written,
        tuned,
        best[2],
        searched,
        spent,
        dict(found.best.choice),
        grid,
    )


def _grid(settings: Settings, values: dict[str, Sequence[Any]]) -> list[Any]:
    return list(combinations(settings, values))


def _scores(settings: Settings, choice: dict[str, Any]) -> tuple[float, float]:
    """On dev and on test records."""
    run = Federation.of(with_choice(settings, choice)).run()
    metric = run.document["main_metric"]
    return run.pooled("dev")[metric], run.pooled("test")[metric]


def _less(row: Row, score: float) -> float:
    return 100 * (row.best - score)


def _share(row: Row) -> float:
    return row.tune_seconds / max(row.grid_seconds, 1e-9)
