"""Flower's simulation of this app on one machine, with keys and a service for each site."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flwr.simulation import run_simulation

from secure_fl.integrations.sandbox import Sandbox
from secure_fl.pilot.plan import load_plan, write_plan

HERE = Path(__file__).parent
SITES = ("site-0", "site-1", "site-2")

sys.path.insert(0, str(HERE))
from sealed_app import client_app, server_app  # noqa: E402

if __name__ == "__main__":
    plan = load_plan(HERE / "plan.toml")
    with Sandbox(Path("sealed-flower"), SITES, plan) as sandbox:
        (sandbox.folder / "server" / "plan.toml").write_text(write_plan(plan))
        sockets = os.environ["SECURE_FL_SITE"]
        os.environ["SECURE_FL_SITE"] = sockets.replace("{name}", "site-{partition-id}")
        run_simulation(server_app.app, client_app.app, num_supernodes=len(SITES))
        print(f"the model: {sandbox.folder}/site-0/runs/{plan.run.name}/model.safetensors")
