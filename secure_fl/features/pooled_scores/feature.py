"""Pooled scores as a feature of runs: the check of `training.patience`, and the hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl.errors import SettingsError
from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.hooks import RoundHook

if TYPE_CHECKING:
    from secure_fl.learning.site import Site


class PooledScoresFeature(RunFeature):
    """The sum of dev and test counts at the end of each round."""

    def check(self, spec: RunSpec) -> None:
        """Refuse early stopping in a run that does not sum scores."""
        if spec.training.patience is not None and not pools_scores(spec):
            raise SettingsError(
                "a run can wait for a better score only if it sums the scores of all hospitals: "
                "not with a host, with noise on predictions, or if the algorithm sums nothing",
                fix="remove training.patience, and set training.pooled_scores = true if it is not",
                field="training.patience",
            )

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> RoundHook | None:
        """Make the hook that sums the site's counts."""
        from secure_fl.features.pooled_scores.pooling import Pooling

        if not pools_scores(spec):
            return None
        return Pooling(site.scores, site.recorder, spec.training.patience)


def pools_scores(spec: RunSpec) -> bool:
    """Return true if the parties' dev and test counts are summed at the end of each round.

    A host measures the central model on its own records and learns nothing from sums for the
    parties. In a run with noise on predictions, every sum carries noise.
    """
    alone = spec.entry.has_host or spec.entry.sums_nothing
    return spec.training.pooled_scores and not alone and spec.protection.noise is None


POOLED_SCORES = PooledScoresFeature()
