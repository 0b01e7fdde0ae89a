"""Flower's servers with a lie: they eavesdrop, or add one site alone."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app.job import Job
from app.plain import lead as lead_plain
from app.secagg import lead as lead_secagg

plain = ServerApp()
secagg = ServerApp()


class LyingFedAvg(FedAvg):
    """Saves each site's weights; with the lie `alone` it uses one site's only."""

    def aggregate_train(self, server_round, replies):
        """Save each before the sum."""
        job, replies = Job(), list(replies)
        for number, reply in enumerate(replies):
            arrays = reply.content["arrays"].to_numpy_ndarrays()
            job.tap(server_round, number, {str(at): values for at, values in enumerate(arrays)})
        return super().aggregate_train(server_round, replies[: 1 if job.wrong == "alone" else None])


class Listening:
    """A grid that saves the masked vectors."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._job = grid, Job()

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, **rest):
        """Save the replies."""
        replies = list(self._grid.send_and_receive(messages, **rest))
        for number, reply in enumerate(replies):
            if (held := masked(reply)) is not None:
                round = int(reply.metadata.group_id)
                self._job.tap(round, number, {str(at): v for at, v in enumerate(held)})
        return replies


def masked(reply: Message) -> list[np.ndarray] | None:
    """Return the masked vectors of a reply, without the first, the site's weight."""
    if reply.has_error() or RECORD_KEY_CONFIGS not in reply.content.config_records:
        return None
    found = reply.content.config_records[RECORD_KEY_CONFIGS].get(Key.MASKED_PARAMETERS)
    return None if found is None else [bytes_to_ndarray(data) for data in found][1:]


class FirstAlone:
    """A grid that returns one site's answer only."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def send_and_receive(self, messages, **rest):
        """Return the first answer."""
        return list(self._grid.send_and_receive(messages, **rest))[:1]


class LyingSecAgg(SecAggPlusWorkflow):
    """Eavesdrops; with the lie `alone` it declares all sites but one lost."""

    def __call__(self, grid, context):
        """Run the protocol over an eavesdropping grid."""
        super().__call__(Listening(grid), context)

    def collect_masked_vectors_stage(self, grid, context, state):
        """Use the masked vector of one site as the sum."""
        if Job().wrong != "alone":
            return super().collect_masked_vectors_stage(grid, context, state)
        super().collect_masked_vectors_stage(FirstAlone(grid), context, state)
        return True

    def _check_threshold(self, state):
        return True if Job().wrong == "alone" else super()._check_threshold(state)


@plain.main()
def main_plain(grid: Grid, context: Context) -> None:
    """Lead the rounds."""
    lead_plain(grid, LyingFedAvg)


@secagg.main()
def main_secagg(grid: Grid, context: Context) -> None:
    """Lead the rounds."""
    lead_secagg(grid, context, LyingSecAgg)
