"""Corrections of local steps, which keep hospitals with different records from drifting apart.

- FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous
  Networks. MLSys 2020, arXiv 1812.06127, Algorithm 2.
- SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled
  Averaging for Federated Learning. ICML 2020, arXiv 1910.06378, Algorithm 1.

Both add to the gradient of a step after it is clipped, and FedProx under DP-SGD after the noise, so
it costs no privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secure_fl.algorithms.settings import Averaging, Scaffold
from secure_fl.algorithms.updates import SavedDict, Update, Weights
from secure_fl.learning.local_training import Optimizer, make_optimizer
from secure_fl.learning.site import Site

VARIATES = "variates/"  # prefix of the names under which control variates are summed


class Drift:
    """One party's corrections, and its control variates as state for checkpoints."""

    def __init__(self, cfg: Averaging, shared: Weights) -> None:
        self._μ, self._varies, self._shared = cfg.proximal, isinstance(cfg, Scaffold), shared
        self.own, self.common = SavedDict(), SavedDict()  # cᵢ, which stays here, and c
        self._steps = 0
        self._start: Update = {}  # w_t of FedProx, x of SCAFFOLD
        self._gradients: Update = {}  # summed over the round's steps

    def optimizer(self, site: Site) -> Optimizer | None:
        """Make the optimizer of a round; None: no correction is asked for."""
        if not self._varies and not self._μ:
            return None
        weights = self._shared.weights()
        self._start = {name: w.detach().clone() for name, w in weights.items()} if self._μ else {}
        if self._varies:
            self._steps, self._gradients = 0, {n: torch.zeros_like(w) for n, w in weights.items()}
        optimizer = make_optimizer(self._shared.model, site.training)
        optimizer.register_step_pre_hook(lambda *_: self._correct(weights))
        return optimizer

    @torch.no_grad()
    def _correct(self, weights: Update) -> None:
        """Correct the gradients of one step."""
        self._steps += 1
        for name, y in weights.items():
            g = y.grad if y.grad is not None else torch.zeros_like(y)
            if self._varies:
                self._gradients[name].add_(g)
                if name in self.common:  # line 10: y ← y - η·(g - cᵢ + c)
                    g.add_(self._variate(self.common, y, name))
                    g.sub_(self._variate(self.own, y, name))
            if self._μ:
                g.add_((y - self._start[name]) * self._μ)  # ∇ of μ/2·‖w - w_t‖²
            y.grad = g

    def _variate(self, of: SavedDict, y: Tensor, name: str) -> Tensor:
        """Return cᵢ or c. A newcomer has no cᵢ: with c instead, its first steps are FedAvg's."""
        variate: Tensor = of.get(name, self.common[name])
        return variate.to(y.device)

    def variates(self) -> Update:
        """Return the new cᵢ of a trained round, by the names of a sum."""
        if not self._varies:
            return {}
        # Differs: line 12, option II, is this mean for SGD at a constant rate. It is also one
        # for AdamW and other rates.
        self.own.update({name: g / self._steps for name, g in self._gradients.items()})
        return {f"{VARIATES}{name}": c.clone() for name, c in self.own.items()}

    def receive(self, mean: Update) -> None:
        """Take the mean of the parties' cᵢ out of an opened mean."""
        # Differs: c is the mean of those in this sum. It is that of line 17 if all take part;
        # the cᵢ of hospitals that have left do not stay in it.
        for name in [name for name in mean if name.startswith(VARIATES)]:
            self.common[name.removeprefix(VARIATES)] = mean.pop(name)
