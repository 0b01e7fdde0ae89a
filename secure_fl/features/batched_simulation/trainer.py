"""Batched training of several sites of one process: equal to their separate training to rounding.

The first site that asks is trained together with sites of the same settings and number of batches,
which are expected to start with the same weights. When another of them asks, its result is ready if
it does start with the weights, and the order of batches, that its result started from. Otherwise it
trains by itself, and so do all sites from then on.

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
from typing import Any, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.learning.anatomy import trainable
from secure_fl.learning.learning_rates import learning_rate_of, pace
from secure_fl.learning.local_training import extent, optimizer_of, report, reports, require_finite
from secure_fl.learning.site_context import TrainingContext
from secure_fl.learning.tasks.token_table import TokenTable
from secure_fl.party.rounds import Round

# Families that pass only tensors with rows as first dimension to trained layers, as
# tests/features/batched_simulation checks. Others may pass relative positions, without rows.
FAMILIES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"})
MAX_SITES = 16  # of a batch; more sites save little
MAX_VALUES = 1 << 23  # trained values in all copies; one larger model already uses a core fully

Weights: TypeAlias = dict[str, Tensor]
Shapes: TypeAlias = tuple[tuple[str, torch.Size], ...]


class Request(NamedTuple):
    """The training that sites ask for."""

    epochs: int
    round: Round
    steps: int | None


@dataclass(frozen=True, slots=True)
class TrainedSite:
    """The result of one site's training, valid for the start that it has."""

    start: Weights  # one object for the whole batch
    rng_before: Tensor  # the state of the site's order of batches
    weights: Weights
    cumulative_losses: Tensor  # after each step
    rng_after: Tensor


@dataclass
class _Pending:
    """The sites that made a request, and the results that no site has fetched yet."""

    request: Request | None = None
    asked: set[str] = field(default_factory=set)
    results: dict[str, TrainedSite] = field(default_factory=dict)


@dataclass
class BatchedTraining:
    """A `BatchedTrainer`: it trains joined sites before they ask, and keeps their results."""

    _sites: dict[str, TrainingContext] = field(default_factory=dict)
    _pending: _Pending = field(default_factory=_Pending)  # a new one for each request
    _separate: bool = False  # a site started with other weights, so all train by themselves
    # Caches.
    _peers: dict[str, list[TrainingContext]] = field(default_factory=dict)  # of each site
    _can_stack: WeakKeyDictionary[nn.Module, bool] = field(default_factory=WeakKeyDictionary)
    _stacks: dict[tuple[int, Shapes], nn.Module] = field(default_factory=dict)  # by size
    _spare: dict[Shapes, list[Weights]] = field(default_factory=dict)  # buffers for results

    def join(self, site: TrainingContext) -> None:
        """Add a site that may be trained together with others."""
        self._sites[site.name] = site

    def fit(
        self, site: TrainingContext, model: nn.Module, epochs: int, round: Round, steps: int | None
    ) -> float | None:
        """Train a site's model and return its mean loss; None: the site must train by itself.

        It must if its model, settings or records do not fit, if no other site is left to train with
        it, or if any site has started with other weights than expected.
        """
        if self._separate or not self._fits(site, model):
            return None
        request = Request(epochs, round, steps)
        if self._pending.request != request:
            self._pending = _Pending(request)
        self._pending.asked.add(site.name)
        weights, results = trainable(model), self._pending.results
        if site.name not in results:
            batch = self._batch_of(site, sum(p.numel() for p in weights.values()))
            if len(batch) < 2:
                return None
            results |= self._train(batch, model, request)
        result = results.pop(site.name)
        if not _starts_with(site, weights, result):
            self._separate = True
            results.clear()
            return None
        loss = _apply(result, site, weights, extent(site, epochs, steps)[0])
        self._spare.setdefault(_shapes(result.weights), []).append(result.weights)  # were copied
        return loss

    def _fits(self, site: TrainingContext, model: nn.Module) -> bool:
        """Check that this model of this site can be part of a stack."""
        settings = site.training
        plain = settings.precision == "float32" and not settings.checkpointing
        if not plain or site.max_batch is not None or not isinstance(site.train, TokenTable):
            return False
        if model not in self._can_stack:
            self._can_stack[model] = stackable(model)
        return self._can_stack[model]

    def _batch_of(self, site: TrainingContext, values: int) -> list[TrainingContext]:
        """Return a site with the untrained sites among its peers that are nearest in size."""
        if site.name not in self._peers:
            self._peers |= _peers_of(self._sites.values())
        trained = self._pending.asked | self._pending.results.keys()
        candidates = [peer for peer in self._peers[site.name] if peer.name not in trained]
        candidates.sort(key=lambda peer: abs(len(peer.train) - len(site.train)))
        return [site, *candidates][: min(MAX_SITES, MAX_VALUES // values)]

    def _stack(self, model: nn.Module, shapes: Shapes, copies: int) -> nn.Module:
        """Return a stack of this many copies.

        The newest two are kept: of a full batch, and of the smaller last one of a round.
        """
        key = (copies, shapes)
        if key not in self._stacks:
            newest = list(self._stacks.items())[-1:]
            self._stacks = dict([*newest, (key, stacked(model, copies))])
        return self._stacks[key]

    def _train(
        self, sites: Sequence[TrainingContext], model: nn.Module, request: Request
    ) -> dict[str, TrainedSite]:
        """Train all sites of a batch, as if each had this model; return their results."""
        settings, device = sites[0].training, sites[0].device
        start = {name: p.detach().clone() for name, p in trainable(model).items()}
        shapes = _shapes(start)
        stack = self._stack(model, shapes, len(sites)).to(device).train()
        parameters = trainable(stack)
        set_copies(parameters, start)
        rate = learning_rate_of(model, settings)
        group = {"params": list(parameters.values()), "lr": rate, "initial_lr": rate}
        optimizer = optimizer_of([group], settings)
        planned, count = extent(sites[0], request.epochs, request.steps)
        orders = [_BatchOrder(site, count) for site in sites]
        records = _JointRecords(sites)
        total, cumulative = torch.zeros(len(sites), device=device), []
        for done in range(planned):
            pace(optimizer, settings, request.round.at(done, planned))
            optimizer.zero_grad(set_to_none=True)
            now = slice(done * settings.accumulate, (done + 1) * settings.accumulate)
            total = total + records.backward(stack, [order.batches[now] for order in orders])
            if settings.max_grad_norm is not None:
                clip_copies(parameters, settings.max_grad_norm)
            optimizer.step()
            cumulative.append(total)
        results, spare = {}, self._spare.get(shapes, [])
        for index, (site, order) in enumerate(zip(sites, orders, strict=True)):
            weights = spare.pop() if spare else _buffers(start)
            for name, copies in parameters.items():
                weights[name].copy_(copies.detach()[index])
            losses = torch.stack([step[index] for step in cumulative]).cpu()
            trained = TrainedSite(start, order.rng_before, weights, losses, order.rng_after)
            results[site.name] = trained
        return results


class _JointRecords:
    """The training records of several sites in one table."""

    def __init__(self, sites: Sequence[TrainingContext]) -> None:
        tables = [cast(TokenTable, site.train) for site in sites]
        self._table = TokenTable.joined(tables)
        self._task, self._device = sites[0].task, sites[0].device
        self._starts = [sum(map(len, tables[:index])) for index in range(len(tables))]

    def backward(self, stack: nn.Module, batches: Sequence[Sequence[Tensor]]) -> Tensor:
        """Add the gradients of some batches of each site; return each site's mean loss.

        No row of one site depends on another site's weights, so the gradient of the sum of all
        losses has the gradient of each site in its own copy.
        """
        total = torch.zeros(len(batches), device=self._device)
        for rows, shares in self._joint_batches(batches):
            batch = self._table.batch(rows, device=self._device)
            losses = self._task.loss(self._task.forward(stack, batch), batch, reduction="none")
            losses = losses * shares.to(self._device)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            total = total + losses.detach().view(len(batches), -1).sum(1)
        return total

    def _joint_batches(
        self, batches: Sequence[Sequence[Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of all sites, and their shares of a mean, for each batch of a site.

        A site with fewer rows than another repeats its first row with a share of 0.
        """
        counts = [sum(map(len, of_site)) for of_site in batches]
        for together in zip(*batches, strict=True):
            longest = max(map(len, together))
            rows, shares = [], []
            for start, count, batch in zip(self._starts, counts, together, strict=True):
                padding = longest - len(batch)
                rows += [start + batch, (start + batch[:1]).expand(padding)]
                shares += [torch.full((len(batch),), 1 / count), torch.zeros(padding)]
            yield torch.cat(rows), torch.cat(shares)


class _BatchOrder:
    """The batches that a site will draw; the site's own generator does not change."""

    def __init__(self, site: TrainingContext, count: int) -> None:
        generator = torch.Generator()
        self.rng_before = site.batches_rng.get_state()
        generator.set_state(self.rng_before)
        self.batches = list(islice(_orders(site, generator), count))
        self.rng_after = generator.get_state()


def _orders(site: TrainingContext, generator: torch.Generator) -> Iterator[Tensor]:
    settings = site.training
    while True:
        yield from site.train.orders(settings.batch_size, generator, alike=settings.bucketing)


def _peers_of(sites: Iterable[TrainingContext]) -> dict[str, list[TrainingContext]]:
    """Map each site to all sites of equal settings and equally many batches, itself included."""
    groups: list[tuple[Any, list[TrainingContext]]] = []
    for site in sites:
        plain = site.max_batch is None and isinstance(site.train, TokenTable)
        batches = extent(site, 1)[1] if plain else None
        settings = (batches, site.training, site.model_settings, site.task)
        for other, peers in groups:
            if other == settings:
                peers.append(site)
                break
        else:
            groups.append((settings, [site]))
    return {site.name: peers for _, peers in groups for site in peers}


def _shapes(weights: Mapping[str, Tensor]) -> Shapes:
    """Return the shapes of a model's weights: heads differ if label sets do."""
    return tuple((name, weight.shape) for name, weight in weights.items())


def _buffers(weights: Mapping[str, Tensor]) -> Weights:
    """Make empty tensors of the same shapes."""
    return {name: torch.empty_like(weight) for name, weight in weights.items()}


def _starts_with(site: TrainingContext, weights: Mapping[str, Tensor], result: TrainedSite) -> bool:
    """Check that a site starts with the weights and the order of batches of its result."""
    same = weights.keys() == result.start.keys() and all(
        torch.equal(weights[name], start) for name, start in result.start.items()
    )
    return same and torch.equal(site.batches_rng.get_state(), result.rng_before)


@torch.no_grad()
def _apply(
    result: TrainedSite, site: TrainingContext, weights: Mapping[str, Tensor], planned: int
) -> float:
    """Leave a site's model and order of batches as its separate training would; return the loss."""
    for name, weight in weights.items():
        weight.copy_(result.weights[name])
    site.batches_rng.set_state(result.rng_after)
    for done, total in enumerate(result.cumulative_losses.tolist(), 1):
        if reports(done, planned):
            report(site, total / done, done, planned)
    return require_finite(float(result.cumulative_losses[-1]) / planned, planned)


class _Stacked(nn.Module):
    """Copies of a layer's weights."""

    def __init__(self, layer: nn.Linear | nn.LayerNorm, copies: int) -> None:
        super().__init__()
        self.weight, self.bias = _repeated(layer.weight, copies), _repeated(layer.bias, copies)

    def by_copy(self, rows: Tensor) -> Tensor:
        """Return the rows of each copy."""
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
    """Make a model of this many copies: parameters keep their names and get a first dimension."""
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
