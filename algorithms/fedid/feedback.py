"""The host's step and its feedback: Eqs. 11, 12 and 14 of FedID.

Ma, Liu, Wang, Zhang: FedID: Federated Interactive Distillation for Large-Scale Pretraining
Language Models. EMNLP 2023. The parties' part of Eq. 14 is in `party_step.step_losses`.
"""

from __future__ import annotations

import math
import warnings
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from secure_fl.algorithms.fedid.settings import FeedbackScale
from secure_fl.algorithms.public_distillation import cross_entropy
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.local_training import Optimizer, public_step
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch, Task
from secure_fl.learning.tasks.task import inference


class FeedbackUnits:
    """Feedback in units of its root mean square in this round so far.

    The printed feedback is so small that a weight of 1 changes nothing: a host's step changes its
    loss by thousandths, and g_distill is about 300 times g_feedback.
    """

    def __init__(self, scale: FeedbackScale) -> None:
        self._scale, self._squares, self._count = scale, 0.0, 0

    def of(self, h: Tensor) -> Tensor:
        """Scale the feedback of an exchange for sending."""
        if self._scale == "printed":
            return h
        self._squares += float(h.double().square().sum())
        self._count += h.numel()
        size = math.sqrt(self._squares / self._count)
        return h / size if size > 0 else h


def ensemble_step(site: Site, model: nn.Module, optimizer: Optimizer, x: Batch, y: Tensor) -> None:
    """Move the central model one step towards the ensemble (Eq. 11)."""
    model.train()
    public_step(site, optimizer, lambda: cross_entropy(site.task.forward(model, x), y))


def scalar_feedback(
    site: Site, model: nn.Module, optimizer: Optimizer, x: Batch, y: Tensor, val: Batch
) -> Tensor:
    """Return h = L_val(θ_{t-1}) - L_val(θ_t): Eq. 12 before and after the step, on equal records.

    Differs: the paper sends L_val(θ_t), whose gradient in θᵏ no party can compute. As in the
    authors' code (and Meta Pseudo Labels, arXiv 2003.10580), h is the improvement by the step.
    Every party strengthens or weakens its predictions by h.
    """
    before = validation_loss(site.task, model, val)
    ensemble_step(site, model, optimizer, x, y)
    return before - validation_loss(site.task, model, val)


def exact_feedback(
    task: Task, model: nn.Module, rate: float, x: Batch, y: Tensor, val: Batch
) -> Tensor:
    """Return Eq. 14 as a derivative: H with ∇_{θᵏ} L_val(θ_t) = wₖ · Σ H_c(x)·∇_{θᵏ} yᵏ_c(x).

    With θ_t = θ_{t-1} + (η/B)·Σ y_c(x)·∇log p_c(x; θ_{t-1}), the chain rule gives
    H_c(x) = (η/B)·⟨∇log p_c(x; θ_{t-1}), ∇L_val(θ_t)⟩: one derivative along one direction for
    all x and c at once. It is valid for this step only, so this function makes the step: plain
    gradient descent, not clipped, without dropout.
    """
    model.eval()
    loss = cross_entropy(task.forward(model, x), y)
    θ = {name: weight.detach().clone() for name, weight in trainable(model).items()}
    descend_(model, _gradients(loss, model), rate)
    v = _gradients(task.loss(task.forward(model, val), val), model)

    def log_p(θ: dict[str, Tensor]) -> Tensor:
        def at(**inputs: Tensor) -> object:
            return functional_call(model, θ, (), inputs)

        return task.forward(cast(nn.Module, at), x).log_softmax(-1)

    with warnings.catch_warnings():  # torch's jvp uses torch.jit.script, and warns about it
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
        h: Tensor = jvp(log_p, (θ,), (v,))[1]
    return rate / len(y) * h.detach()


def validation_loss(task: Task, model: nn.Module, val: Batch) -> Tensor:
    """Compute L_CE(y^val, f(x^val; θ)), without dropout."""
    with inference(model):
        return task.loss(task.forward(model, val), val)


def _gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    weights = trainable(model)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    return dict(zip(weights, gradients, strict=True))


@torch.no_grad()
def descend_(model: nn.Module, gradients: dict[str, Tensor], rate: float) -> None:
    """Make one step of plain gradient descent."""
    for name, weight in trainable(model).items():
        weight.sub_(rate * gradients[name])
