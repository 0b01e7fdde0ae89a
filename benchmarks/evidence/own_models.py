"""Scores of hospitals' own models as rows of a table, from a run's [personal] section."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

BELOW = "below"  # 1 at a hospital where a model is significantly below training alone
SPLITS = ("dev", "test")
MODELS = {"": "model", "personal": "personal", "alone": "alone"}  # a row's model -> the run's
SERVED = "served"
NAMES = {"model": "shared"}  # of models, in differences

Scores = dict[str, dict[str, float]]  # "model/split" -> metric -> value


def with_own_models(metrics: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Add each hospital's own models, and whether a model is below training alone, to scores."""
    added = {name: scores_of(own) for name, own in section["party"].items() if own["dev"]}
    mean = {
        place: {name: fmean(own[place][name] for own in added.values() if place in own)
                for name in next(own[place] for own in added.values() if place in own)}
        for place in dict.fromkeys(place for own in added.values() for place in own)
    }  # fmt: skip
    return {
        which: {
            **one,
            "party": {
                name: _merged(own, added.get(name, {})) for name, own in one["party"].items()
            },
            "mean": _merged(one["mean"], mean),
        }
        for which, one in metrics.items()
    }


def scores_of(own: Mapping[str, Any]) -> Scores:
    """List one hospital's scores by model and split; `served` is the model that it uses."""
    found: Scores = {}
    for split in SPLITS:
        scores, apart = own[split], own["differences"].get(split, {})
        for row, model in {**MODELS, SERVED: own["use"]}.items() if scores else ():
            if model not in scores:
                continue
            difference = apart.get(f"{NAMES.get(model, model)} - alone")
            below = difference is not None and difference["interval"][1] < 0
            place = f"{row}/{split}" if row else split
            found[place] = {own["metric"]: scores[model], BELOW: float(below)}
    return found


def _merged(scores: Mapping[str, Any], added: Scores) -> dict[str, Any]:
    return {
        place: {**scores.get(place, {}), **added.get(place, {})} for place in {**scores, **added}
    }
