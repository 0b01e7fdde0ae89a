"""Each hospital's temperature and threshold for the model that it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from secure_fl.features.personal.curves import (
    NOTHING,
    LossCurves,
    RiskSums,
    cooled,
    losses_at,
    probability,
    true_odds,
)
from secure_fl.features.personal.settings import PersonalSettings
from secure_fl.learning.tasks import Batch, Task

if TYPE_CHECKING:
    from torch import Tensor

    from secure_fl.learning.site import Site
    from secure_fl.party.cohort import Cohort

Outcomes = Mapping[str, tuple[list["Tensor"], list[Batch]]]  # by split, without empty splits


@dataclass(slots=True)
class Answers:
    """One hospital's temperature and threshold, and the pooled ones of all hospitals.

    A hospital without dev records has the pooled ones.
    """

    temperature: dict[str, Any] | None = None
    threshold: dict[str, Any] | None = None
    temperatures: dict[str, Any] | None = None
    thresholds: dict[str, Any] | None = None


def options_of(party: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that answers with a hospital's temperature and threshold."""
    temperature, threshold = party["temperature"], party["threshold"]
    return {
        "temperature": 1.0 if temperature is None else temperature["own"],
        "threshold": None if threshold is None else threshold["own"],
    }


async def answers_of(cohort: Cohort, site: Site, name: str, cfg: PersonalSettings) -> Answers:
    """Sum the curves of the used models, and derive this hospital's temperature and threshold."""
    model, answers = site.delivered[name].model, Answers()
    measured = {
        split: site.outcomes(model, split) for split in ("dev", "test") if getattr(site.silo, split)
    }
    if cfg.calibrate:
        await _calibrate(cohort, site.task, measured, answers)
    if cfg.coverage is not None:
        T = 1.0 if answers.temperature is None else answers.temperature["own"]
        calibrated = {split: (cooled(z, T), batches) for split, (z, batches) in measured.items()}
        await _cover(cohort, site.task, calibrated, answers, cfg.coverage)
    return answers


async def _calibrate(cohort: Cohort, task: Task, measured: Outcomes, answers: Answers) -> None:
    """Find the temperatures."""
    curves = LossCurves.of(task, *measured["dev"]) if "dev" in measured else None
    sums = await (NOTHING if curves is None else curves.sums()).over(cohort)
    if sums is None:
        return
    weight = 0.0 if curves is None else sums.weight(curves)
    own = sums.pooled if curves is None else sums.own(curves)
    at = {"pooled": sums.pooled, "own": own}
    answers.temperatures = {"pooled": sums.pooled, "records": round(sums.records)}
    answers.temperature = {**at, "weight": weight}
    if "test" in measured:
        answers.temperature["test_loss"] = {
            name: float(losses_at(task, *measured["test"], T).mean())
            for name, T in {"uncalibrated": 1.0, **at}.items()
        }


async def _cover(
    cohort: Cohort, task: Task, measured: Outcomes, answers: Answers, coverage: float
) -> None:
    """Find the thresholds, on calibrated probabilities."""
    odds = true_odds(task, *measured["dev"]) if "dev" in measured else None
    sums = await RiskSums.of(odds).over(cohort)
    if sums is None:
        return
    pooled = sums.pooled(coverage)
    at = {"pooled": pooled, "own": pooled if odds is None else sums.own(odds, coverage)}
    answers.thresholds = {
        "coverage": coverage, "pooled": probability(pooled), "records": round(sums.records)
    }  # fmt: skip
    answers.threshold = {name: probability(x) for name, x in at.items()}
    answers.threshold["weight"] = 0.0 if odds is None else sums.weight(odds, coverage)
    if "test" in measured:
        test = true_odds(task, *measured["test"])
        answers.threshold["test_coverage"] = {name: test.coverage(x) for name, x in at.items()}
