"""Training of a hospital's own models: the personal one and the one that it trains alone.

One loop serves all methods. They differ in the values that are trained and in the pull towards the
shared model:

    finetune   all trained values                 no pull    Personal FL, FedAvg + fine-tuning
    ditto      all trained values                 λ/2·‖v − w‖²
    head       output layer and norms             no pull    FedPer (1912.00818), FedBN (2102.07623)
    adapter    a new adapter and the output layer no pull    dual adapters: one summed, one kept

Ditto: Li, Hu, Beirami, Smith, ICML 2021, arXiv 2012.04221, objective h_k. Differs: it is solved
after the last round, from the final shared model w, not in turns with the rounds. FedPer and FedBN
keep their values at the hospital during the run; here the shared model has them too.

Nothing here is sent, and nothing is trained by DP-SGD.
"""

from __future__ import annotations

from copy import copy, deepcopy

import torch
from torch import Tensor, nn

from secure_fl.algorithms.layers import head_names
from secure_fl.errors import ModelError
from secure_fl.events import EventLog
from secure_fl.features.personal.settings import PersonalSettings
from secure_fl.federation.run_spec import RunSpec
from secure_fl.learning.anatomy import is_norm, trainable
from secure_fl.learning.learning_rates import ALONE
from secure_fl.learning.local_training import Objective, fit, make_optimizer, task_loss
from secure_fl.learning.models import model_parts
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.seeds import seed_for
from secure_fl.settings import AdapterSettings, ModelSettings


def unlogged(site: Site) -> Site:
    """Copy a site so that it trains without DP-SGD and without events; records are shared."""
    own, training = copy(site), site.training
    own.train = site.train  # tokenised once
    size = site.at_once(training.batch_size)
    if training.dp is not None and training.dp.physical_batch is not None:
        size = min(size, training.dp.physical_batch)
    own.training = training.model_copy(update={"dp": None, "batch_size": size})
    own.recorder = EventLog(site.name)
    return own


def personal_model(site: Site, shared: nn.Module, cfg: PersonalSettings) -> nn.Module:
    """Train this hospital's copy of the shared model."""
    model = trained_part(site, shared, cfg)
    site = unlogged(site)
    _fit(site, model, cfg.epochs, cfg.pull if cfg.method == "ditto" else 0.0)
    return model


def alone_model(site: Site, spec: RunSpec, cfg: PersonalSettings) -> nn.Module:
    """Train a model on the own records alone, with as many passes as the run and `cfg` together."""
    rounds = min(spec.algorithm.rounds, site.recorder.round - 1)  # fewer with patience
    site = unlogged(site)
    model: nn.Module = site.model()
    _fit(site, model, rounds * spec.algorithm.epochs + cfg.epochs)
    return model


def _fit(site: Site, model: nn.Module, epochs: int, pull: float = 0.0) -> None:
    """Train with one schedule over all passes; `pull`: towards the model's present values."""
    objective = pulled(task_loss(site), model, pull) if pull else None
    optimizer = make_optimizer(model, site.training, alone=True)
    fit(site, model, epochs, ALONE, objective, optimizer=optimizer)
    model.eval()


def trained_part(site: Site, shared: nn.Module, cfg: PersonalSettings) -> nn.Module:
    """Copy the shared model, and select the values that the method trains."""
    if cfg.method in ("finetune", "ditto"):
        return deepcopy(shared)
    part = model_parts().get("adapter")
    plain = deepcopy(shared) if part is None else part.merged(shared)
    if cfg.method == "adapter":
        if part is None:
            raise ModelError(
                "there are no adapters here",
                field="personal.method",
                fix='set personal.method = "finetune"',
            )
        adapter = AdapterSettings(rank=cfg.rank, targets="linear")
        spec = ModelSettings(pretrained=False, adapter=adapter)  # no checkpoint has its base
        body = getattr(plain, "backbone", plain)  # a head of ours is around it
        part.add(body, spec, seed_for(site.seed, site.name, "personal"), ())
        return plain
    heads = head_names(shared)
    norms = {id(p) for m in plain.modules() if is_norm(m) for p in m.parameters()}
    for name, value in plain.named_parameters():
        value.requires_grad_(name in heads or id(value) in norms)
    return plain


def pulled(loss: Objective, model: nn.Module, pull: float) -> Objective:
    """Add λ/2 times the squared distance from the model's present values to a loss."""
    values = list(trainable(model).values())
    anchor = [value.detach().clone() for value in values]

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        distance = torch.stack([
            (value - at).square().sum() for value, at in zip(values, anchor, strict=True)
        ]).sum()  # fmt: skip
        return loss(model, batch) + pull / 2 * distance

    return objective
