"""FedAvg at its defaults, as `init` writes it and as `tune` finds it, compared with a grid.

Built-in records and the built-in model: every point of rates and passes trains in seconds. All runs
have one seed, so the result of `tune` is a point of the grid and has its test score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import Columns, Grid, Report, Target, cpu
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


COLUMNS: Columns = {
    "corpus": "{r.corpus}",
    "metric": "{r.metric}",
    "default": lambda r: f"{100 * r.default:.1f}",
    "init's": lambda r: f"{100 * r.written:.1f}",
    "tuned": lambda r: f"{100 * r.tuned:.1f}",
    "best of the grid": lambda r: f"{100 * r.best:.1f}",
    "tune": "{r.tune_seconds:.0f} s",
    "grid": "{r.grid_seconds:.0f} s",
}


@dataclass(frozen=True, slots=True)
class TunedRow:
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
    rows = [_row(name, size, {RATE: rates, EPOCHS: passes}, seed) for name in corpora]
    targets = []
    for row in rows:
        targets += [
            Target(f"{row.corpus}: default below the best, points", 2, _less(row, row.default)),
            Target(f"{row.corpus}: init's below the best, points", 2, _less(row, row.written)),
            Target(f"{row.corpus}: tuned below the best, points", 1, _less(row, row.tuned)),
            Target(f"{row.corpus}: tune's CPU, of the grid's", 0.34, _share(row)),
        ]
    return Report(
        "tuned",
        {"size": size, "parties": 4, "rates": list(rates), "passes": list(passes)},
        seed,
        {"rows": [asdict(row) for row in rows]},
        [Grid.of("FedAvg, scores on test records", rows, COLUMNS)],
        targets,
    )


def _row(corpus: str, size: int, values: dict[str, Sequence[Any]], seed: int) -> TunedRow:
    settings = loads(STUDY.format(seed=seed, corpus=corpus, size=size, kind=KINDS[corpus]))
    spent, points = cpu(lambda: [(dict(c), *_scores(settings, c)) for c in _grid(settings, values)])
    searched, found = cpu(lambda: tune(settings, values))
    best = max(points, key=lambda point: point[1])  # by dev records
    tuned = next(test for choice, _, test in points if choice == dict(found.best.choice))
    (_, default), (_, written) = _scores(settings, {}), _scores(settings, WRITTEN)
    grid = [(choice, round(test, 4)) for choice, _, test in points]
    return TunedRow(
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
    """Train, and return the scores on dev and on test records."""
    run = Federation.of(with_choice(settings, choice)).run()
    metric = run.document["main_metric"]
    return run.pooled("dev")[metric], run.pooled("test")[metric]


def _less(row: TunedRow, score: float) -> float:
    return 100 * (row.best - score)


def _share(row: TunedRow) -> float:
    return row.tune_seconds / max(row.grid_seconds, 1e-9)
