"""InclusiveFL: hospitals of different means train models of different depth together.

Liu, Wu, Wu, Wang, Lyu, Chen, Xie: No One Left Behind: Inclusive Federated Learning over
Heterogeneous Devices. KDD 2022, arXiv 2202.08036, Algorithm 1. Its parts are in `inclusive`: lines
14-29 in `tier_sums` (one sum per tier) or `sealed_mixing` (mixed under encryption).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import nn

from secure_fl.algorithms.inclusive.mixing import Mixing, Own, Reading
from secure_fl.algorithms.inclusive.sealed_mixing import SealedMixing
from secure_fl.algorithms.inclusive.server import server_of
from secure_fl.algorithms.inclusive.settings import Ladder, Tiered
from secure_fl.algorithms.inclusive.tier_sums import TierSums
from secure_fl.algorithms.inclusive.turn import Drawn, Turn, meet, require_large
from secure_fl.algorithms.layers import part_of
from secure_fl.algorithms.tiers import tier_of
from secure_fl.algorithms.updates import add_, agree_by_name, kept_at_home, local_update
from secure_fl.errors import CohortError
from secure_fl.events import ExtensionEvent
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.settings import TrainingSettings


class TierAssigned(ExtensionEvent, frozen=True, tag="tier"):
    """The tier of a party in this run."""

    tier: str
    layers: int
    """Encoder layers of the tier's model."""


class InclusiveFL(Tiered):
    """Every tier its own depth; lower layers are shared, upper ones learn from larger models."""

    name: Literal["inclusivefl"] = "inclusivefl"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """β. The paper's: 0.5 for NER, 0.2 for GLUE."""
    momentum: Reading | None = None
    """The g that line 22 reads: line 14's (unmixed), or the result of line 17 (mixed). Default:
    unmixed if the members train by SGD, else off, because AdamW's updates carry no momentum."""

    @model_validator(mode="after")
    def _weights_that_fit(self) -> InclusiveFL:
        if (self.server_optimizer, self.weights) == ("linear", "samples"):
            raise ValueError(
                'weights "users" where server_optimizer is "linear": factors are applied before '
                "sealing, when nobody knows how many records the other parties have"
            )
        return self


def mixing_of(cfg: Tiered, own: Own, training: TrainingSettings) -> Mixing:
    """The way of mixing that the settings ask for."""
    if not isinstance(cfg, InclusiveFL):  # one size: there is nothing to mix
        return TierSums(own, server_of(cfg), 0.0, "off")
    way = SealedMixing if cfg.server_optimizer == "linear" else TierSums
    usual: Reading = "unmixed" if training.optimizer == "sgd" else "off"
    return way(own, server_of(cfg), cfg.beta, cfg.momentum or usual)


async def inclusivefl(cohort: Cohort, site: Site, cfg: InclusiveFL) -> None:
    """The party program."""
    tier = tier_of(cohort, site, cfg.ladder.tiers, cfg.shares)
    await by_tiers(cohort, site, cfg, tier, cfg.ladder)


async def by_tiers(
    cohort: Cohort, site: Site, cfg: Tiered, tier: str | None, ladder: Ladder
) -> None:
    """Train a model per tier; a party in none (`tier` None) holds no model, and only follows."""
    if cohort.newcomers:
        raise CohortError(
            "parties joined late, and the others do not all hold the model of their tier",
            fix="start a new run with all parties",
            party=cohort.newcomers[0],
        )
    rules = f"{cfg.model_dump_json()} {site.seed}".encode()
    await cohort.agree(site.fingerprint() + rules, "task or settings")
    peers = await meet(cohort, tier, ladder)
    model = None
    if tier is not None:  # lines 2-3; only these layers are ever in memory
        model = site.model(site.model_settings.model_copy(update={"layers": ladder.depths[tier]}))
    own = own_part(site, model, tier)
    mixing, drawn = mixing_of(cfg, own, site.training), Drawn()
    keep: dict[str, Stateful] = {"mixing": mixing, "drawn": drawn}
    keep |= {} if model is None else {"model": model}
    weight = 1.0 if cfg.weights == "users" else site.records
    async for round in cohort.rounds(cfg.rounds, keep=keep):  # line 4
        turn = peers.turn(cohort, site.seed, round.number, cfg.sample, drawn.parties)  # lines 5-7
        require_large(turn, site.name)
        g = None
        if model is not None and mixing.trains(turn):  # lines 10-13
            Δ = local_update(site, model, cfg.epochs, round, cfg.steps)
            g = {name: δ.cpu() for name, δ in Δ.items()}
        moves = await mixing.step(cohort, turn, g, weight)  # lines 14-29
        drawn.parties = turn.trained
        if model is not None:
            add_(model, {name: move.to(site.device) for name, move in moves.items()})
        await agree_by_name(cohort, own.weights, mixing.common(turn))
        site.score(model, round.number)
    if model is not None:
        turn = peers.turn(cohort, site.seed, cfg.rounds, cfg.sample, drawn.parties)
        deliver(site, model, tier or "", turn)


def own_part(site: Site, model: nn.Module | None, tier: str | None) -> Own:
    """What this party sends of its model: all that is trained, but for a head of its own."""
    if model is None:
        return Own(site.name, None, {}, {})
    home = kept_at_home(site, model)
    parts = {name: part for name, part in part_of(model).items() if name not in home}
    return Own(site.name, tier, parts, {n: w for n, w in trainable(model).items() if n in parts})


def deliver(site: Site, model: nn.Module, tier: str, turn: Turn) -> None:
    """The largest tier's model is the global one ("model"); the others serve locally."""
    shared = not site.local_head
    largest = tier == turn.ladder.tiers[-1]
    site.recorder.event(TierAssigned(tier=tier, layers=turn.ladder.depths[tier]))
    site.deliver(model, "model" if largest or not shared else f"model-{tier}", shared=shared)
