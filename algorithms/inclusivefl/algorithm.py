"""InclusiveFL: hospitals with different hardware train models of different depth together.

Liu, Wu, Wu, Wang, Lyu, Chen, Xie: No One Left Behind: Inclusive Federated Learning over
Heterogeneous Devices. KDD 2022, arXiv 2202.08036, Algorithm 1. Lines 5-7 are in `participants`,
lines 14-29 in `mixing`: `TierSums` (one sum per tier) or `SealedMixing` (mixed under encryption).
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from torch import nn

from secure_fl.algorithms.inclusivefl.ladder import Ladder
from secure_fl.algorithms.inclusivefl.mixing import (
    Mixing,
    PartyModel,
    SealedMixing,
    TierSums,
    server_of,
)
from secure_fl.algorithms.inclusivefl.participants import (
    FIRST,
    Participants,
    exchange_tiers,
    first_parties,
    in_words,
    sharing,
    tier_of,
)
from secure_fl.algorithms.inclusivefl.settings import InclusiveFL, Tiered
from secure_fl.algorithms.layers import part_of
from secure_fl.algorithms.updates import SavedDict, add_, agree_by_name, local_names, local_update
from secure_fl.errors import CohortError
from secure_fl.events import ExtensionEvent
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.settings import TrainingSettings


class LayersShared(ExtensionEvent, frozen=True, tag="layers"):
    """The hospitals over which each part of the models is summed, if some parts stay."""

    LEVEL: ClassVar[int] = logging.INFO

    layers: list[dict[str, Any]]
    """As in result.json."""


class TierAssigned(ExtensionEvent, frozen=True, tag="tier"):
    """The tier of a party in this run."""

    tier: str
    layers: int
    """Encoder layers of the tier's model."""


async def inclusivefl(cohort: Cohort, site: Site, cfg: InclusiveFL) -> None:
    """Run InclusiveFL at one party."""
    tier = tier_of(cohort, site, cfg.ladder.tiers, cfg.shares)
    await by_tiers(cohort, site, cfg, tier, cfg.ladder)


async def by_tiers(
    cohort: Cohort, site: Site, cfg: Tiered, tier: str | None, ladder: Ladder
) -> None:
    """Train one model per tier. A party without a tier holds no model, and joins the sums only."""
    if cohort.newcomers:
        raise CohortError(
            "parties joined late, and the others do not all hold the model of their tier",
            fix="start a new run with all parties",
            party=cohort.newcomers[0],
        )
    rules = f"{cfg.model_dump_json()} {site.seed}".encode()
    await cohort.agree(site.fingerprint() + rules, "task or settings")
    members = await exchange_tiers(cohort, tier, ladder)
    model = None
    if tier is not None:  # lines 2-3; only these layers are ever in memory
        model = site.model(site.model_settings.model_copy(update={"layers": ladder.depths[tier]}))
    party = party_model(site, model, tier)
    mixing, last = mixing_of(cfg, party, site.training), SavedDict(parties=[])  # U_{t-1}
    first = SavedDict(first_parties(cohort))
    keep: dict[str, Stateful] = {"mixing": mixing, "drawn": last, FIRST: first}
    keep |= {} if model is None else {"model": model}
    weight = 1.0 if cfg.weights == "users" else site.records
    async for round in cohort.rounds(cfg.rounds, keep=keep):  # line 4
        before = last["parties"]
        who = members.draw(cohort, site.seed, round.number, cfg.sample, before)  # lines 5-7
        mixing.check(who)
        report(site, who)
        g = None
        if model is not None and mixing.trains(who):  # lines 10-13
            # Differs: layers with fewer owners than min_cohort are trained, and stay at the party.
            Δ = local_update(site, model, cfg.epochs, round, cfg.steps, own=party.own(who))
            g = {name: δ.cpu() for name, δ in Δ.items()}
        moves = await mixing.step(cohort, who, g, weight)  # lines 14-29
        last["parties"] = who.contributing
        if model is not None:
            add_(model, {name: move.to(site.device) for name, move in moves.items()})
        await agree_by_name(cohort, party.weights, mixing.common(who))
        site.score(model, round.number)
    if model is not None:
        who = members.draw(cohort, site.seed, cfg.rounds, cfg.sample, last["parties"])
        deliver(site, model, party, who)


def mixing_of(cfg: Tiered, party: PartyModel, training: TrainingSettings) -> Mixing:
    """Make the mixing for these settings."""
    if not isinstance(cfg, InclusiveFL):  # with one model size, there is nothing to mix
        return TierSums(party, server_of(cfg), 0.0, "off")
    kind = SealedMixing if cfg.server_optimizer == "linear" else TierSums
    return kind(party, server_of(cfg), cfg.beta, cfg.momentum_source(training))


def party_model(site: Site, model: nn.Module | None, tier: str | None) -> PartyModel:
    """Describe the shared part of this party's model: all trained weights but a head of its own."""
    if model is None:
        return PartyModel(site.name, None, {}, {})
    local = local_names(site, model)
    parts = {name: part for name, part in part_of(model).items() if name not in local}
    weights = {name: weight for name, weight in trainable(model).items() if name in parts}
    return PartyModel(site.name, tier, parts, weights)


def report(site: Site, who: Participants) -> None:
    """Put the hospitals that share each layer into the result, and log them if they change."""
    settings = site.shared_model_settings
    trained = not settings.freeze_embeddings and settings.adapter is None
    found = sharing(who, embeddings=trained, output=not site.local_head)
    if found != site.findings.get("layers"):
        site.findings["layers"] = found
        if any(part["stay"] for part in found):
            site.recorder.event(LayersShared(layers=found, text=in_words(found)))


def deliver(site: Site, model: nn.Module, party: PartyModel, who: Participants) -> None:
    """Save the model: the largest tier's is the global one ("model"), others serve locally."""
    tier, shared = party.tier or "", not site.local_head and not party.own(who)
    largest = tier == who.ladder.tiers[-1]
    site.recorder.event(TierAssigned(tier=tier, layers=who.ladder.depths[tier]))
    site.deliver(model, "model" if largest or not shared else f"model-{tier}", shared=shared)
