"""Federated averaging by SubstraFL in its local mode: a process of its own for each task.

Each site is an organisation of a client's own, as in the project's first example; aggregation runs
at one more. A site's state (model, round) is written to disk after each task, and read before the
next. Sites train once more after the last aggregation, because that is how the strategy is made.
"""

import shutil
from pathlib import Path

import torch
from job import Job, trained
from substra import Client
from substra.sdk.schemas import DataSampleSpec, DatasetSpec, Permissions
from substrafl.algorithms.pytorch import TorchFedAvgAlgo
from substrafl.dependency import Dependency
from substrafl.experiment import execute_experiment
from substrafl.index_generator import NpIndexGenerator
from substrafl.model_loading import download_algo_state
from substrafl.nodes import AggregationNode, TrainDataNode
from substrafl.strategies import FedAvg

HERE = Path(__file__).parent


class Rows(torch.utils.data.Dataset):
    """A site's records; the job knows in which order they come."""

    def __init__(self, data_from_opener, is_inference):
        self.site, self._rows = data_from_opener["site"], data_from_opener["rows"]

    def __len__(self):
        return len(self._rows["labels"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self._rows.items()}


class Learner(TorchFedAvgAlgo):
    """The job's training, in the place of the library's loop over batches."""

    def __init__(self):
        model = Job().model()
        super().__init__(
            model=model,
            criterion=torch.nn.CrossEntropyLoss(),
            optimizer=torch.optim.SGD(model.parameters(), 0.0),  # the job has its own
            index_generator=NpIndexGenerator(batch_size=1, num_updates=1),
            dataset=Rows,
            seed=0,
            disable_gpu=True,
        )
        self.round = 0

    def _local_train(self, train_dataset):
        self.round += 1
        next(self._index_generator)  # which is checked to have moved
        Job().train(self._model, train_dataset.site, self.round)

    def _get_state_to_save(self):
        return super()._get_state_to_save() | {"round": self.round}

    def _update_from_checkpoint(self, path):
        found = super()._update_from_checkpoint(path)
        self.round = found.pop("round")
        return found


def node(site, allowed):
    """An organisation with one site's records."""
    client = Client(client_name=site)
    rights = Permissions(public=False, authorized_ids=[allowed])
    about = DatasetSpec(
        name=site,
        data_opener=HERE / "opener.py",
        description=HERE / "records.md",
        permissions=rights,
        logs_permission=rights,
    )
    dataset = client.add_dataset(about)
    folder = job.out / "records" / site
    folder.mkdir(parents=True)
    shutil.copy(job.folder / "sites" / f"{site}.npz", folder)
    sample = client.add_data_sample(DataSampleSpec(data_manager_keys=[dataset], path=folder))
    organisation = client.organization_info().organization_id
    return client, TrainDataNode(organisation, dataset, [sample])


if __name__ == "__main__":
    job = Job()
    server = Client(client_name="server")
    name = server.organization_info().organization_id
    clients, nodes = zip(*(node(site, name) for site in job.sites), strict=True)
    plan = execute_experiment(
        client=server,
        strategy=FedAvg(algo=Learner(), metric_functions={}),
        train_data_nodes=list(nodes),
        aggregation_node=AggregationNode(name),
        num_rounds=job.rounds,
        experiment_folder=job.out / "experiment",
        dependencies=Dependency(pypi_dependencies=[]),
        clean_models=False,
    )
    server.wait_compute_plan(plan.key)
    found = download_algo_state(client=clients[0], compute_plan_key=plan.key)
    job.finish(trained(found.model))
