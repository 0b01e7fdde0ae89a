"""Federated averaging under SecAgg+, as Flower's secure-aggregation example writes it."""

from __future__ import annotations

from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from app.job import Job, take, trained
from app.plain import site_of

RANGE = 1.0  # weights of the job lie within


class Site(NumPyClient):
    """A site that trains."""

    def __init__(self, job: Job, site: str) -> None:
        self._job, self._site = job, site

    def fit(self, parameters, config):
        """Train on this site's records."""
        model = self._job.model()
        take(model, dict(zip(trained(model), parameters, strict=True)))
        round = int(config["round"])
        self._job.train(model, self._site, round)
        return (
            list(self._job.sent(model, self._site, round).values()),
            self._job.records(self._site),
            {},
        )


def make_site(context: Context):
    """Make the site of this node."""
    job = Job()
    return Site(job, site_of(job, context)).to_client()


class Kept(FedAvg):
    """Averaging that keeps its last mean."""

    made = None

    def aggregate_fit(self, server_round, results, failures):
        """Average the sites' weights."""
        mean, metrics = super().aggregate_fit(server_round, results, failures)
        self.made = mean if mean is not None else self.made
        return mean, metrics


client = ClientApp(client_fn=make_site, mods=[secaggplus_mod])
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Lead the rounds."""
    lead(grid, context, SecAggPlusWorkflow)


def lead(grid: Grid, context: Context, kind: type[SecAggPlusWorkflow]) -> None:
    """Lead the rounds with a workflow, and save the final weights."""
    job = Job()
    model, sites = job.model(), len(job.sites)
    strategy = Kept(
        fraction_evaluate=0.0,
        min_fit_clients=sites,
        min_available_clients=sites,
        initial_parameters=ndarrays_to_parameters(list(trained(model).values())),
        on_fit_config_fn=lambda round: {"round": round},
    )
    legacy = LegacyContext(
        context=context, config=ServerConfig(num_rounds=job.rounds), strategy=strategy
    )
    shares = kind(num_shares=sites, reconstruction_threshold=sites - 1, clipping_range=RANGE)
    DefaultWorkflow(fit_workflow=shares)(grid, legacy)
    made = parameters_to_ndarrays(strategy.made)
    job.finish(dict(zip(trained(model), made, strict=True)))
