"""A server, as in Flower's NumPy quickstart; two lines differ."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sealed_app.task import initial_model
from secure_fl.integrations.flower import SealedStrategy  # changed

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Lead the rounds."""
    strategy = SealedStrategy(FedAvg(fraction_train=1.0, fraction_evaluate=0.0))  # changed
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_model()),
        num_rounds=int(context.run_config.get("num-server-rounds", 3)),
    )
    print("the server has", list(result.arrays or {}) or "no model: the sites have it")
