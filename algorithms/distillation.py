"""Adaptive mutual distillation: a teacher and a student learn from the labels and each other.

Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation.
Nature Communications 13, 2032, 2022, arXiv 2108.13323, Sec. 3.2, Eqs. 1-7. Losses come one per
record, so that DP-SGD can bound what a record does to both models at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from pydantic import model_validator
from torch import Tensor, nn

from secure_fl.learning.anatomy import depth
from secure_fl.learning.tasks import Batch, Task
from secure_fl.settings import Section

UNJUDGED = -100  # the label of tokens that no loss looks at
FLOOR = 1e-2  # of Eqs. 3-5's denominator: what both models know by heart must not weigh infinitely


class Distillation(Section):
    """Which of the paper's losses are on; the defaults are the paper's method."""

    tied: bool = True
    """The student is its teacher's first layers if that is the shared model. false: two networks,
    as printed."""
    mutual: bool = True
    """false: the teacher learns from the labels only (Fig. 2)."""
    soft_labels: bool = True
    """Eqs. 3 and 4 (Fig. 3: without mutual distillation loss)."""
    hidden: bool = True
    """Eq. 5 (Fig. 3: without hidden loss); between two networks only."""
    adaptive: Literal["batch", "sample", "none"] = "batch"
    """Scope of the losses that divide Eqs. 3-5."""
    transform: bool = True
    """Learn Wʰ of Eq. 5. false: the identity."""
    joint_loss: bool = False
    """As the authors' code: nothing detached, one loss for both models."""

    @model_validator(mode="after")
    def _joint_is_mutual(self) -> Self:
        if self.joint_loss and not self.mutual:
            raise ValueError("joint_loss with mutual only: one loss for both models teaches both")
        return self


class Outputs(NamedTuple):
    """What a model says about a batch."""

    y: Tensor  # logits
    H: Sequence[Tensor]  # hidden states: of the embeddings, then of each layer
    A: Sequence[Tensor]  # attention maps of each layer: record, head, from, to


class Pair(nn.Module):
    """Teacher, student and Wʰ as ONE module, since DP-SGD must bound all that a record moves."""

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        task: Task,
        cfg: Distillation,
        rates: tuple[float, float],  # learning rates ηₜ and ηₛ
    ) -> None:
        super().__init__()
        self.teacher, self.student = teacher, student
        self.task, self.cfg, self.rates = task, cfg, rates
        self.layers = mapped(depth(teacher), depth(student)) if cfg.hidden else ()
        sizes = hidden_size(student), hidden_size(teacher)
        learnt = len(self.layers) if cfg.transform else 0
        self.W = nn.ModuleList(identity(*sizes) for _ in range(learnt))
        self.W.to(next(teacher.parameters()).device)

    def parts(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Teacher and student learn apart, at their own rates; Wʰ belongs to neither.

        What both are made of learns at the student's.
        """
        (η_t, η_s), student = self.rates, list(self.student.parameters())
        shared = {id(weight) for weight in student}
        teacher = [weight for weight in self.teacher.parameters() if id(weight) not in shared]
        found = [(teacher, η_t), (student, η_s)]
        return [*found, (list(self.W.parameters()), η_s)] if len(self.W) else found

    def forward(self, batch: Batch) -> Tensor:
        """Eq. 6 plus Eq. 7 of each record.

        Neither model's gradient sees the other: a partner's soft labels and the denominators are
        constants, and Eq. 5 is one distance whose gradient in one end takes the other as it is.
        """
        t, s = self._outputs(self.teacher, batch), self._outputs(self.student, batch)
        apart = not self.cfg.joint_loss
        Lt_t = self.task.loss(t.y, batch, reduction="none")  # Eq. 1
        Lt_s = self.task.loss(s.y, batch, reduction="none")  # Eq. 2
        w = intensity(Lt_t, Lt_s, self.cfg)
        L_t, L_s = Lt_t, Lt_s
        if self.cfg.soft_labels:
            y_t, y_s = (t.y.detach(), s.y.detach()) if apart else (t.y, s.y)
            L_s = L_s + w * divergence(y_t, s.y, batch)  # Eq. 4
            if self.cfg.mutual:
                L_t = L_t + w * divergence(y_s, t.y, batch)  # Eq. 3
        if self.cfg.hidden:
            L_h = self._hidden_loss(t if self.cfg.mutual else detached(t), s, batch)  # Eq. 5
            L_s = L_s + w * L_h.expand_as(L_s)
            if not apart:  # it is in both models' losses, and so twice in their sum
                L_t = L_t + w * L_h.expand_as(L_t)
        return L_t + L_s

    def _outputs(self, model: nn.Module, batch: Batch) -> Outputs:
        inside = self.cfg.hidden
        out = self.task.outputs(model, batch, output_hidden_states=inside, output_attentions=inside)
        return Outputs(out.logits.float(), out.hidden_states or (), out.attentions or ())

    def _hidden_loss(self, t: Outputs, s: Outputs, batch: Batch) -> Tensor:
        """MSE(Hᵗ, Wʰ·Hˢ) + MSE(Aᵗ, Aˢ), averaged over the student's layers; padding is left out."""
        mask = batch["attention_mask"].bool()
        both = mask.unsqueeze(1) & mask.unsqueeze(2)  # attention from a token to a token
        losses = []
        for l_s, l_t in enumerate(self.layers, 1):
            H = self.W[l_s - 1](s.H[l_s]) if self.cfg.transform else s.H[l_s]
            A_t, A_s = (A.permute(0, 2, 3, 1) for A in (t.A[l_t - 1], s.A[l_s - 1]))
            losses.append(masked_mse(t.H[l_t], H, mask) + masked_mse(A_t, A_s, both))
        loss = torch.stack(losses).mean(0)
        # rows of a ranking batch are titles, and its losses are of readers
        return loss.mean() if self.task.head == "ranking" else loss


def mapped(teacher: int, student: int) -> tuple[int, ...]:
    """The teacher's layer (from 1) that each student layer imitates, the last the last."""
    return tuple(-(-layer * teacher // student) for layer in range(1, student + 1))


def intensity(Lt_t: Tensor, Lt_s: Tensor, cfg: Distillation) -> Tensor:
    """1 / (Lᵗ_t + Lᵗ_s): partners teach little while their predictions are not reliable."""
    doubt = Lt_t + Lt_s if cfg.joint_loss else (Lt_t + Lt_s).detach()
    if cfg.adaptive == "none":
        return torch.ones_like(doubt)
    if cfg.adaptive == "batch":
        doubt = doubt.mean().expand_as(doubt)
    return 1 / doubt.clamp(min=FLOOR)


def divergence(model: Tensor, learner: Tensor, batch: Batch) -> Tensor:
    """KL(model ‖ learner) of each record; of each judged token's mean for sequences of labels.

    A regression has no distribution over classes: there it is the squared difference.
    """
    if learner.shape[-1] == 1:
        return (model - learner).square().squeeze(-1)
    log_p, log_q = model.log_softmax(-1), learner.log_softmax(-1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    if kl.dim() == 1:
        return kl
    judged = batch["labels"] != UNJUDGED
    return (kl * judged).sum(-1) / judged.sum(-1).clamp(min=1)


def masked_mse(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """The mean squared difference of each record over what is not padding."""
    squares = (a.float() - b.float()).square().mean(-1) * mask
    dims = tuple(range(1, mask.dim()))
    return squares.sum(dims) / mask.sum(dims).clamp(min=1)


def detached(outputs: Outputs) -> Outputs:
    """The same numbers as constants."""
    y, H, A = outputs
    return Outputs(y.detach(), [h.detach() for h in H], [a.detach() for a in A])


def identity(inputs: int, outputs: int) -> nn.Linear:
    """A learnable linear map that begins as the identity."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.eye_(linear.weight)
    return linear


def hidden_size(model: nn.Module) -> int:
    """The width of a model's hidden states."""
    size: int = model.config.hidden_size  # type: ignore[union-attr, assignment]
    return size
