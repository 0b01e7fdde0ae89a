"""FedAvg of adapters without its error: the parties' products are summed, not their factors.

The mean of Bᵢ·Aᵢ is not the mean of Bᵢ times the mean of Aᵢ, so FedAvg of LoRA's factors gives a
model that nobody trained. FedEx-LoRA (Singhal, Ponkshe, Vepakomma: arXiv 2410.09432) repairs that
where a server sees every party's factors. Here nobody does: products are summed as `factors.Joint`
sums FedKD's updates, over columns of a public Ω and then over rows of a basis. Their sum has at
most n·r directions, so with n·r columns two sealed sums tell it whole; a few more keep Ω from being
nearly singular by chance. The mean moves the frozen weights, and the next round's adapters begin
anew, with B = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.factors import Joint
from secure_fl.algorithms.updates import Update, add_, common_and_own, digest, moved
from secure_fl.learning.adapter_layers import adapted, redraw, set_product
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round

if TYPE_CHECKING:
    from secure_fl.algorithms.fedavg import FedAvg

SPARE = 4  # columns of Ω: a square one can hide a direction behind rounding (16 % at 8 bits, not 3)


class Products(Joint):
    """Sums of products, over as many columns as the sum has directions."""

    def __init__(self, cohort: Cohort, site: Site, Θ: Update, rank: int) -> None:
        super().__init__(cohort, site.recorder, Θ, site.seed, None)
        parties = sum(party != cohort.host for party in cohort.roster)
        self._columns = parties * rank  # n·r

    async def _widths(self, G: Update, T: float) -> dict[str, int]:
        """As many for all matrices; those that are no larger whole are left out."""
        most = {name: subspace.useful for name, subspace in self.shared.items()}
        return {
            name: min(self._columns + SPARE, most[name])
            for name in most
            if self._columns <= most[name]
        }


class Folded:
    """Frozen weights that means of products have moved, and where they were before."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._seed, self._count = seed, 0
        self._layers = {f"{name}.base_layer.weight": la for name, la in adapted(model).items()}
        self._weights = {name: la.base_layer.weight for name, la in self._layers.items()}
        self._first = {name: weight.clone() for name, weight in self._weights.items()}
        self.Δ = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}

    @torch.no_grad()
    def products(self) -> Update:
        """(α/r)·B·A of each layer: the move that its adapter stands for."""
        return {name: layer.get_delta_weight("default") for name, layer in self._layers.items()}

    def fold(self, mean: Mapping[str, Tensor]) -> None:
        """Move the frozen weights, and begin with new adapters."""
        self._count += 1
        self._put({name: move + mean[name] for name, move in self.Δ.items()})
        for name, layer in self._layers.items():
            redraw(layer, f"{self._seed}/{self._count}/{name}")

    def as_adapters(self) -> None:
        """Give the frozen weights back, and hold what moved them in adapters of its own rank."""
        for name, layer in self._layers.items():
            set_product(layer, self.Δ[name])
        self._put({name: torch.zeros_like(move) for name, move in self.Δ.items()})

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints and late joiners."""
        return {"count": self._count, "moves": self.Δ}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._count = int(state["count"])
        self._put({name: state["moves"][name].to(move) for name, move in self.Δ.items()})

    @torch.no_grad()
    def _put(self, Δ: Update) -> None:
        """Weights follow from all moves together, so late joiners round as the others did."""
        self.Δ = Δ
        for name, weight in self._weights.items():
            weight.copy_(self._first[name] + Δ[name])


def wanted(site: Site) -> bool:
    """Whether the settings ask for sums of products."""
    adapter = site.model_settings.adapter
    return adapter is not None and adapter.kind == "exact"


async def average(cohort: Cohort, site: Site, model: nn.Module, cfg: FedAvg) -> None:
    """The party program of `fedavg` for such adapters."""
    await cohort.agree(site.fingerprint(), "task")
    adapter, folded = site.model_settings.adapter, Folded(model, site.seed)
    common, own = common_and_own(site, model)
    head = {name: w for name, w in common.weights().items() if ".lora_" not in name}
    way = Products(cohort, site, folded.Δ | head, adapter.rank if adapter else 0)
    G: Update = {}

    def train(round: Round) -> None:
        site.fit(model, cfg.epochs, round)
        G.update(folded.products())

    async for round in cohort.rounds(
        cfg.rounds,
        keep={"head": own, "residuals": way.personal},
        shared={"model": common, "factors": way.shared, "folded": folded},
    ):
        Δ = moved(model, partial(train, round), own.names)
        mean = await way.mean(G | {name: Δ[name] for name in head}, site.records, T=1.0)
        add_(model, {name: mean[name] for name in head})
        folded.fold(mean)
        await cohort.agree(digest(common.weights() | folded.Δ), "model")
        site.score(model, round.number)
    folded.as_adapters()
    site.deliver(model, shared=not site.local_head)
