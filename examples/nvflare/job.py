"""NVFLARE's job for federated averaging: the marked lines let the sites sum under seal."""

import sys

from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from secure_fl.integrations.nvflare import SealedSimEnv, sealed  # added

recipe = FedAvgRecipe(
    name="example", model=Net(), min_clients=3, num_rounds=3, train_script="client.py"
)
if "--plain" in sys.argv:
    env = SimEnv(num_clients=3, workspace_root="build/plain")
else:
    env = SealedSimEnv(num_clients=3, workspace_root="build/sealed")  # instead of SimEnv
    recipe = sealed(recipe, means_to_server=True, metrics=["accuracy"])  # added
run = recipe.execute(env)
print("The model is in", run.get_result())
