"""Model updates as named vectors: taken from a model, averaged through the door, put back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secure_fl.algorithms.layers import head_names
from secure_fl.errors import Disagreement
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round

RECORDS = "records"  # the name under which sample counts are summed

Update = dict[str, Tensor]


def local_update(
    site: Site, model: nn.Module, epochs: int, round: Round, steps: int | None = None
) -> Update:
    """Train on the local records and return how the shared weights moved; these are put back."""
    own = kept_at_home(site, model)
    return moved(model, lambda: site.fit(model, epochs, round, steps=steps), own)


def kept_at_home(site: Site, model: nn.Module) -> set[str]:
    """What is never sent: the head, where parties have label sets of their own."""
    return head_names(model) if site.local_head else set()


class Weights:
    """Some of a model's trained weights, as checkpoints and late joiners need them."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        self._model, self.names = model, tuple(names)

    def weights(self) -> Update:
        """The weights themselves."""
        every = trainable(self._model)
        return {name: every[name] for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {name: weight.detach() for name, weight in self.weights().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for name, weight in self.weights().items():
            weight.copy_(state[name])


def common_and_own(site: Site, model: nn.Module) -> tuple[Weights, Weights]:
    """The weights that are equal at all parties, and those that are this party's alone."""
    own = kept_at_home(site, model)
    common = [name for name in trainable(model) if name not in own]
    return Weights(model, common), Weights(model, sorted(own))


def moved(model: nn.Module, train: Callable[[], object], own: Collection[str] = ()) -> Update:
    """Train, and return how the model's weights moved; they are put back, all but the `own`."""
    weights = {name: w.detach() for name, w in trainable(model).items() if name not in own}
    before = {name: weight.clone() for name, weight in weights.items()}
    train()
    Δ = {name: weight - before[name] for name, weight in weights.items()}
    for name, weight in weights.items():
        weight.copy_(before[name])
    return Δ


def still(model: nn.Module) -> Update:
    """The move of a model that was not trained."""
    return {name: torch.zeros_like(weight) for name, weight in trainable(model).items()}


async def weighted_mean(cohort: Cohort, values: Mapping[str, Tensor], weight: float) -> Update:
    """Σₖ nₖ·xₖ / Σₖ nₖ over the parties; the weights nₖ stay as private as the values xₖ.

    The values are multiplied where they lie: of a large model every copy counts.
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
    """Move the weights that Δ names."""
    weights = trainable(model)
    for name, δ in Δ.items():
        weights[name].add_(δ)


async def agree_on(cohort: Cohort, model: nn.Module, names: Iterable[str] | None = None) -> None:
    """Stop unless these weights (None: all) are equal, bit for bit, at all parties."""
    weights = trainable(model)
    held = weights if names is None else {name: weights[name] for name in names}
    await cohort.agree(digest(held), "model")


def digest(weights: Mapping[str, Tensor]) -> bytes:
    """A digest of these weights, bit for bit."""
    state = sha256()
    for name, weight in weights.items():
        state.update(name.encode())
        state.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.digest()


async def agree_by_name(
    cohort: Cohort, weights: Mapping[str, Tensor], common: Mapping[str, Sequence[str]]
) -> None:
    """Stop unless parts are equal, bit for bit, at all parties that hold them.

    A party can prove only what it holds, so each sends a digest per part, sealed for the parties.
    """
    digests = {about: digest({n: weights[n] for n in names}) for about, names in common.items()}
    told = await cohort.share({n: np.frombuffer(d, np.uint8) for n, d in digests.items()})
    for party, proofs in told.items():
        for about in digests.keys() & proofs.keys():
            if proofs[about].tobytes() != digests[about]:
                raise Disagreement(
                    f"the model ({about}) differs between parties",
                    fix="compare settings, models and library versions with this party",
                    party=party,
                )
