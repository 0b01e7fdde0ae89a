"""Federated averaging by Flower's message API, as its PyTorch quickstart writes it."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app.job import Job, take, trained

client = ClientApp()
server = ServerApp()


def site_of(job: Job, context: Context) -> str:
    """Return the site of this node, by its partition."""
    return job.sites[int(context.node_config["partition-id"])]


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train on this site's records."""
    job = Job()
    site, model = site_of(job, context), job.model()
    given = message.content["arrays"].to_numpy_ndarrays()
    take(model, dict(zip(trained(model), given, strict=True)))
    round = int(message.content["config"]["server-round"])
    loss = job.train(model, site, round)
    content = RecordDict(
        {
            "arrays": ArrayRecord(list(job.sent(model, site, round).values())),
            "metrics": MetricRecord({"loss": loss, "num-examples": job.records(site)}),
        }
    )
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Lead the rounds."""
    lead(grid, FedAvg)


def lead(grid: Grid, kind: type[FedAvg]) -> None:
    """Lead the rounds with a strategy, and save the final weights."""
    job = Job()
    model = job.model()
    strategy = kind(
        fraction_evaluate=0.0,
        min_train_nodes=job.enough,
        min_available_nodes=job.enough,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(list(trained(model).values())),
        num_rounds=job.rounds,
    )
    made = result.arrays.to_numpy_ndarrays()
    job.finish(dict(zip(trained(model), made, strict=True)))
