"""Fed-BioMed's aggregation with a lie: it eavesdrops, or adds one node alone."""

from __future__ import annotations

from itertools import count

import numpy as np
from fedbiomed.researcher.aggregators.fedavg import FedAverage
from fedbiomed.researcher.secagg import LomSecureAggregation, SecureAggregation


class LyingAverage(FedAverage):
    """Saves each node's weights; with the lie `alone` it uses one node's only."""

    def __init__(self, job):
        super().__init__()
        self._job, self._rounds = job, count(1)

    def aggregate(self, model_params, weights, *rest, **named):
        """Save each before the sum."""
        number = next(self._rounds)
        for place, held in enumerate(model_params.values()):
            arrays = {name: np.asarray(values) for name, values in held.items()}
            self._job.tap(number, place, arrays)
        if self._job.wrong == "alone":
            node = min(model_params)
            model_params, weights = {node: model_params[node]}, {node: 1.0}
        return super().aggregate(model_params, weights, *rest, **named)


class ListeningSecagg(LomSecureAggregation):
    """Saves each node's masked values; with the lie `alone` it opens one node's only."""

    job = None
    rounds = count(1)

    def aggregate(self, *rest, model_params, total_sample_size, encryption_factors, **named):
        """Save each before the sum."""
        number = next(self.rounds)
        for place, held in enumerate(model_params.values()):
            self.job.tap(number, place, {"0": np.array(held, float)})
        if self.job.wrong == "alone":
            node = min(model_params)
            model_params = {node: model_params[node]}
        named |= {"total_sample_size": total_sample_size, "encryption_factors": encryption_factors}
        return super().aggregate(*rest, model_params=model_params, **named)


def listening(job):
    """Make secure aggregation that eavesdrops."""
    ListeningSecagg.job, made = job, SecureAggregation()
    made._SecureAggregation__secagg = ListeningSecagg()
    return made
