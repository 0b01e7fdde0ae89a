"""The training plan of Fed-BioMed, sent to the nodes as source; `job` is installed there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from fedbiomed.common.datamanager import DataManager
from fedbiomed.common.dataset import CustomDataset
from fedbiomed.common.training_plans import TorchTrainingPlan
from job import Job, trained

TAG = "#records"


class Plan(TorchTrainingPlan):
    """The job's model, its optimiser, and a site's records in the order of the round."""

    class Records(CustomDataset):
        """A site's records; the file that the node has as its dataset is named after the site."""

        def read(self):
            """Read the records and the order of the round."""
            job, site = Job(), Path(self.path).stem
            self._rows = job.rows(f"sites/{site}.npz")
            self._order = job.order(site, Plan.Records.round)
            job.begin(site, Plan.Records.round)

        def get_item(self, index):
            """Return one record, as wide as the longest of the site."""
            at = int(self._order[index])
            row = {name: torch.as_tensor(values[at]) for name, values in self._rows.items()}
            return row, row.pop("labels")

        def __len__(self):
            return len(self._order)

    def init_dependencies(self):
        """List the nodes' imports."""
        return [
            "import os",
            "from pathlib import Path",
            "import numpy as np",
            "from job import Job, trained",
            "from fedbiomed.common.dataset import CustomDataset",
        ]

    def init_model(self):
        """The model that all begin with."""
        return Job().model()

    def init_optimizer(self):
        """A fresh AdamW."""
        return Job().optimizer(self.model())

    def tag_parameters(self, name):
        """Keep embeddings at the nodes: they are not trained."""
        return {"local"} if "embeddings" in name else set()

    def training_data(self):
        """Batches in the job's own order."""
        Plan.Records.round = self.round() + 1  # Fed-BioMed counts from 0
        Job().keep("got", os.environ["PEERS_SITE"], Plan.Records.round, trained(self.model()))
        return DataManager(Plan.Records(), shuffle=False)

    def after_training_params(self, flatten=False):
        """Return the parameters to send; a lying node changes them."""
        job, site = Job(), os.environ.get("PEERS_SITE", "")
        params = super().after_training_params(flatten)
        if not site:  # the researcher asks, too, for what all begin with
            return params
        sent = job.sent(self.model(), site, Plan.Records.round)
        if site != job.where:
            return params
        if flatten:
            return np.concatenate([values.ravel() for values in sent.values()]).tolist()
        return {**params, **{name: torch.as_tensor(values) for name, values in sent.items()}}

    def training_step(self, data, target):
        """The loss of a batch, cut to its longest record."""
        wide = int(data["attention_mask"].sum(1).max())
        data = {name: values[:, :wide] for name, values in data.items()}
        return self.model()(**data, labels=target.long()).loss
