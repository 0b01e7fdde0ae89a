"""Fed-BioMed's own aggregation with a lie: it listens, adds one node alone, or opens each."""

from __future__ import annotations

from itertools import count

import numpy as np
from fedbiomed.researcher.aggregators.fedavg import FedAverage
from fedbiomed.researcher.secagg import LomSecureAggregation, SecureAggregation


class LyingAverage(FedAverage):
    """Keeps each node's weights as they come; where it is to, it takes one node's for all."""

    def __init__(self, job):
        super().__init__()
        self._job, self._rounds = job, count(1)

    def aggregate(self, model_params, weights, *rest, **named):
        """Look at each before they are added."""
        number = next(self._rounds)
        for place, held in enumerate(model_params.values()):
            arrays = {name: np.asarray(values) for name, values in held.items()}
            self._job.tap(number, place, arrays)
        if self._job.wrong == "alone":
            node = min(model_params)
            model_params, weights = {node: model_params[node]}, {node: 1.0}
        return super().aggregate(model_params, weights, *rest, **named)


class ListeningSecagg(LomSecureAggregation):
    """Keeps each node's masked values as they come; where it is to, it opens one node's alone."""

    job = None
    rounds = count(1)

    def aggregate(self, *rest, model_params, total_sample_size, encryption_factors, **named):
        """Look at each before they are added."""
        number = next(self.rounds)
        for place, held in enumerate(model_params.values()):
            self.job.tap(number, place, {"0": np.array(held, float)})
        if self.job.wrong == "alone":
            node = min(model_params)
            model_params = {node: model_params[node]}
        named |= {"total_sample_size": total_sample_size, "encryption_factors": encryption_factors}
        return super().aggregate(*rest, model_params=model_params, **named)


def listening(job):
    """Secure aggregation for an experiment, which listens."""
    ListeningSecagg.job, made = job, SecureAggregation()
    made._SecureAggregation__secagg = ListeningSecagg()
    return made
