"""Evaluation alone: models as they are, on every hospital's test records, and nothing is trained.

One sealed sum of counts tells what each model is worth on all records together. Where there are
several, a second one tells how sure the differences are: of each metric, the squares of how far
single records move it for one model more than for the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from secure_fl.algorithms.base import Algorithm, Demands, Entry
from secure_fl.data.public_set import digest
from secure_fl.errors import ModelError, SettingsError
from secure_fl.features.evaluation.examine import SPLIT, difference, examine, pulls, read
from secure_fl.learning.metric_counts import Contributions, Counts, from_pieces, pieces
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, Section, TrainingSettings

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

BIASED = {"calibration_error"}  # by its bins, so that no interval holds it
PAIRED = "paired "  # before a model's label: squares of its differences to the first


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

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Nothing is trained; how many records are looked at together is the site's affair."""
        return Demands(exchanges=1, passes=1, steps=0, batch=1, cells=0, drawn=1.0)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Nothing."""
        return ()

    def reads(self, model: ModelSettings) -> tuple[str, ...]:
        """The models that are measured, and not [model]."""
        return tuple(one.name for one in self.models)

    @property
    def pinned(self) -> bool:
        """Whether every model is named by its digest."""
        return all(one.digest for one in self.models)

    @classmethod
    def entry(cls) -> Entry:
        """Return the registry entry."""
        return Entry(
            Evaluate,
            evaluate,
            trains_nothing=True,
            summary="models as they are, measured on all hospitals' test records",
        )


class Findings:
    """What an evaluation found, as a checkpoint keeps it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return dict(self._found)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._found |= state


async def evaluate(cohort: Cohort, site: Site, cfg: Evaluate) -> None:
    """The party program."""
    require_models(cfg)
    with site.recorder.phase("load model"):
        models = {one.label: read(one.name, site.task) for one in cfg.models}
        digests = {label: model.digest() for label, model in models.items()}
    require_pinned(cfg, digests)
    about = json.dumps([site.task.kind, site.task.labels, site.task.max_length, digests])
    await cohort.agree(about.encode(), "models and task")
    async for round in cohort.rounds(cfg.rounds, keep={"findings": Findings(site.findings)}):
        rows = {label: examine(site, label, model) for label, model in models.items()}
        sums = await cohort.sum(
            site.scores.take_counts(), questions=questions(site, digests.values())
        )
        site.scores.pooled(round.number, sums)
        totals = {label: site.scores.totals(sums)[label, SPLIT] for label in models}
        site.findings["models"] = [
            {"label": one.label, "name": one.name, "digest": digests[one.label]}
            for one in cfg.models
        ]
        site.findings["shared"] = await share_own(cohort, site, rows)
        if len(models) > 1:
            site.findings["compared"] = await compare(cohort, site, rows, totals)


async def share_own(
    cohort: Cohort, site: Site, rows: Mapping[str, Mapping[str, Contributions]]
) -> dict[str, dict[str, float]]:
    """The main metric at each hospital whose own rules share it, which it tells members itself.

    All others send that they do not; the coordinator cannot tell who is who.
    """
    told = [np.nan] * len(rows)
    if site.share_scores:
        totals = ({name: one.total() for name, one in found.items()} for found in rows.values())
        told = [site.task.pooled([counts]).get(site.task.metric, np.nan) for counts in totals]
    said = await cohort.share({"own": np.array(told, np.float64)})
    return {
        name: dict(zip(rows, map(float, values["own"]), strict=True))
        for name, values in sorted(said.items())
        if values["own"].shape == (len(rows),) and np.isfinite(values["own"]).all()
    }


async def compare(
    cohort: Cohort,
    site: Site,
    rows: Mapping[str, Mapping[str, Contributions]],
    totals: Mapping[str, Counts],
) -> list[dict[str, Any]]:
    """How much better each model is than the first, record by record."""
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
    if not opened:  # somebody left between the two sums
        return []
    found = from_pieces(opened)
    return [
        {
            "model": other,
            "to": first,
            "metrics": {
                name: difference(scores[first][name], scores[other][name], square / records**2)
                for name, square in zip(metrics[other], found[PAIRED + other], strict=True)
            },
        }
        for other in others
    ]


def questions(site: Site, digests: Any) -> tuple[str, ...]:
    """What is asked of this site's records: of each model by itself, in whatever company."""
    records = digest(site.silo.test)
    return tuple(
        hashlib.sha256(f"evaluate {one} ".encode() + records).hexdigest() for one in digests
    )


def require_models(cfg: Evaluate) -> None:
    """Refuse an evaluation of nothing, or of two models under one label."""
    labels = [one.label for one in cfg.models]
    if not labels or len(set(labels)) < len(labels):
        raise SettingsError(
            "an evaluation names at least one model, and each by a label of its own",
            fix="give [[algorithm.models]] with name and label; secure-fl evaluate writes them",
            field="algorithm.models",
        )


def require_pinned(cfg: Evaluate, digests: Mapping[str, str]) -> None:
    """Refuse another model than the one that was named."""
    for one in cfg.models:
        if one.digest is not None and one.digest != digests[one.label]:
            raise ModelError(
                f"this is another model than the one that is to be evaluated: its digest is "
                f"{digests[one.label]}",
                model=one.name,
                fix="get the very folder that the digest in [[algorithm.models]] was made of",
                field="algorithm.models",
            )


ENTRY = Entry(
    Evaluate,
    evaluate,
    trains_nothing=True,
    summary="models as they are, measured on all hospitals' test records",
)
