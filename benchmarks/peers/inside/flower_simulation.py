"""The Flower app of the comparison on Flower's simulation engine, which is Ray."""

from __future__ import annotations

from app.job import Job
from app.plain import client, server
from flwr.simulation import run_simulation

run_simulation(
    server_app=server,
    client_app=client,
    num_supernodes=len(Job().sites),
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
