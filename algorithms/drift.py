"""Corrections of local steps, which keep hospitals with different records from drifting apart.

- FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous
  Networks. MLSys 2020, arXiv 1812.06127, Algorithm 2.
- SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled
  Averaging for Federated Learning. ICML 2020, arXiv 1910.06378, Algorithm 1.

Both add to the step of the local optimizer. With SGD this is the printed form. Differs: AdamW would
scale a term in the gradient to a full step, however small it is, and models learned one class. Both
depend on earlier results and this site's weights only, so they cost no privacy under DP-SGD.
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
        self._rates = 0.0  # Σ η over the steps of this round: K·η in the paper

    def optimizer(self, site: Site) -> Optimizer | None:
        """Make the optimizer of a round; None: no correction is asked for."""
        if not self._varies and not self._μ:
            return None
        weights, self._rates = self._shared.weights(), 0.0
        start = {name: w.detach().clone() for name, w in weights.items()} if self._μ else {}
        difference = {name: self._difference(name, y) for name, y in weights.items()}
        optimizer = make_optimizer(self._shared.model, site.training)

        @torch.no_grad()
        def correct(*_: object) -> None:
            η = optimizer.param_groups[0]["lr"]
            self._rates += η
            for name, y in weights.items():
                if self._μ:  # FedProx: ∇ of μ/2·‖w - w_t‖²
                    y.sub_((y - start[name]) * (self._μ * η))
                if self.common:  # SCAFFOLD, line 10: y ← y - η·(g - cᵢ + c)
                    y.sub_(difference[name] * η)

        optimizer.register_step_pre_hook(correct)
        return optimizer

    def _difference(self, name: str, like: Tensor) -> Tensor:
        """Return c - cᵢ. A newcomer has no cᵢ, so its first steps are FedAvg's."""
        if name not in self.own or name not in self.common:
            return torch.zeros_like(like)
        return (self.common[name] - self.own[name]).to(like.device)  # type: ignore[no-any-return]

    def variates(self, Δ: Update) -> Update:
        """Return the new cᵢ of a round with this update, by the names of a sum."""
        if not self._varies:
            return {}
        # Line 12, option II: cᵢ⁺ = cᵢ - c + (x - y)/(K·η)
        new = {name: -self._difference(name, δ) - δ / self._rates for name, δ in Δ.items()}
        self.own.update(new)
        return {f"{VARIATES}{name}": c.clone() for name, c in new.items()}

    def receive(self, mean: Update) -> None:
        """Take the mean of the parties' cᵢ out of an opened mean."""
        # Differs: c is the mean of those in this sum. It is that of line 17 if all take part;
        # the cᵢ of hospitals that have left do not stay in it.
        for name in [name for name in mean if name.startswith(VARIATES)]:
            self.common[name.removeprefix(VARIATES)] = mean.pop(name)
