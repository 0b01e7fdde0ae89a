"""Statistics as a feature of runs: the check of its settings, and its section of result.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError
from secure_fl.features.statistics.codebook import Codebook
from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.hooks import RoundHook

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

LEAST_BITS = 8


class Report(RoundHook):
    """Hook that copies the released tables into result.json."""

    def __init__(self, findings: Mapping[str, Any]) -> None:
        self._findings = findings

    def report(self) -> Mapping[str, Any]:
        """Return the tables, the same at all members."""
        return {STATISTICS.section: self._findings.get("statistics")}


class StatisticsFeature(RunFeature):
    """The checks of a run that opens a codebook."""

    section = "statistics"

    def check(self, spec: RunSpec) -> None:
        """Refuse settings that a codebook cannot work with."""
        if not isinstance(spec.algorithm, Codebook):
            return
        if spec.protection.bits < LEAST_BITS:
            raise SettingsError(
                f"counts need {LEAST_BITS} bits, and the sums have {spec.protection.bits}",
                fix=f"set protection.bits = {LEAST_BITS}",
                field="protection.bits",
            )
        for field, wrong in {
            "training.dp": spec.training.dp is not None,
            "protection.noise": spec.protection.noise is not None,
        }.items():
            if wrong:
                raise SettingsError(
                    "this noise is for training or predictions, and a codebook has neither",
                    fix=f"remove {field}, and set algorithm.epsilon for noise on counts",
                    field=field,
                )

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> RoundHook | None:
        """Make the hook that reports the tables."""
        return Report(site.findings) if isinstance(spec.algorithm, Codebook) else None


STATISTICS = StatisticsFeature()
