"""Model updates as named tensors: local training, weighted means and agreement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secure_fl.algorithms.layers import head_names
from secure_fl.errors import Disagreement
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round
from secure_fl.protocol.sum_names import RECORDS

Update = dict[str, Tensor]


def local_update(
    site: Site,
    model: nn.Module,
    epochs: int,
    round: Round,
    steps: int | None = None,
    *,
    own: Collection[str] = (),
    optimizer: Optimizer | None = None,
) -> Update:
    """Train on the local records; return the shared weights' update, and restore these weights.

    `own`: weights that are not shared, besides a head of this party's own. `optimizer`: one for
    this round; default: a fresh one without corrections.
    """
    local = local_names(site, model) | set(own)
    shared = {name: weight for name, weight in trainable(model).items() if name not in local}
    train = partial(site.fit, model, epochs, round, steps=steps, optimizer=optimizer)
    return update_by(shared, train)


def local_names(site: Site, model: nn.Module) -> set[str]:
    """Return the parameters that are never sent: the head, if label sets differ."""
    return head_names(model) if site.local_head else set()


class SavedDict(dict[str, Any]):
    """A dictionary as state for checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Return the items for a checkpoint."""
        return dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the items from `state_dict`."""
        self.clear()
        self.update(state)


class Weights:
    """Some of a model's trained weights, as state for checkpoints and late joiners."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        self.model, self.names = model, tuple(names)

    def weights(self) -> Update:
        """Return the weights."""
        trained = trainable(self.model)
        return {name: trained[name] for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights for a checkpoint."""
        return {name: weight.detach() for name, weight in self.weights().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the weights from `state_dict`."""
        for name, weight in self.weights().items():
            weight.copy_(state[name])


def shared_and_local(site: Site, model: nn.Module) -> tuple[Weights, Weights]:
    """Split the weights into those equal at all parties and those of this party alone."""
    local = local_names(site, model)
    shared = [name for name in trainable(model) if name not in local]
    return Weights(model, shared), Weights(model, sorted(local))


@torch.no_grad()
def update_by(weights: Mapping[str, Tensor], train: Callable[[], object]) -> Update:
    """Train; return the update of these weights, and restore them."""
    before = {name: weight.clone() for name, weight in weights.items()}
    with torch.enable_grad():
        train()
    Δ = {name: weight - before[name] for name, weight in weights.items()}
    for name, weight in weights.items():
        weight.copy_(before[name])
    return Δ


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """Concatenate all values to one vector."""
    return torch.cat([value.flatten() for value in values.values()])


def unflat(vector: Tensor, weights: Mapping[str, Tensor]) -> Update:
    """Cut a vector into parts like these weights: the inverse of `flat`."""
    parts = torch.split(vector, [weight.numel() for weight in weights.values()])
    pairs = zip(weights.items(), parts, strict=True)
    return {name: part.view_as(w).to(w.device, w.dtype) for (name, w), part in pairs}


def zero_update(model: nn.Module) -> Update:
    """Return the update of a model that was not trained."""
    return {name: torch.zeros_like(weight) for name, weight in trainable(model).items()}


async def weighted_mean(cohort: Cohort, values: Mapping[str, Tensor], weight: float) -> Update:
    """Compute Σₖ nₖ·xₖ / Σₖ nₖ over the parties; weights nₖ are as private as the values xₖ.

    The values are multiplied in place, since a copy of a large model costs memory.
    """
    sent = {name: value.mul_(weight).cpu() for name, value in values.items()}
    sums = await cohort.sum({RECORDS: weight, **sent}, carry=True)
    total = float(sums.pop(RECORDS))
    return {
        name: torch.as_tensor(sums.pop(name) / total, dtype=value.dtype, device=value.device)
        for name, value in values.items()
    }


@torch.no_grad()
def add_(model: nn.Module, Δ: Mapping[str, Tensor]) -> None:
    """Add Δ to the weights that it names."""
    weights = trainable(model)
    for name, δ in Δ.items():
        weights[name].add_(δ)


async def agree_on(cohort: Cohort, model: nn.Module, names: Iterable[str] | None = None) -> None:
    """Stop unless these weights (None: all) are equal, bit for bit, at all parties."""
    weights = trainable(model)
    checked = weights if names is None else {name: weights[name] for name in names}
    await cohort.agree(digest(checked), "model")


def digest(weights: Mapping[str, Tensor]) -> bytes:
    """Compute a digest of these weights, bit for bit."""
    state = sha256()
    for name, weight in weights.items():
        state.update(name.encode())
        state.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.digest()


async def agree_by_name(
    cohort: Cohort, weights: Mapping[str, Tensor], common: Mapping[str, Sequence[str]]
) -> None:
    """Stop unless parts are equal, bit for bit, at all parties that hold them.

    Parties hold different parts, so each sends one digest per part, sealed for the parties.
    """
    digests = {about: digest({n: weights[n] for n in names}) for about, names in common.items()}
    received = await cohort.share({n: np.frombuffer(d, np.uint8) for n, d in digests.items()})
    for party, theirs in received.items():
        for about in digests.keys() & theirs.keys():
            if theirs[about].tobytes() != digests[about]:
                raise Disagreement(
                    f"the model ({about}) differs between parties",
                    fix="compare settings, models and library versions with this party",
                    party=party,
                )
