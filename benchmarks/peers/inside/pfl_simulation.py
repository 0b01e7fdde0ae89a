"""Federated averaging simulated by pfl, as its PyTorch examples set it up."""

from __future__ import annotations

import time

import torch
from job import Job, batch, trained
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

job, device = Job(), get_default_device()


class Records(Dataset):
    """A site's records, in the order of the round."""

    round = 1

    def __init__(self, site: str) -> None:
        self._site, self._rows = site, job.rows(f"sites/{site}.npz")
        super().__init__(tuple(self._rows.values()), user_id=site)

    def iter(self, batch_size):
        """The round's batches."""
        for picked in job.order(self._site, Records.round).split(batch_size):
            given = batch(self._rows, picked)
            yield {name: rows.to(device) for name, rows in given.items()}


class Learner(torch.nn.Module):
    """A model with pfl's interface: a loss, and metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.model = job.model()

    def loss(self, **given):
        """The loss of a batch."""
        self.train()
        return self.model(**given).loss

    def metrics(self, **given):
        """Return nothing: the job is scored afterwards."""
        return {}


class Rounds(TrainingProcessCallback):
    """Notes when rounds end, and counts them."""

    def __init__(self) -> None:
        self.begins = [time.time()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Record the begin of the next round."""
        self.begins.append(time.time())
        Records.round += 1
        return False, Metrics()


users = {site: Records(site) for site in job.sites}
turn = iter(())


def next_user():
    """Return the next site, in turns."""
    global turn
    for site in turn:
        return site
    turn = iter(job.sites)
    return next(turn)


learner = Learner()
moving = [p for p in learner.parameters() if p.requires_grad]
model = PyTorchModel(
    model=learner,
    local_optimizer_create=lambda _, lr: torch.optim.AdamW(
        moving, lr=lr, weight_decay=0.01, fused=True
    ),
    central_optimizer=torch.optim.SGD(moving, 1.0),
)
rounds = Rounds()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=job.rounds,
        evaluation_frequency=10**9,
        train_cohort_size=len(job.sites),
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(
        training_data=FederatedDataset(users.__getitem__, next_user), val_data=None
    ),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=job.learning_rate,
        local_batch_size=job.batch_size,
        local_max_grad_norm=1.0,
    ),
    callbacks=[rounds],
)
job.finish(trained(learner.model))
job.note_rounds(rounds.begins)
