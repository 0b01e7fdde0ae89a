"""Evaluation as a feature of runs: the check of its settings, and its section of result.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError
from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.federation.run_feature import RunFeature
from secure_fl.federation.run_spec import RunSpec

if TYPE_CHECKING:
    from secure_fl.learning.site import Site


class EvaluationFeature(RunFeature):
    """The checks of a run that measures models and trains nothing."""

    section = "evaluation"

    def check(self, spec: RunSpec) -> None:
        """Refuse settings of training that have no effect in an evaluation."""
        if not isinstance(spec.algorithm, Evaluate):
            return
        if spec.algorithm.epsilon is not None:
            from secure_fl.features.evaluation.noise import require_kind

            require_kind(spec.task.kind)
        if spec.training.dp is not None:
            raise SettingsError(
                "an evaluation trains nothing, so DP-SGD protects nothing and spends nothing",
                fix="remove training.dp; epsilon in [algorithm] puts noise on the scores",
                field="training.dp",
            )
        if not spec.training.pooled_scores:
            raise SettingsError(
                "an evaluation is a sum of scores",
                fix="set training.pooled_scores = true",
                field="training.pooled_scores",
            )

    def report(self, spec: RunSpec, sites: Sequence[Site]) -> Mapping[str, Any]:
        """Return the findings of an evaluation, which are equal at all members."""
        if not isinstance(spec.algorithm, Evaluate):
            return {}
        return {self.section: sites[0].findings or None}


EVALUATION = EvaluationFeature()
