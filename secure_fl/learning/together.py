"""Sites of one process that train as one batch: what the loop gives each of them, but for rounding.

The site that asks first has others trained beside it: those that would begin with the same weights,
the same settings and equally many batches. When they ask, the result is there, if they do begin
with those weights; a site that does not trains alone, and from then on everybody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from secure_fl.learning.anatomy import trainable
from secure_fl.learning.schedule import pace
from secure_fl.learning.stacking import begin, clip_each, stackable, stacked
from secure_fl.learning.tasks.table import Table
from secure_fl.learning.training import extent, optimizer_of, report, reports, sound
from secure_fl.learning.usual import rate_of
from secure_fl.party.rounds import Round

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

COPIES = 16  # sites in a batch: of more, each gains little more
MOST_VALUES = 1 << 23  # in all copies: larger models keep a core busy by themselves


@dataclass(frozen=True, slots=True)
class Trained:
    """What one site's training comes to."""

    weights: dict[str, Tensor]
    losses: Tensor  # summed, up to each step
    before: Tensor  # the state of the site's order of batches
    after: Tensor


@dataclass
class Together:
    """Trains the sites that joined it."""

    _sites: dict[str, Site] = field(default_factory=dict)
    _alike: dict[str, list[Site]] = field(default_factory=dict)  # by site: those of its kind
    _done: dict[str, Trained] = field(default_factory=dict)
    _what: tuple[Any, ...] = ()  # was asked for of what is done
    _had: set[str] = field(default_factory=set)  # who has asked for it
    _start: dict[str, Tensor] = field(default_factory=dict)  # the weights that it began with
    _fit: WeakKeyDictionary[nn.Module, bool] = field(default_factory=WeakKeyDictionary)
    _stacks: dict[Any, nn.Module] = field(default_factory=dict)  # by copies and shapes
    _spare: dict[Any, list[dict[str, Tensor]]] = field(default_factory=dict)  # by shapes: collected
    _apart: bool = False  # whether sites were found to begin with weights of their own

    def join(self, site: Site) -> None:
        """Let a site be trained beside others."""
        self._sites[site.name] = site

    def fit(
        self, site: Site, model: nn.Module, epochs: int, round: Round, steps: int | None
    ) -> float | None:
        """Train a site's model, and others beside it; None: it has to train alone."""
        if self._apart or not self._fits(site, model):
            return None
        if self._what != (epochs, round, steps):
            self._what = (epochs, round, steps)
            self._done.clear()
            self._had.clear()
        self._had.add(site.name)
        weights = trainable(model)
        if site.name not in self._done:
            beside = self._beside(site, sum(p.numel() for p in weights.values()))
            if len(beside) < 2:
                return None
            self._train(beside, model, epochs, round, steps)
        found = self._done.pop(site.name)
        if not self._begins(site, weights, found):
            self._apart = True
            self._done.clear()
            return None
        loss = _given(site, weights, found, extent(site, epochs, steps)[0])
        self._spare.setdefault(_shapes(found.weights), []).append(found.weights)
        return loss

    def _fits(self, site: Site, model: nn.Module) -> bool:
        """Whether this model of this site can be one of a stack."""
        settings = site.training
        plain = settings.precision == "float32" and not settings.checkpointing
        if not plain or site.max_batch is not None or not isinstance(site.train, Table):
            return False
        if model not in self._fit:
            self._fit[model] = stackable(model)
        return self._fit[model]

    def _beside(self, site: Site, values: int) -> list[Site]:
        """A site, and those of its kind that are not trained yet: the nearest in size."""
        if site.name not in self._alike:
            self._alike |= _by_kind(self._sites.values())
        over = self._had | self._done.keys()
        left = [other for other in self._alike[site.name] if other.name not in over]
        left.sort(key=lambda other: abs(len(other.train) - len(site.train)))
        return [site, *left][: min(COPIES, MOST_VALUES // values)]

    def _begins(self, site: Site, weights: Mapping[str, Tensor], found: Trained) -> bool:
        """Whether a site begins with the weights and the order that were supposed."""
        same = weights.keys() == self._start.keys() and all(
            torch.equal(weights[name], start) for name, start in self._start.items()
        )
        return same and torch.equal(site.batches_rng.get_state(), found.before)

    def _stack(self, model: nn.Module, copies: int) -> nn.Module:
        """So many copies of a model; two stacks are kept, a full one and the rest's."""
        like = (copies, _shapes(self._start))
        if like not in self._stacks:
            kept = list(self._stacks.items())[-1:]
            self._stacks = dict([*kept, (like, stacked(model, copies))])
        return self._stacks[like]

    def _train(
        self, sites: Sequence[Site], model: nn.Module, epochs: int, round: Round, steps: int | None
    ) -> None:
        settings, device = sites[0].training, sites[0].device
        self._start = {name: p.detach().clone() for name, p in trainable(model).items()}
        stack = self._stack(model, len(sites)).to(device).train()
        parameters = trainable(stack)
        begin(parameters, self._start)
        rate = rate_of(model, settings)
        group = {"params": list(parameters.values()), "lr": rate, "initial_lr": rate}
        optimizer = optimizer_of([group], settings)
        planned, batches = extent(sites[0], epochs, steps)
        drawn = [_Order(site, batches) for site in sites]
        table = Table.joined([site.train for site in sites if isinstance(site.train, Table)])
        total, losses = torch.zeros(len(sites), device=device), []
        for done in range(planned):
            pace(optimizer, settings, round.at(done, planned))
            optimizer.zero_grad(set_to_none=True)
            lot = slice(done * settings.accumulate, (done + 1) * settings.accumulate)
            for rows, shares in _side_by_side([order.batches[lot] for order in drawn], sites):
                batch, task = table.batch(rows, device=device), sites[0].task
                each = task.loss(task.forward(stack, batch), batch, reduction="none")
                each = each * shares.to(device)
                each.sum().backward()  # type: ignore[no-untyped-call]
                total = total + each.detach().view(len(sites), -1).sum(1)
            if settings.max_grad_norm is not None:
                clip_each(parameters, settings.max_grad_norm)
            optimizer.step()
            losses.append(total)
        spare = self._spare.get(_shapes(self._start), [])
        for at, (site, order) in enumerate(zip(sites, drawn, strict=True)):
            kept = spare.pop() if spare else _room_for(self._start)
            for name, every in parameters.items():
                kept[name].copy_(every.detach()[at])
            summed = torch.stack([total[at] for total in losses]).cpu()
            self._done[site.name] = Trained(kept, summed, order.before, order.after)


def _by_kind(sites: Iterable[Site]) -> dict[str, list[Site]]:
    """Sites by name, each with all that have its settings and as many batches."""
    kinds: list[tuple[Any, list[Site]]] = []
    for site in sites:
        plain = site.max_batch is None and isinstance(site.train, Table)
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
    """What tells models apart: sites with labels of their own have heads of their own shape."""
    return tuple((name, weight.shape) for name, weight in weights.items())


def _room_for(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Room for as many values."""
    return {name: torch.empty_like(weight) for name, weight in weights.items()}


class _Order:
    """The batches that a site will draw, by a generator like its own, which stays as it is."""

    def __init__(self, site: Site, count: int) -> None:
        generator = torch.Generator()
        self.before = site.batches_rng.get_state()
        generator.set_state(self.before)
        self.batches = list(islice(_orders(site, generator), count))
        self.after = generator.get_state()


def _orders(site: Site, generator: torch.Generator) -> Iterator[Tensor]:
    settings = site.training
    while True:
        yield from site.train.orders(settings.batch_size, generator, alike=settings.bucketing)


def _side_by_side(
    lots: Sequence[Sequence[Tensor]], sites: Sequence[Site]
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each batch of a lot: the rows of all sites in their joint table, and their shares.

    Who has fewer rows than another has its first one again, which counts for nothing.
    """
    counts = [sum(map(len, lot)) for lot in lots]
    starts = [0]
    for site in sites[:-1]:
        starts.append(starts[-1] + len(site.train))
    for batches in zip(*lots, strict=True):
        most = max(map(len, batches))
        rows, shares = [], []
        for start, count, batch in zip(starts, counts, batches, strict=True):
            more = most - len(batch)
            rows += [start + batch, (start + batch[:1]).expand(more)]
            shares += [torch.full((len(batch),), 1 / count), torch.zeros(more)]
        yield torch.cat(rows), torch.cat(shares)


@torch.no_grad()
def _given(site: Site, weights: Mapping[str, Tensor], found: Trained, planned: int) -> float:
    """Leave in a site's model, and in its order, what training it alone would leave."""
    for name, weight in weights.items():
        weight.copy_(found.weights[name])
    site.batches_rng.set_state(found.after)
    for done, total in enumerate(found.losses.tolist(), 1):
        if reports(done, planned):
            report(site, total / done, done, planned)
    return sound(float(found.losses[-1]) / planned, planned)
