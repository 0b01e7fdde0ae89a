"""Statistics as a feature of runs: the check of its settings, and its section of result.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError
from secure_fl.features.statistics.codebook import Codebook
from secure_fl.federation.run_feature import RunFeature
from secure_fl.federation.run_spec import RunSpec

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

LEAST_BITS = 8


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

    def report(self, spec: RunSpec, sites: Sequence[Site]) -> Mapping[str, Any]:
        """Return the released tables, which are equal at all members."""
        if not isinstance(spec.algorithm, Codebook):
            return {}
        return {self.section: sites[0].findings.get("statistics")}


STATISTICS = StatisticsFeature()
