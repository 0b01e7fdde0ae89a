"""Gradients that are exchanged at every step: FedKD as its Algorithm 1 prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.updates import Update
from secure_fl.learning.models import trainable
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.learning.training import Optimizer, backward, clip, make_optimizer


class Moments:
    """An optimiser's state of some weights: the shared ones', or this party's own."""

    def __init__(self, optimizer: Optimizer, weights: Iterable[Tensor]) -> None:
        self._optimizer, self._weights = optimizer, list(weights)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints; empty before the first step."""
        state = self._optimizer.state
        return {str(at): dict(state[w]) for at, w in enumerate(self._weights) if w in state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for at, found in state.items():
            self._optimizer.state[self._weights[int(at)]] = dict(found)


class Descent:
    """One optimiser for a pair, that takes the shared weights' gradients from the cohort."""

    def __init__(self, site: Site, pair: nn.Module, shared: Mapping[str, Tensor]) -> None:
        self._site, self._pair, self._shared = site, pair, shared
        self._optimizer = make_optimizer(pair, site.training)
        common = {id(w) for w in shared.values()}
        home = [w for w in trainable(pair).values() if id(w) not in common]
        self.shared = Moments(self._optimizer, shared.values())
        self.home = Moments(self._optimizer, home)

    def gradients(self, batch: Batch) -> Update:
        """The gradients of the shared weights; all others' wait in place for `step`."""
        with self._site.recorder.phase("train"):
            self._pair.train()
            self._optimizer.zero_grad(set_to_none=True)
            backward(self._site, self._pair, batch, lambda pair, b: pair(b))
            clip(self._site, self._optimizer)
            return {
                name: torch.zeros_like(w) if w.grad is None else w.grad.detach().clone()
                for name, w in self._shared.items()
            }

    def step(self, g: Update) -> None:
        """Move everything: the shared weights by the cohort's gradients, the others by their own.

        Every party takes the same step with the same optimiser, so shared weights stay equal.
        """
        with self._site.recorder.phase("train"):
            for name, weight in self._shared.items():
                weight.grad = g[name]
            self._optimizer.step()
