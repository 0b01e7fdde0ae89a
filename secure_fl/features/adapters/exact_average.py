"""FedAvg of adapters without approximation: the mean of the products, not of the factors.

The mean of Bᵢ·Aᵢ is not the mean of Bᵢ times the mean of Aᵢ, so FedAvg of LoRA's factors gives a
model that no party trained. FedEx-LoRA (Singhal, Ponkshe, Vepakomma: arXiv 2410.09432) solves this
with a server that sees every party's factors. Here nobody sees them: products are summed like
FedKD's updates in `JointFactors`, over columns of a public Ω and then over rows of a basis. The sum
has at most n·r directions, so n·r columns and two sealed sums give it exactly. A few more columns
keep Ω from being nearly singular by chance. The mean moves the frozen weights, and every round
starts with new adapters, B = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.fedkd.factor_exchange import JointFactors
from secure_fl.algorithms.settings import FedAvg
from secure_fl.algorithms.updates import Update, add_, digest, shared_and_local, update_by
from secure_fl.features.adapters.adapter_layers import redraw, set_product
from secure_fl.learning.anatomy import adapted
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round

SPARE = 4  # more columns of Ω: a square one can lose a direction to rounding (16 % at 8 bits)


class ProductSums(JointFactors):
    """Sums of products, with as many columns as the sum has directions."""

    def __init__(self, cohort: Cohort, site: Site, Θ: Update, rank: int) -> None:
        super().__init__(cohort, site.recorder, Θ, site.seed, None)
        parties = sum(party != cohort.host for party in cohort.roster)
        self._columns = parties * rank  # n·r

    async def _widths(self, G: Update, T: float) -> dict[str, int]:
        """Use the same width for all matrices; omit those that factors do not shrink."""
        most = {name: subspace.useful for name, subspace in self.shared.items()}
        return {
            name: min(self._columns + SPARE, most[name])
            for name in most
            if self._columns <= most[name]
        }


class FoldedWeights:
    """Frozen weights, moved by means of products, and their original values."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._seed, self._count = seed, 0
        self._layers = {f"{name}.base_layer.weight": la for name, la in adapted(model).items()}
        self._weights = {name: la.base_layer.weight for name, la in self._layers.items()}
        self._first = {name: weight.clone() for name, weight in self._weights.items()}
        self.Δ = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}

    @torch.no_grad()
    def products(self) -> Update:
        """Compute each layer's (α/r)·B·A."""
        return {name: layer.get_delta_weight("default") for name, layer in self._layers.items()}

    def fold(self, mean: Mapping[str, Tensor]) -> None:
        """Move the frozen weights, and start with new adapters."""
        self._count += 1
        self._put({name: move + mean[name] for name, move in self.Δ.items()})
        for name, layer in self._layers.items():
            redraw(layer, f"{self._seed}/{self._count}/{name}")

    def as_adapters(self) -> None:
        """Restore the frozen weights, and put their moves into adapters of sufficient rank."""
        for name, layer in self._layers.items():
            set_product(layer, self.Δ[name])
        self._put({name: torch.zeros_like(move) for name, move in self.Δ.items()})

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for parties that join late."""
        return {"count": self._count, "moves": self.Δ}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self._count = int(state["count"])
        self._put({name: state["moves"][name].to(move) for name, move in self.Δ.items()})

    @torch.no_grad()
    def _put(self, Δ: Update) -> None:
        """Set the weights from the sum of all moves, so that late joiners round like the others."""
        self.Δ = Δ
        for name, weight in self._weights.items():
            weight.copy_(self._first[name] + Δ[name])


async def average(cohort: Cohort, site: Site, model: nn.Module, cfg: FedAvg) -> None:
    """Run FedAvg at one party with exact sums of adapters."""
    await cohort.agree(site.fingerprint(), "task")
    adapter, folded = site.model_settings.adapter, FoldedWeights(model, site.seed)
    shared, local = shared_and_local(site, model)
    head = {name: w for name, w in shared.weights().items() if ".lora_" not in name}
    exchange = ProductSums(cohort, site, folded.Δ | head, adapter.rank if adapter else 0)
    G: Update = {}

    def train(round: Round) -> None:
        site.fit(model, cfg.epochs, round)
        G.update(folded.products())

    async for round in cohort.rounds(
        cfg.rounds,
        keep={"head": local, "residuals": exchange.personal},
        shared={"model": shared, "factors": exchange.shared, "folded": folded},
    ):
        Δ = update_by(shared.weights(), partial(train, round))
        mean = await exchange.mean(G | {name: Δ[name] for name in head}, site.records, T=1.0)
        add_(model, {name: mean[name] for name in head})
        folded.fold(mean)
        await cohort.agree(digest(shared.weights() | folded.Δ), "model")
        site.score(model, round.number)
    folded.as_adapters()
    site.deliver(model, shared=not site.local_head)
