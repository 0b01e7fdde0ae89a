"""Evaluation of models on the test records of all hospitals, without training.

One sealed sum of counts gives the metrics of each model over all records. With several models, a
second sum gives the uncertainty of their differences: for each metric, the squares of the
differences between the influence of single records on one model and on the first.

With `epsilon`, the counts carry noise (`noise`), and nothing else about the records is sent: no
second sum, and no hospital's own score.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from secure_fl.algorithms.base import Algorithm, Demands, Entry
from secure_fl.data.examples import digest
from secure_fl.errors import ModelError, SettingsError
from secure_fl.features.evaluation.examine import SPLIT, difference, examine, pulls, read
from secure_fl.learning.metric_counts import Contributions, Counts, from_pieces, pieces
from secure_fl.learning.metrics import Z
from secure_fl.learning.noised_counts import NOISE
from secure_fl.learning.site_context import Findings
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, Section, TrainingSettings

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.learning.tasks import Task

BIASED = {"calibration_error"}  # its bins bias it, so it has no interval
PAIRED = "paired "  # before a model's label: squares of its differences from the first model


class EvaluatedModel(Section):
    """[[algorithm.models]]: a folder or hub name, as each site has it."""

    name: Annotated[str, Field(min_length=1)]
    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of weights, classes and tokens. Default: none; all sites need equal models, and a
    pilot refuses the plan."""


class Evaluate(Algorithm):
    """Measure models on all hospitals' test records."""

    name: Literal["evaluate"] = "evaluate"
    rounds: Literal[1] = 1
    epochs: Literal[1] = 1
    models: Annotated[tuple[EvaluatedModel, ...], Field(max_length=8)] = ()
    epsilon: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    """ε per test record of noise on the scores, at δ = 1e-6. Default: none, exact scores; a
    pilot's sites refuse these unless their rules allow them."""

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Return the demands of an evaluation; each site chooses its own batch."""
        return Demands(exchanges=1, passes=1, steps=0, batch=1, cells=0, drawn=1.0)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Return no models: nothing is trained."""
        return ()

    def reads(self, model: ModelSettings) -> tuple[str, ...]:
        """Return the names of the measured models; [model] is not used."""
        return tuple(one.name for one in self.models)

    @property
    def pinned(self) -> bool:
        """True if every model has a digest."""
        return all(one.digest for one in self.models)


async def evaluate(cohort: Cohort, site: Site, cfg: Evaluate) -> None:
    """Run the program of one party."""
    require_models(cfg)
    with site.recorder.phase("load model"):
        models = {one.label: read(one.name, site.task) for one in cfg.models}
        digests = {label: model.digest() for label, model in models.items()}
    require_pinned(cfg, digests)
    about = json.dumps([site.task.kind, site.task.labels, site.task.reading(), digests])
    await cohort.agree(about.encode(), "models and task")
    async for round in cohort.rounds(cfg.rounds, keep={"findings": Findings(site.findings)}):
        rows = {label: examine(site, label, model) for label, model in models.items()}
        asked = questions(site, digests.values())
        site.findings["models"] = [
            {"label": one.label, "name": one.name, "digest": digests[one.label]}
            for one in cfg.models
        ]
        if cfg.epsilon is not None:
            await measure_noised(cohort, site, rows, cfg.epsilon, asked)
            continue
        sums = await cohort.sum(site.scores.take_counts(), questions=asked)
        site.scores.pooled(round.number, sums)
        totals = {label: site.scores.totals(sums)[label, SPLIT] for label in models}
        site.findings["shared"] = await share_own(cohort, site, rows)
        if len(models) > 1:
            site.findings["compared"] = await compare(cohort, site, rows, totals)


async def measure_noised(
    cohort: Cohort,
    site: Site,
    rows: Mapping[str, Mapping[str, Contributions]],
    epsilon: float,
    asked: tuple[str, ...],
) -> None:
    """Sum the counts of all models with noise, after the site's ledger paid for it."""
    from secure_fl.crypto.privacy.noise import share_variance
    from secure_fl.features.evaluation import noise

    task = site.task
    release = noise.release_of(epsilon, noise.cells_of(task.labels) * len(rows))
    noise.reserve(site, release, digest_of_questions(asked))
    variance = share_variance(release, len(cohort.parties), cohort.threshold)
    site.scores.take_counts()  # exact ones, which stay here
    sealed = {
        f"scores/{label}/{SPLIT}/{name}": piece
        for label, one in rows.items()
        for name, piece in pieces(noise.noised(task, one, variance)).items()
    }
    sums = site.scores.totals(await cohort.sum(sealed, questions=asked))
    total = {NOISE: np.array([variance * len(cohort.survivors)])}  # variance of the sums' noise
    totals = {label: {**sums[label, SPLIT], **total} for label in rows}
    for label, counts in totals.items():
        site.scores.log_noised(label, SPLIT, counts)
    site.findings["noise"] = {
        "epsilon": epsilon,
        "delta": noise.DELTA,
        "unit": "record",
        "std": float(np.sqrt(variance * len(cohort.survivors))),
    }
    site.findings["compared"] = [
        {"model": other, "to": next(iter(rows)), "metrics": unpaired(task, totals, other)}
        for other in list(rows)[1:]
    ]


def unpaired(task: Task, totals: Mapping[str, Counts], other: str) -> dict[str, Any]:
    """Compare a model with the first one by their noised scores; the intervals are too wide."""
    first = next(iter(totals))
    scores = {label: task.rates(totals[label]) for label in (first, other)}
    intervals = {label: task.intervals(totals[label]) for label in (first, other)}
    halves = {
        label: {name: (high - low) / 2 for name, (low, high) in intervals[label].items()}
        for label in intervals
    }
    return {
        name: difference(
            scores[first][name],
            scores[other][name],
            (float(np.hypot(halves[first][name], halves[other][name])) / Z) ** 2,
        )
        for name in sorted(halves[first].keys() & halves[other].keys())
    }


async def share_own(
    cohort: Cohort, site: Site, rows: Mapping[str, Mapping[str, Contributions]]
) -> dict[str, dict[str, float]]:
    """Share the main metric of each hospital whose policy allows it, among the members.

    All others send NaN; the coordinator cannot distinguish them.
    """
    own = [np.nan] * len(rows)
    if site.options.get("share_scores"):
        totals = ({name: row.total() for name, row in by_name.items()} for by_name in rows.values())
        own = [site.task.pooled([counts]).get(site.task.metric, np.nan) for counts in totals]
    shared = await cohort.share({"own": np.array(own, np.float64)})
    return {
        name: dict(zip(rows, map(float, values["own"]), strict=True))
        for name, values in sorted(shared.items())
        if values["own"].shape == (len(rows),) and np.isfinite(values["own"]).all()
    }


async def compare(
    cohort: Cohort,
    site: Site,
    rows: Mapping[str, Mapping[str, Contributions]],
    totals: Mapping[str, Counts],
) -> list[dict[str, Any]]:
    """Compare each model with the first one, record by record."""
    first, *others = rows
    task = site.task
    records = float(totals[first]["loss"][0])
    with site.recorder.phase("compare"):
        moved = {label: pulls(task, rows[label], totals[label]) for label in rows}
    scores = {label: task.pooled([totals[label]]) for label in rows}
    metrics = {o: sorted((scores[first].keys() & scores[o].keys()) - BIASED) for o in others}
    squares = {
        PAIRED + other: np.array([
            float(np.square(records * (moved[other][name] - moved[first][name])).sum())
            for name in metrics[other]
        ])
        for other in others
    }  # fmt: skip
    opened = await cohort.sum(pieces(squares), together=True)
    if not opened:  # a member left between the two sums
        return []
    totals_of_squares = from_pieces(opened)
    return [
        {
            "model": other,
            "to": first,
            "metrics": {
                name: difference(scores[first][name], scores[other][name], square / records**2)
                for name, square in zip(
                    metrics[other], totals_of_squares[PAIRED + other], strict=True
                )
            },
        }
        for other in others
    ]


def questions(site: Site, digests: Any) -> tuple[str, ...]:
    """Digest the questions about this site's records, one for each model, whatever the others."""
    records = digest(site.silo.test)
    return tuple(
        hashlib.sha256(f"evaluate {one} ".encode() + records).hexdigest() for one in digests
    )


def digest_of_questions(asked: tuple[str, ...]) -> str:
    """Name an evaluation in the ledger."""
    return hashlib.sha256(" ".join(sorted(asked)).encode()).hexdigest()[:16]


def require_models(cfg: Evaluate) -> None:
    """Refuse an evaluation without models, or of two models with one label."""
    labels = [one.label for one in cfg.models]
    if not labels or len(set(labels)) < len(labels):
        raise SettingsError(
            "an evaluation needs at least one model, and a different label for each",
            fix="give [[algorithm.models]] with name and label; secure-fl evaluate writes them",
            field="algorithm.models",
        )


def require_pinned(cfg: Evaluate, digests: Mapping[str, str]) -> None:
    """Refuse a model with another digest than the plan names."""
    for one in cfg.models:
        if one.digest is not None and one.digest != digests[one.label]:
            raise ModelError(
                f"this is not the model that the plan names: its digest is {digests[one.label]}",
                model=one.name,
                fix="use the folder with the digest in [[algorithm.models]]",
                field="algorithm.models",
            )


ENTRY = Entry(
    Evaluate,
    evaluate,
    trains_nothing=True,
    summary="models as they are, measured on all hospitals' test records",
)
