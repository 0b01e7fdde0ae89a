"""Recipes of NVFLARE whose results are sealed sums, and a simulation with keys for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.recipe import SimEnv
from nvflare.recipe.spec import Recipe

from secure_fl.errors import SettingsError
from secure_fl.features.scripts.algorithm import Script
from secure_fl.integrations.nvflare.client import TRAIN, SealedResult, SealedTask
from secure_fl.integrations.nvflare.server import COMPONENT, SealedAggregator, SealedServer
from secure_fl.integrations.sandbox import Sandbox
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.plan import Plan
from secure_fl.settings import ProtectionSettings

PROTECTION = ProtectionSettings(bits=16)  # whole models, not only small changes
DATASET = "nvflare"
R = TypeVar("R", bound=Recipe)


def sealed(
    recipe: R,
    *,
    means_to_server: bool = False,
    metrics: Sequence[str] = (),
    values: Mapping[str, Sequence[int]] | None = None,
    dataset: str = DATASET,
) -> R:
    """Let the sites of a FedAvg recipe sum under seal.

    Args:
        recipe: The recipe, with its default aggregation.
        means_to_server: The server reads the mean of each round, and sends it as the next model.
            Default: only the sites have the model. Sites must allow it.
        metrics: Names of the script's metrics that are averaged, too.
        values: Name and shape of each parameter. Default: those of the recipe's model.
        dataset: Name of the records at the sites.

    """
    shapes = {name: tuple(s) for name, s in (values or shapes_of(recipe)).items()}
    controller = _workflow(recipe)
    _require_no_lost_option(controller, metrics if means_to_server else ())
    algorithm = Script(
        rounds=controller.num_rounds,
        values={**shapes, **dict.fromkeys(metrics, ())},
        means_to_coordinator=means_to_server,
    )
    plan = Plan(algorithm=algorithm, protection=PROTECTION, dataset=dataset)
    controller.aggregator = SealedAggregator(tuple(metrics))
    job = recipe._job
    job.sealed = plan
    job.set_app_packages([*job.job.app_packages, "secure_fl"])  # of each machine, not of the job
    job.to_server(SealedServer(write_plan(plan)), id=COMPONENT)
    recipe.add_client_input_filter(SealedTask(), tasks=[TRAIN])
    recipe.add_client_output_filter(SealedResult(), tasks=[TRAIN])
    return recipe


def shapes_of(recipe: Any) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a recipe's model."""
    model: Any = getattr(recipe, "model", None)
    model = model.state_dict() if hasattr(model, "state_dict") else model
    if isinstance(model, Mapping) and all(hasattr(value, "shape") for value in model.values()):
        return {name: tuple(value.shape) for name, value in model.items()}
    what = "this recipe has no model whose parameters could be listed"
    fix = "give their names and shapes: sealed(recipe, values={...})"
    raise SettingsError(what, fix=fix, field="values")


def _workflow(recipe: Recipe) -> FedAvg:
    """Return the recipe's workflow, which must be one that needs only the mean."""
    app = recipe._job._deploy_map["server"].app_config
    found = [one.controller for one in app.workflows]
    if len(found) == 1 and isinstance(found[0], FedAvg) and found[0].aggregator is None:
        return found[0]
    names = ", ".join(type(one).__name__ for one in found)
    what = f"the workflow of this recipe ({names}) needs more than the mean of the sites"
    fix = "use a FedAvg recipe without an aggregator of its own"
    raise SettingsError(what, fix=fix, field="recipe")


def _require_no_lost_option(controller: FedAvg, metrics: Sequence[str]) -> None:
    """Refuse options of the workflow that sealed sums would ignore; `metrics`: the server's."""
    if controller.exclude_vars:
        option, why = "exclude_vars", "sealed sums average every parameter of the model"
    elif controller.aggregation_weights:
        option, why = "aggregation_weights", "sites are weighted by the steps that they report"
    elif controller.stop_condition and (key := controller.stop_condition[0]) not in metrics:
        option, why = "stop_cond", f"the server does not get {key!r}"
    else:
        return
    fix = f"omit {option}"
    if option == "stop_cond":
        fix = f"use sealed(recipe, means_to_server=True, metrics=[{key!r}]), or {fix}"
    what = f"the recipe has {option}, which would have no effect: {why}"
    raise SettingsError(what, fix=fix, field=option)


class SealedSimEnv(SimEnv):  # type: ignore[misc]
    """NVFLARE's simulator, with keys, rules and services that are made for one simulation."""

    def deploy(self, job: Any) -> Any:
        """Start a service for each site, and simulate."""
        plan = getattr(job, "sealed", None)
        if plan is None:
            raise SettingsError("this recipe is not sealed", fix="pass sealed(recipe)")
        names = self.clients or [f"site-{k + 1}" for k in range(self.num_clients)]
        with Sandbox(Path(self.workspace_root).absolute() / f"{job.name}-keys", names, plan):
            return super().deploy(job)
