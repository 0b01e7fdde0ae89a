"""Adapters as a feature of runs: the check of the kinds that an algorithm can train."""

from __future__ import annotations

from secure_fl.errors import SettingsError
from secure_fl.federation.run_feature import RunFeature
from secure_fl.federation.run_spec import RunSpec
from secure_fl.settings import ModelSettings


class AdapterFeature(RunFeature):
    """The checks of a run whose model has adapters."""

    def check_model(self, spec: RunSpec, model: ModelSettings) -> None:
        """Refuse adapters that the algorithm or DP-SGD cannot train."""
        name, kinds = spec.algorithm.name, spec.entry.adapters
        kind = None if model.adapter is None else model.adapter.kind
        if kind is not None and kind not in kinds:
            able = ", ".join(kinds) or "no adapters at all"
            raise SettingsError(
                f"{name} cannot train adapters of the kind {kind!r}; it takes {able}",
                fix="choose another kind, remove [model.adapter], or use fedavg, which takes all "
                "kinds",
                field="model.adapter.kind",
            )
        if kind == "dora" and spec.training.dp is not None:
            raise SettingsError(
                "DP-SGD cannot bound the influence of a record on the magnitudes of dora",
                fix='set model.adapter.kind = "lora", "ffa" or "exact", or remove training.dp',
                field="model.adapter.kind",
            )


ADAPTERS = AdapterFeature()
