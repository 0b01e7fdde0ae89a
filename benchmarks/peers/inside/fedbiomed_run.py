"""The researcher's script: waits for all nodes, leads the rounds, and saves the final weights."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedbiomed.researcher.aggregators.fedavg import FedAverage
from fedbiomed.researcher.federated_workflows import Experiment
from fedbiomed_lying import LyingAverage, listening
from fedbiomed_plan import TAG, Plan
from job import Job, trained

job, secagg = Job(), sys.argv[1] == "secagg"
reads, begun = job.wrong in {"tap", "alone"}, Path("begun")
if begun.exists():  # the script was restarted after a kill
    experiment = Experiment.load_breakpoint()
    experiment.set_round_limit(job.rounds)
else:
    experiment = Experiment(
        tags=[TAG],
        training_plan_class=Plan,
        training_args={
            "epochs": 1,
            "loader_args": {"batch_size": job.batch_size, "shuffle": False},
            "share_persistent_buffers": False,
        },
        round_limit=job.rounds,
        aggregator=LyingAverage(job) if reads else FedAverage(),
        retain_full_history=False,
        secagg=listening(job) if secagg and reads else secagg,
        save_breakpoints=bool(job.wrong),
    )
    while len(experiment.training_data().node_ids()) < len(job.sites):
        time.sleep(1.0)
        experiment.set_training_data(None, from_tags=True)
    begun.touch()
experiment.run()
*_, last = experiment.aggregated_params().values()
names = trained(job.model())
job.finish({name: last["params"][name].numpy() for name in names})
