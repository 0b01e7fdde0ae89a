"""Federated SGD: every step is on records of all hospitals, by one sum.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, arXiv 1602.05629, FederatedSGD in Sec. 2. Under DP it is
DP-FedSGD of McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language
Models. ICLR 2018, arXiv 1710.06963, for records instead of users.

The sum of a step does not depend on how records are spread over the hospitals. It suits adapters
and heads, because each step sends as many values as are trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.exact import root
from secure_fl.algorithms.public_student import PublicStudent
from secure_fl.algorithms.settings import FedSGD
from secure_fl.algorithms.updates import SavedDict, Weights, add_, agree_on, digest, unflat
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.dp.noised_steps import Gradients, NoisedSteps, model_gradients
from secure_fl.learning.learning_rates import factor, stride_of
from secure_fl.learning.local_training import autocast, task_loss
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful

__all__ = ["FedSGD", "fedsgd"]

SCORED = 6  # times that the model is measured
MOST = 64  # clipped gradients of one hospital that may add up in one value


async def fedsgd(cohort: Cohort, site: Site, cfg: FedSGD) -> None:
    """Run FedSGD at one party."""
    model, adam, state = site.model(), Adam(), SavedDict()
    student = PublicStudent.of(site, cfg)
    public = b"" if student is None else site.public_digest
    await cohort.agree(site.fingerprint() + public, "task or public texts")
    gradients = model_gradients(site, model) if site.training.dp is not None else None
    shared: dict[str, Stateful] = {
        "model": Weights(model, trainable(model)),
        "adam": adam,
        "state": state,
    }
    async for round in cohort.rounds(cfg.rounds, shared=shared):
        if "units" not in state:
            units = site.privacy.units if site.privacy is not None else site.train
            state.update(await cohort.sum({"units": float(len(units))}))
        expected = cfg.sample_rate * float(state["units"])  # public, unlike the size of a sample
        if gradients is None:
            total = own_gradient(site, model, cfg.sample_rate)
            every = cfg.sample_rate == 1  # then no seed chooses records
            asked = (site.question("fedsgd", digest(trainable(model))),) if every else ()
            sums = await cohort.sum({"gradient": total}, carry=True, questions=asked)
            g = torch.from_numpy(sums["gradient"] / expected)
        else:
            g = await noised_gradient(cohort, site, model, gradients, expected)
        η = stride_of(model, site.training) * factor(site.training, round.at(0, 1))
        add_(model, unflat(adam.step(g, η), trainable(model)))
        if round.measured(SCORED):
            site.score(model, round.number)
        if student is not None and round.number == round.total:
            student.score(model, round.number)
    await agree_on(cohort, model)
    site.deliver(model)
    if student is not None:
        student.deliver(model)


async def noised_gradient(
    cohort: Cohort, site: Site, model: nn.Module, gradients: Gradients, expected: float
) -> Tensor:
    """Return the noised mean of the clipped gradients of a sample, equal at all parties."""
    assert site.training.dp is not None  # noqa: S101 - the caller has gradients of single records
    most = min(MOST, max(1, round(2 * expected)))
    steps = NoisedSteps(cohort, site, expected, site.training.dp.max_grad_norm, most)
    weights = trainable(model)
    size = sum(weight.numel() for weight in weights.values())
    return torch.from_numpy(await steps.mean(digest(weights), size, gradients))


def own_gradient(site: Site, model: nn.Module, rate: float) -> Tensor:
    """Sum the gradients of a sample of this site's records, without protection by noise."""
    drawn = torch.rand(len(site.train), generator=site.batches_rng) < rate
    rows, loss = drawn.nonzero().flatten().tolist(), task_loss(site)
    model.train()
    weights = list(trainable(model).values())
    total = [torch.zeros_like(weight) for weight in weights]
    for start in range(0, len(rows), size := site.at_once(site.training.batch_size)):
        batch = site.train.batch(rows[start : start + size], site.batches_rng, site.device)
        with autocast(site):
            value = loss(model, batch).sum()
        gradients = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
        torch._foreach_add_(total, gradients)
    return torch.cat([g.flatten() for g in total]).double().cpu()


class Adam:
    """Adam (arXiv 1412.6980) at every party, on the opened gradient; elementwise and exact."""

    β1, β2, ε = 0.9, 0.999, 1e-8

    def __init__(self) -> None:
        self._t, self._m, self._v = 0, torch.zeros(()), torch.zeros(())

    def step(self, g: Tensor, η: float) -> Tensor:
        """Return the weights' moves."""
        self._t += 1
        # One operation at a time: fused operations round differently on some machines.
        self._m = self._m * self.β1 + g * (1 - self.β1)
        self._v = self._v * self.β2 + g * g * (1 - self.β2)
        m, v = (x / (1 - β**self._t) for x, β in ((self._m, self.β1), (self._v, self.β2)))
        return -η * m / (root(v) + self.ε)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments for a checkpoint."""
        return {"t": self._t, "m": self._m, "v": self._v}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moments from `state_dict`."""
        self._t, self._m, self._v = state["t"], state["m"], state["v"]
