"""Evaluation as a feature of runs: the check of its settings, and its section of result.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError
from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.hooks import RoundHook

if TYPE_CHECKING:
    from secure_fl.learning.site import Site


class Report(RoundHook):
    """Hook that copies the findings of an evaluation into result.json."""

    def __init__(self, findings: Mapping[str, Any]) -> None:
        self._findings = findings

    def report(self) -> Mapping[str, Any]:
        """Return the findings, the same at all members."""
        return {EVALUATION.section: self._findings or None}


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

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> RoundHook | None:
        """Make the hook that reports the findings."""
        return Report(site.findings) if isinstance(spec.algorithm, Evaluate) else None


EVALUATION = EvaluationFeature()
