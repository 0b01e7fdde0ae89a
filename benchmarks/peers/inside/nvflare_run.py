"""The job on NVFLARE's proof-of-concept deployment: a server and a process for each site."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import tenseal
import torch
from job import Job
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv
from nvflare_model import DOT, Travelling

mode = sys.argv[1]  # plain, he or sealed
job = Job()
given = {
    "name": "job",
    "model": Travelling(),
    "min_clients": job.enough,
    "num_rounds": job.rounds,
    "train_script": str(Path(__file__).parent / "nvflare_client.py"),
}
if mode == "he":
    from nvflare.app_opt.pt.recipes.fedavg_he import FedAvgRecipeWithHE

    recipe = FedAvgRecipeWithHE(**given)
else:
    recipe = FedAvgRecipe(**given)
if mode == "sealed":
    from secure_fl.integrations.nvflare import sealed

    recipe = sealed(recipe, dataset="notes")
if job.wrong in ("tap", "alone"):
    from nvflare_server import Lying

    recipe.add_server_input_filter(Lying(), tasks=["train"])
shapes = {name: values.shape for name, values in Travelling().state_dict().items()}
env = PocEnv(
    num_clients=len(job.sites),
    clients=job.sites,
    use_he=mode == "he",
    extra={"login_timeout": 60},  # seconds until the server must have started
)
run = recipe.execute(env)
result = Path(str(run.get_result(clean_up=False)))
(found,) = result.rglob("FL_global_model.pt")
weights = torch.load(found, weights_only=False)["model"]
if mode == "he":  # what the server kept is sealed: a site opens it
    kit = next(Path(os.environ["NVFLARE_POC_WORKSPACE"]).rglob("client_context.tenseal"))
    context = tenseal.context_from(kit.read_bytes())
    weights = {
        name: np.reshape(tenseal.ckks_vector_from(context, data).decrypt(), shapes[name])
        for name, data in weights.items()
    }
if mode == "sealed":  # only the sites have the model
    from safetensors.torch import load_file

    site = Path(os.environ["SECURE_FL_SITE"].replace("{name}", job.sites[0])).parent
    weights = load_file(next(site.glob("runs/*/model.safetensors")))
job.finish({name.replace(DOT, "."): values for name, values in weights.items()})
