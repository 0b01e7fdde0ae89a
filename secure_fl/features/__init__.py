"""The table of optional features.

The core imports nothing from the folders below: it looks features up here, by the kind of thing
that they add, and imports them on first use. To remove a feature, delete its folder and its entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Feature(NamedTuple):
    """The places where one feature joins the core, each as "module:name"; "" adds nothing."""

    run: str = ""  # a `federation.run_feature.RunFeature`: checks and hooks of a run
    algorithm: str = ""  # an `algorithms.base.Entry`
    model_part: str = ""  # a `learning.models.ModelPart`
    exports: Mapping[str, str] = {}  # names in `secure_fl`, with the module that defines each


FEATURES: Mapping[str, Feature] = {
    "guard": Feature(run="secure_fl.features.guard.feature:GUARD"),
    "pooled_scores": Feature(run="secure_fl.features.pooled_scores.feature:POOLED_SCORES"),
    "evaluation": Feature(
        run="secure_fl.features.evaluation.feature:EVALUATION",
        algorithm="secure_fl.features.evaluation.algorithm:ENTRY",
        exports={
            "Evaluation": "secure_fl.features.evaluation.evaluation",
            "evaluate": "secure_fl.features.evaluation.evaluation",
        },
    ),
    "adapters": Feature(model_part="secure_fl.features.adapters:part"),
    "batched_simulation": Feature(
        exports={"BatchedTraining": "secure_fl.features.batched_simulation.trainer"}
    ),
    "tuning": Feature(exports={"tune": "secure_fl.features.tuning.tuning"}),
}


def load(kind: str) -> dict[str, Any]:
    """Import the objects of one kind, such as "run", by feature, in the table's order."""
    places = {name: getattr(feature, kind) for name, feature in FEATURES.items()}
    return {name: _resolve(place) for name, place in places.items() if place}


def _resolve(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
