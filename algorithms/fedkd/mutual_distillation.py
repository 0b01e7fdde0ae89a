"""Adaptive mutual distillation: a teacher and a student learn from labels and from each other.

Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation.
Nature Communications 13, 2032, 2022, arXiv 2108.13323, Sec. 3.2, Eqs. 1-7. There is one loss per
record, so that DP-SGD can bound a record's effect on both models at once.

With `made_up`, which is not in the paper, the student also learns its teacher's answers to changed
records. A batch's records are changed with nothing but their own words, so a record's loss depends
on that record alone. The teacher answers without dropout; no label is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.fedkd.settings import Distillation, FedKD
from secure_fl.errors import ModelError, SettingsError
from secure_fl.learning.anatomy import begin_with, body_of, depth, repeats
from secure_fl.learning.fetching import Attention, configured
from secure_fl.learning.learning_rates import learning_rate_of
from secure_fl.learning.models import load_tokenizer
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch, Task
from secure_fl.learning.tasks.batches import by_record, packed
from secure_fl.learning.tasks.task import inference

IGNORED_LABEL = -100  # tokens with this label have no loss
FLOOR = 1e-2  # the least denominator of Eqs. 3-5: bounds the weight of records known by heart
CUT = 0.6  # share of the records of which only a span is attended to
SHORTEST = 1 / 3  # of a span, as a share of the record's words
MASKED, REPLACED = 0.1, 0.2  # a word is masked below the first, replaced below the second


def losses(pair: nn.Module, batch: Batch) -> Tensor:
    """Compute both models' losses, summed for each record (lines 25-28)."""
    per_record: Tensor = pair(batch)
    return per_record


class Outputs(NamedTuple):
    """A model's outputs for a batch."""

    y: Tensor  # logits
    H: Sequence[Tensor]  # hidden states: of the embeddings, then of each layer
    A: Sequence[Tensor]  # attention maps of each layer: record, head, from, to


class Pair(nn.Module):
    """Teacher, student and Wʰ as one module, so that DP-SGD bounds a record's effect."""

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        task: Task,
        cfg: Distillation,
        rates: tuple[float, float],  # learning rates ηₜ and ηₛ
        words: Words | None = None,  # of made-up records
    ) -> None:
        super().__init__()
        self.words = words
        self.teacher, self.student = teacher, student
        self.task, self.cfg, self.rates = task, cfg, rates
        self.layers = mapped(depth(teacher), depth(student)) if cfg.hidden else ()
        sizes = hidden_size(student), hidden_size(teacher)
        maps = len(self.layers) if cfg.transform else 0
        self.W = nn.ModuleList(identity(*sizes) for _ in range(maps))
        self.W.to(next(teacher.parameters()).device)

    def parts(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Group the weights by learning rate: the teacher's, the student's and Wʰ.

        Weights of both models learn at the student's rate.
        """
        (η_t, η_s), student = self.rates, list(self.student.parameters())
        shared = {id(weight) for weight in student}
        teacher = [weight for weight in self.teacher.parameters() if id(weight) not in shared]
        groups = [(teacher, η_t), (student, η_s)]
        return [*groups, (list(self.W.parameters()), η_s)] if len(self.W) else groups

    def forward(self, batch: Batch) -> Tensor:
        """Compute Eq. 6 plus Eq. 7 of each record.

        The partner's soft labels and the denominators are constants, so neither model's gradient
        flows into the other. Eq. 5 is one distance, and both models take its gradient.
        """
        t, s = self._outputs(self.teacher, batch), self._outputs(self.student, batch)
        separate = not self.cfg.joint_loss
        Lt_t = self.task.loss(t.y, batch, reduction="none")  # Eq. 1
        Lt_s = self.task.loss(s.y, batch, reduction="none")  # Eq. 2
        w = intensity(Lt_t, Lt_s, self.cfg)
        L_t, L_s = Lt_t, Lt_s
        kl = divergence if self.task.exclusive else divergence_of_labels
        if self.cfg.soft_labels:
            y_t, y_s = (t.y.detach(), s.y.detach()) if separate else (t.y, s.y)
            L_s = L_s + w * kl(y_t, s.y, batch)  # Eq. 4
            if self.cfg.mutual:
                L_t = L_t + w * kl(y_s, t.y, batch)  # Eq. 3
        if self.words is not None:
            made_up = self.words.made_up(batch)
            y_t = self._soft_labels(made_up)
            L_s = L_s + w * kl(y_t, self._outputs(self.student, made_up).y, made_up)
        if self.cfg.hidden:
            L_h = self._hidden_loss(t if self.cfg.mutual else detached(t), s, batch)  # Eq. 5
            L_s = L_s + w * L_h.expand_as(L_s)
            if not separate:  # it is part of both models' losses, so it counts twice
                L_t = L_t + w * L_h.expand_as(L_t)
        return L_t + L_s

    def _outputs(self, model: nn.Module, batch: Batch) -> Outputs:
        hidden = self.cfg.hidden
        out = self.task.outputs(model, batch, output_hidden_states=hidden, output_attentions=hidden)
        return Outputs(out.logits.float(), out.hidden_states or (), out.attentions or ())

    @torch.no_grad()
    def _soft_labels(self, batch: Batch) -> Tensor:
        """Return the teacher's logits, without dropout."""
        training = self.teacher.training
        try:
            return self._outputs(self.teacher.eval(), batch).y
        finally:
            self.teacher.train(training)

    def _hidden_loss(self, t: Outputs, s: Outputs, batch: Batch) -> Tensor:
        """Average MSE(Hᵗ, Wʰ·Hˢ) + MSE(Aᵗ, Aˢ) over the student's layers, without padding."""
        mask = packed(batch)["attention_mask"].bool()
        pairs = mask.unsqueeze(1) & mask.unsqueeze(2)  # attention between two tokens of the text
        losses = []
        for l_s, l_t in enumerate(self.layers, 1):
            H = self.W[l_s - 1](s.H[l_s]) if self.cfg.transform else s.H[l_s]
            A_t, A_s = (A.permute(0, 2, 3, 1) for A in (t.A[l_t - 1], s.A[l_s - 1]))
            losses.append(masked_mse(t.H[l_t], H, mask) + masked_mse(A_t, A_s, pairs))
        loss = by_record(torch.stack(losses).mean(0), batch, words=False)
        # A ranking batch has titles as rows, but one loss per reader.
        return loss.mean() if self.task.head == "ranking" else loss


def mapped(teacher: int, student: int) -> tuple[int, ...]:
    """Map each student layer to a teacher layer, from 1; the last maps to the last."""
    return tuple(-(-layer * teacher // student) for layer in range(1, student + 1))


def intensity(Lt_t: Tensor, Lt_s: Tensor, cfg: Distillation) -> Tensor:
    """Compute 1 / (Lᵗ_t + Lᵗ_s): unreliable partners teach little."""
    doubt = Lt_t + Lt_s if cfg.joint_loss else (Lt_t + Lt_s).detach()
    if cfg.adaptive == "none":
        return torch.ones_like(doubt)
    if cfg.adaptive == "batch":
        doubt = doubt.mean().expand_as(doubt)
    return 1 / doubt.clamp(min=FLOOR)


def divergence(model: Tensor, learner: Tensor, batch: Batch) -> Tensor:
    """Compute KL(model ‖ learner) of each record; for token labels, the mean over labelled tokens.

    A regression has no distribution over classes, so it uses the squared difference.
    """
    if learner.shape[-1] == 1:
        return (model - learner).square().squeeze(-1)
    log_p, log_q = model.log_softmax(-1), learner.log_softmax(-1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    if kl.dim() == 1:
        return kl
    labelled = batch["labels"] != IGNORED_LABEL
    return (kl * labelled).sum(-1) / labelled.sum(-1).clamp(min=1)


def divergence_of_labels(model: Tensor, learner: Tensor, _: Batch) -> Tensor:
    """Compute the sum of KL(model ‖ learner) over a record's labels, each of which may apply."""
    log_p, log_q = (F.logsigmoid(torch.stack([z, -z], dim=-1)) for z in (model, learner))
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum((-2, -1))


def masked_mse(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean squared difference of each record, without padding."""
    squares = (a.float() - b.float()).square().mean(-1) * mask
    dims = tuple(range(1, mask.dim()))
    return squares.sum(dims) / mask.sum(dims).clamp(min=1)


def detached(outputs: Outputs) -> Outputs:
    """Return the outputs as constants, without gradients."""
    y, H, A = outputs
    return Outputs(y.detach(), [h.detach() for h in H], [a.detach() for a in A])


def identity(inputs: int, outputs: int) -> nn.Linear:
    """Make a learnable linear map that starts as the identity."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.eye_(linear.weight)
    return linear


def hidden_size(model: nn.Module) -> int:
    """Return the width of a model's hidden states."""
    size: int = model.config.hidden_size  # type: ignore[union-attr, assignment]
    return size


def make_pair(site: Site, cfg: FedKD) -> Pair:
    """Make the site's teacher, and the student: the first layers of the shared model."""
    require_tokens(site)
    if tied := cfg.tied and same_network(site):
        cfg = cfg.model_copy(update={"hidden": False})  # it would compare a network with itself
    attention: Attention = "maps" if cfg.hidden else "sdpa"
    settings = site.shared_model_settings
    teacher = site.model(cfg.teacher(site.model_settings), attention=attention)
    if site.model_settings == settings and cfg.student_layers > depth(teacher):
        raise SettingsError(
            f"the student needs {cfg.student_layers} encoder layers, and its teacher has only "
            f"{depth(teacher)}: a student is made of its teacher's first layers",
            fix=f"set algorithm.student_layers to 1 to {depth(teacher)}",
            field="algorithm.student_layers",
        )
    student = site.model(cfg.student(settings), attention=attention)
    require_compatible(site, student, teacher, cfg)
    if cfg.hidden:
        require_maps(site, student, teacher)
    if tied:
        begin_with(teacher, student)
    η = learning_rate_of(student, site.training)
    default = η / 4 if cfg.teachers == "private" else η
    words = Words.of(site.tokenizer) if cfg.made_up else None
    return Pair(teacher, student, site.task, cfg, (cfg.teacher_learning_rate or default, η), words)


def same_network(site: Site) -> bool:
    """Return True if this party's teacher starts as the shared model, at any depth."""
    teacher, shared = site.model_settings, site.shared_model_settings
    same = teacher.model_copy(update={"layers": shared.layers}) == shared
    return same and not repeats(configured(teacher, site.tokenizer, {}))


def require_tokens(site: Site) -> None:
    """Refuse a teacher with another vocabulary, since one batch serves both models."""
    shared = site.shared_model_settings
    if site.model_settings.name == shared.name:
        return
    if load_tokenizer(shared).get_vocab() != site.tokenizer.get_vocab():
        raise ModelError(
            "this party's teacher has another vocabulary than the shared student, and both models "
            "read the same batches of tokens",
            fix="give the party a teacher with the shared model's tokenizer",
            party=site.name,
            field="model",
        )


def require_compatible(site: Site, student: nn.Module, teacher: nn.Module, cfg: FedKD) -> None:
    """Refuse a teacher whose hidden states cannot be compared with the student's."""
    if site.model_settings == site.shared_model_settings:
        return
    s, t = body_of(student).config, body_of(teacher).config
    sizes = ["num_attention_heads", *([] if cfg.transform else ["hidden_size"])]
    for name in sizes if cfg.hidden else ():
        mine, theirs = getattr(t, name), getattr(s, name)
        if mine != theirs:
            raise ModelError(
                f"this party's teacher has {name} {mine} and the shared student {theirs}: with "
                "algorithm.hidden they must be equal",
                fix="use the same checkpoint (any depth), or set algorithm.hidden = false",
                party=site.name,
                field="model",
            )
    if depth(student) > depth(teacher):
        raise ModelError(
            f"the student has {depth(student)} layers, this party's teacher {depth(teacher)}",
            fix="give the party a deeper teacher, or lower algorithm.student_layers",
            party=site.name,
            field="algorithm.student_layers",
        )


def require_maps(site: Site, *models: nn.Module) -> None:
    """Refuse models without full attention maps, which a forward pass on one record shows."""
    batch = site.train.batch([0], None, site.device)
    tokens = batch["input_ids"].shape[-1]
    for model in models:
        with inference(model):
            out = site.task.outputs(model, batch, output_attentions=True, output_hidden_states=True)
        maps, states = out.attentions or (), out.hidden_states or ()
        complete = all(m is not None and m.shape[-2:] == (tokens, tokens) for m in maps)
        if len(maps) != depth(model) or len(states) <= depth(model) or not complete:
            raise ModelError(
                "this model does not return a map of attention between all tokens, and "
                "algorithm.hidden compares the student's maps with its teacher's",
                fix="set algorithm.hidden = false, or choose another model",
                model=type(model).__name__,
                field="algorithm.hidden",
            )


@dataclass(frozen=True, slots=True)
class Words:
    """The tokens of a tokenizer that are not words, for made-up records."""

    special: tuple[int, ...]
    mask: int | None  # None: words are replaced instead

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """Read the tokens of a tokenizer."""
        return cls(tuple(tokenizer.all_special_ids), tokenizer.mask_token_id)

    def made_up(self, batch: Batch) -> Batch:
        """Attend to a span of most records; mask a tenth of the words, and replace a tenth."""
        shape = batch["input_ids"].shape  # (records, tokens), or with windows in the middle
        ids, seen = batch["input_ids"].flatten(1), batch["attention_mask"].flatten(1).bool()
        words = seen & ~torch.isin(ids, torch.tensor(self.special, device=ids.device))
        seen = seen & (span(words) | ~words)
        draw = torch.rand(ids.shape, device=ids.device)
        at = torch.multinomial(words.float() + 1e-9, ids.shape[1], replacement=True)
        changed = torch.where(words & (draw < REPLACED), ids.gather(1, at), ids)
        if self.mask is not None:
            changed = changed.masked_fill(words & (draw < MASKED), self.mask)
        made = {**batch, "input_ids": changed.view(shape)}
        made["attention_mask"] = seen.to(batch["attention_mask"]).view(shape)
        labels = batch["labels"]
        if labels.shape == ids.shape:  # a label for each token
            made["labels"] = labels.masked_fill(~seen, IGNORED_LABEL)
        return made


def span(words: Tensor) -> Tensor:
    """Draw a span of each record's words, or all of them; True inside."""
    count, draw = words.sum(1), torch.rand(3, len(words), device=words.device)
    share = torch.where(draw[0] < CUT, SHORTEST + (1 - SHORTEST) * draw[1], 1.0)
    size = (share * count).ceil().clamp(min=1)
    first = (draw[2] * (count - size + 1)).floor().clamp(min=0)
    place = words.cumsum(1) - 1
    return (place >= first[:, None]) & (place < (first + size)[:, None])
