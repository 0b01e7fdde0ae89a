"""The temperature and the threshold with which each hospital's model answers.

Logits are divided by the temperature, which calibrates probabilities (`curves`). All labels
with a probability above the threshold are given as the answer, so that a chosen share of answers
has the true label. Both follow from a hospital's own curve, mixed with the sealed
sum of all curves. A hospital without dev records has the pooled values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

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

Outcomes = Mapping[str, tuple[list["Tensor"], list[Batch]]]  # logits and batches of each split


class OwnValue(TypedDict):
    """A hospital's temperature or threshold, as in its part of result.json."""

    pooled: float
    own: float
    weight: float  # of its own curve in the mixture
    test_loss: NotRequired[dict[str, float]]  # by temperature: uncalibrated, pooled, own
    test_coverage: NotRequired[dict[str, float]]  # by threshold: pooled, own


class PooledValue(TypedDict):
    """The temperature or threshold of all hospitals' dev records, as in result.json."""

    pooled: float
    records: int
    coverage: NotRequired[float]  # the share that was asked for


Values: TypeAlias = tuple[OwnValue, PooledValue] | tuple[None, None]


@dataclass(frozen=True, slots=True)
class Answers:
    """One hospital's temperature and threshold, and the pooled ones; None: there is none."""

    temperature: OwnValue | None
    threshold: OwnValue | None
    temperatures: PooledValue | None
    thresholds: PooledValue | None


def options_of(party: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that answers with a hospital's temperature and threshold."""
    temperature, threshold = party["temperature"], party["threshold"]
    return {
        "temperature": 1.0 if temperature is None else temperature["own"],
        "threshold": None if threshold is None else threshold["own"],
    }


async def answers_of(cohort: Cohort, site: Site, name: str, cfg: PersonalSettings) -> Answers:
    """Sum the curves of the used models, and derive this hospital's temperature and threshold."""
    model, nothing = site.delivered[name].model, (None, None)
    outcomes = {
        split: site.outcomes(model, split) for split in ("dev", "test") if getattr(site.silo, split)
    }
    own, pooled = await _temperatures(cohort, site.task, outcomes) if cfg.calibrate else nothing
    if cfg.coverage is None:
        return Answers(own, None, pooled, None)
    T = 1.0 if own is None else own["own"]
    calibrated = {split: (cooled(z, T), batches) for split, (z, batches) in outcomes.items()}
    threshold, thresholds = await _thresholds(cohort, site.task, calibrated, cfg.coverage)
    return Answers(own, threshold, pooled, thresholds)


async def _temperatures(cohort: Cohort, task: Task, outcomes: Outcomes) -> Values:
    """Choose the temperatures of least loss; None if there is no valid sum."""
    curves = LossCurves.of(task, *outcomes["dev"]) if "dev" in outcomes else None
    sums = await (NOTHING if curves is None else curves.sums()).over(cohort)
    if sums is None:
        return None, None
    own: OwnValue = {"pooled": sums.pooled, "own": sums.pooled, "weight": 0.0}
    if curves is not None:
        own["own"], own["weight"] = sums.own(curves), sums.weight(curves)
    if "test" in outcomes:
        named = {"uncalibrated": 1.0, "pooled": own["pooled"], "own": own["own"]}
        test = {name: losses_at(task, *outcomes["test"], T) for name, T in named.items()}
        own["test_loss"] = {name: float(losses.mean()) for name, losses in test.items()}
    return own, PooledValue(pooled=sums.pooled, records=round(sums.records))


async def _thresholds(cohort: Cohort, task: Task, outcomes: Outcomes, coverage: float) -> Values:
    """Choose the largest thresholds with this coverage; None if there is no valid sum."""
    odds = true_odds(task, *outcomes["dev"]) if "dev" in outcomes else None
    sums = await RiskSums.of(odds).over(cohort)
    if sums is None:
        return None, None
    pooled, weight = sums.pooled(coverage), 0.0
    own = pooled
    if odds is not None:
        own, weight = sums.own(odds, coverage), sums.weight(odds, coverage)
    threshold: OwnValue = {"pooled": probability(pooled), "own": probability(own), "weight": weight}
    if "test" in outcomes:
        test = true_odds(task, *outcomes["test"])
        threshold["test_coverage"] = {"pooled": test.coverage(pooled), "own": test.coverage(own)}
    records = round(sums.records)
    return threshold, PooledValue(coverage=coverage, pooled=probability(pooled), records=records)
