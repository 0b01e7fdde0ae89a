"""Batched training of several sites of one process: equal to their separate training to rounding.

The first site that asks is trained together with others that should start with the same weights,
the same settings and equally many batches. When the others ask, their result is ready, provided
that they do start with those weights. A site with other weights trains by itself, and so do all
sites from then on.

Each trained layer becomes a batch of layers, one for each site, and in every batch of records each
site has equally many rows. Layers without trained weights treat rows independently, so the model's
own code runs unchanged. Small models spend most of their time in calls, and here one call serves
all sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.learning.anatomy import trainable
from secure_fl.learning.learning_rates import learning_rate_of, pace
from secure_fl.learning.local_training import (
    extent,
    optimizer_of,
    report,
    reports,
    require_finite,
)
from secure_fl.learning.site_context import TrainingContext
from secure_fl.learning.tasks.token_table import TokenTable
from secure_fl.party.rounds import Round

# Families whose trained layers see rows first: tests/features/batched_simulation checks it. Others
# may send tensors without rows (relative positions) through a trained layer.
FAMILIES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"})
MAX_SITES = 16  # in a batch: more sites gain little
MAX_VALUES = 1 << 23  # in all copies: one larger model already keeps a core busy

Request: TypeAlias = tuple[int, Round, int | None]  # epochs, round, steps


@dataclass(frozen=True, slots=True)
class TrainedSite:
    """The result of one site's training."""

    start: dict[str, Tensor]  # the weights before training; one object for the whole batch
    weights: dict[str, Tensor]
    losses: Tensor  # summed, up to each step
    before: Tensor  # the state of the site's order of batches
    after: Tensor


@dataclass
class BatchedTraining:
    """A `BatchedTrainer` for the sites that joined it."""

    _sites: dict[str, TrainingContext] = field(default_factory=dict)
    _alike: dict[str, list[TrainingContext]] = field(default_factory=dict)  # by site: its kind
    _results: dict[str, TrainedSite] = field(default_factory=dict)  # that no site has fetched yet
    _request: Request | None = None  # that the results answer
    _asked: set[str] = field(default_factory=set)  # sites that made this request
    _fitting: WeakKeyDictionary[nn.Module, bool] = field(default_factory=WeakKeyDictionary)
    _stacks: dict[Any, nn.Module] = field(default_factory=dict)  # by copies and shapes
    _spare: dict[Any, list[dict[str, Tensor]]] = field(default_factory=dict)  # buffers, by shapes
    _separate: bool = False  # a site started with other weights, so all train by themselves

    def join(self, site: TrainingContext) -> None:
        """Add a site."""
        self._sites[site.name] = site

    def fit(
        self,
        site: TrainingContext,
        model: nn.Module,
        epochs: int,
        round: Round,
        steps: int | None,
    ) -> float | None:
        """Train a site's model and return its mean loss; None: the site must train by itself."""
        if self._separate or not self._fits(site, model):
            return None
        request = epochs, round, steps
        if self._request != request:
            self._request = request
            self._results.clear()
            self._asked.clear()
        self._asked.add(site.name)
        weights = trainable(model)
        if site.name not in self._results:
            batch = self._batch_of(site, sum(p.numel() for p in weights.values()))
            if len(batch) < 2:
                return None
            self._train(batch, model, request)
        result = self._results.pop(site.name)
        if not _starts_with(site, weights, result):
            self._separate = True
            self._results.clear()
            return None
        loss = _apply(result, site, weights, extent(site, epochs, steps)[0])
        self._spare.setdefault(_shapes(result.weights), []).append(result.weights)
        return loss

    def _fits(self, site: TrainingContext, model: nn.Module) -> bool:
        """Check that this model of this site can be part of a stack."""
        settings = site.training
        plain = settings.precision == "float32" and not settings.checkpointing
        if not plain or site.max_batch is not None or not isinstance(site.train, TokenTable):
            return False
        if model not in self._fitting:
            self._fitting[model] = stackable(model)
        return self._fitting[model]

    def _batch_of(self, site: TrainingContext, values: int) -> list[TrainingContext]:
        """A site, and the untrained sites of its kind that are nearest in size."""
        if site.name not in self._alike:
            self._alike |= _by_kind(self._sites.values())
        trained = self._asked | self._results.keys()
        rest = [other for other in self._alike[site.name] if other.name not in trained]
        rest.sort(key=lambda other: abs(len(other.train) - len(site.train)))
        return [site, *rest][: min(MAX_SITES, MAX_VALUES // values)]

    def _stack(self, model: nn.Module, shapes: object, copies: int) -> nn.Module:
        """A stack of this many copies; two stacks are kept, a full one and a smaller last one."""
        like = (copies, shapes)
        if like not in self._stacks:
            kept = list(self._stacks.items())[-1:]
            self._stacks = dict([*kept, (like, stacked(model, copies))])
        return self._stacks[like]

    def _train(self, sites: Sequence[TrainingContext], model: nn.Module, request: Request) -> None:
        """Train all sites of a batch and keep their results."""
        epochs, round, steps = request
        settings, device = sites[0].training, sites[0].device
        start = {name: p.detach().clone() for name, p in trainable(model).items()}
        stack = self._stack(model, _shapes(start), len(sites)).to(device).train()
        parameters = trainable(stack)
        set_copies(parameters, start)
        rate = learning_rate_of(model, settings)
        group = {"params": list(parameters.values()), "lr": rate, "initial_lr": rate}
        optimizer = optimizer_of([group], settings)
        planned, batches = extent(sites[0], epochs, steps)
        orders = [_BatchOrder(site, batches) for site in sites]
        records = _JointRecords(sites)
        total, losses = torch.zeros(len(sites), device=device), []
        for done in range(planned):
            pace(optimizer, settings, round.at(done, planned))
            optimizer.zero_grad(set_to_none=True)
            lot = slice(done * settings.accumulate, (done + 1) * settings.accumulate)
            total = total + records.backward(stack, [order.batches[lot] for order in orders])
            if settings.max_grad_norm is not None:
                clip_copies(parameters, settings.max_grad_norm)
            optimizer.step()
            losses.append(total)
        spare = self._spare.get(_shapes(start), [])
        for at, (site, order) in enumerate(zip(sites, orders, strict=True)):
            weights = spare.pop() if spare else _buffers(start)
            for name, copies in parameters.items():
                weights[name].copy_(copies.detach()[at])
            summed = torch.stack([step[at] for step in losses]).cpu()
            self._results[site.name] = TrainedSite(
                start, weights, summed, order.before, order.after
            )


class _JointRecords:
    """The training records of several sites in one table."""

    def __init__(self, sites: Sequence[TrainingContext]) -> None:
        tables = [site.train for site in sites if isinstance(site.train, TokenTable)]
        self._table = TokenTable.joined(tables)
        self._task, self._device = sites[0].task, sites[0].device
        self._starts = [sum(map(len, tables[:at])) for at in range(len(tables))]

    def backward(self, stack: nn.Module, lots: Sequence[Sequence[Tensor]]) -> Tensor:
        """Add the gradients of a lot of batches for each site; return each site's mean loss."""
        total = torch.zeros(len(lots), device=self._device)
        for rows, shares in self._side_by_side(lots):
            batch = self._table.batch(rows, device=self._device)
            losses = self._task.loss(self._task.forward(stack, batch), batch, reduction="none")
            losses = losses * shares.to(self._device)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            total = total + losses.detach().view(len(lots), -1).sum(1)
        return total

    def _side_by_side(self, lots: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each batch of a lot: the rows of all sites and their shares of a mean.

        A site with fewer rows than another repeats its first row with a share of 0.
        """
        counts = [sum(map(len, lot)) for lot in lots]
        for batches in zip(*lots, strict=True):
            most = max(map(len, batches))
            rows, shares = [], []
            for start, count, batch in zip(self._starts, counts, batches, strict=True):
                more = most - len(batch)
                rows += [start + batch, (start + batch[:1]).expand(more)]
                shares += [torch.full((len(batch),), 1 / count), torch.zeros(more)]
            yield torch.cat(rows), torch.cat(shares)


class _BatchOrder:
    """The batches that a site will draw; the site's own generator does not change."""

    def __init__(self, site: TrainingContext, count: int) -> None:
        generator = torch.Generator()
        self.before = site.batches_rng.get_state()
        generator.set_state(self.before)
        self.batches = list(islice(_orders(site, generator), count))
        self.after = generator.get_state()


def _orders(site: TrainingContext, generator: torch.Generator) -> Iterator[Tensor]:
    settings = site.training
    while True:
        yield from site.train.orders(settings.batch_size, generator, alike=settings.bucketing)


def _by_kind(sites: Iterable[TrainingContext]) -> dict[str, list[TrainingContext]]:
    """Sites by name, each with all sites of equal settings and equally many batches."""
    kinds: list[tuple[Any, list[TrainingContext]]] = []
    for site in sites:
        plain = site.max_batch is None and isinstance(site.train, TokenTable)
        batches = extent(site, 1)[1] if plain else None
        kind = (batches, site.training, site.model_settings, site.task)
        for known, alike in kinds:
            if known == kind:
                alike.append(site)
                break
        else:
            kinds.append((kind, [site]))
    return {site.name: alike for _, alike in kinds for site in alike}


def _shapes(weights: Mapping[str, Tensor]) -> tuple[tuple[str, torch.Size], ...]:
    """The shapes of a model's weights: sites with label sets of their own have different heads."""
    return tuple((name, weight.shape) for name, weight in weights.items())


def _buffers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Empty tensors of the same shapes."""
    return {name: torch.empty_like(weight) for name, weight in weights.items()}


def _starts_with(site: TrainingContext, weights: Mapping[str, Tensor], result: TrainedSite) -> bool:
    """Check that a site starts with the weights and the order of batches of its result."""
    same = weights.keys() == result.start.keys() and all(
        torch.equal(weights[name], start) for name, start in result.start.items()
    )
    return same and torch.equal(site.batches_rng.get_state(), result.before)


@torch.no_grad()
def _apply(
    result: TrainedSite, site: TrainingContext, weights: Mapping[str, Tensor], planned: int
) -> float:
    """Leave a site's model and order of batches as its separate training would; return the loss."""
    for name, weight in weights.items():
        weight.copy_(result.weights[name])
    site.batches_rng.set_state(result.after)
    for done, total in enumerate(result.losses.tolist(), 1):
        if reports(done, planned):
            report(site, total / done, done, planned)
    return require_finite(float(result.losses[-1]) / planned, planned)


class _Stacked(nn.Module):
    """Copies of a layer's weights."""

    def __init__(self, layer: nn.Linear | nn.LayerNorm, copies: int) -> None:
        super().__init__()
        self.weight, self.bias = _repeated(layer.weight, copies), _repeated(layer.bias, copies)

    def by_copy(self, rows: Tensor) -> Tensor:
        """The rows of each copy."""
        return rows.reshape(len(self.weight), -1, rows.shape[-1])


class StackedLinear(_Stacked):
    """Copies of a linear layer, computed as one batch of matrix products."""

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply all in one call."""
        weight = self.weight.transpose(1, 2)
        out = torch.baddbmm(self.bias.unsqueeze(1), self.by_copy(rows), weight)
        return out.view(*rows.shape[:-1], out.shape[-1])


class StackedNorm(_Stacked):
    """Copies of a layer normalisation, each with its own scale and shift."""

    def __init__(self, layer: nn.LayerNorm, copies: int) -> None:
        super().__init__(layer, copies)
        self._shape, self._eps = layer.normalized_shape, layer.eps

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise all in one call."""
        normed = self.by_copy(F.layer_norm(rows, self._shape, eps=self._eps))
        out = torch.addcmul(self.bias.unsqueeze(1), normed, self.weight.unsqueeze(1))
        return out.view(rows.shape)


def stackable(model: nn.Module) -> bool:
    """Check that a stack computes the same as its copies: known layers, and no dropout."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", "") not in FAMILIES or _has_dropout(config):
        return False
    return all(
        type(module) in (nn.Linear, nn.LayerNorm)
        and dict(module.named_parameters(recurse=False)).keys() == {"weight", "bias"}
        and all(p.requires_grad for p in module.parameters(recurse=False))
        for module in model.modules()
        if _trains(module)
    )


def stacked(model: nn.Module, copies: int) -> nn.Module:
    """A model of this many copies; its parameters keep their names and get a first dimension."""
    stack = deepcopy(model)
    for name, module in list(stack.named_modules()):
        if _trains(module):
            kind: Any = StackedLinear if isinstance(module, nn.Linear) else StackedNorm
            parent, _, leaf = name.rpartition(".")
            setattr(stack.get_submodule(parent), leaf, kind(module, copies))
    return stack


@torch.no_grad()
def set_copies(stack: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Set the weights of every copy."""
    for name, copies in stack.items():
        copies.copy_(weights[name])


@torch.no_grad()
def clip_copies(parameters: Mapping[str, Tensor], bound: float) -> None:
    """Clip each copy's gradient as `clip_grad_norm_` does."""
    grads = [p.grad for p in parameters.values() if p.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads])
    factors = (bound / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factors.view(-1, *[1] * (grad.dim() - 1)))


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _repeated(weight: Tensor, copies: int) -> nn.Parameter:
    return nn.Parameter(weight.detach().expand(copies, *weight.shape).clone())


def _has_dropout(config: Any) -> bool:
    """Check for dropout, whose random draws the copies would share."""
    rates = [value for name, value in config.to_dict().items() if "drop" in name]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)
