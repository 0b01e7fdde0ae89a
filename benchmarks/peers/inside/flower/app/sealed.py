"""Federated averaging over our sums: the client and the strategy of `plain`, wrapped."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app.job import Job, trained
from app.plain import train
from secure_fl.integrations.flower import SealedClientApp, SealedStrategy

client = SealedClientApp()
client.train()(train)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Lead the rounds; the sites have the final weights."""
    job = Job()
    strategy = SealedStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=job.enough, min_available_nodes=job.enough)
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(list(trained(job.model()).values())),
        num_rounds=job.rounds,
    )
