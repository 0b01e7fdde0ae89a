"""Pooled scores as a feature of runs: the hook, which can also end a run early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.hooks import RoundHook

if TYPE_CHECKING:
    from secure_fl.learning.site import Site


class PooledScoresFeature(RunFeature):
    """The sum of dev and test counts at the end of each round."""

    def stops_early(self, spec: RunSpec) -> bool:
        """Return true if there are sums of scores to wait for."""
        return pools_scores(spec)

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
