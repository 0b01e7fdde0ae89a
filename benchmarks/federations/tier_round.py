"""One round of InclusiveFL's mixing over layers of BERT-base's shapes, without models.

10 parties in three tiers with the paper's depths. The mixing is the real one, and so are sessions
and coordinator (in a process of its own). The update is noise that all parties have in common:
costs depend on shapes, and memory then goes into the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from benchmarks import bert_shapes
from benchmarks.clocks import Clocked, CpuRecorder
from benchmarks.federations.apart import run_apart
from benchmarks.federations.lone_coordinator import Spent
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.inclusivefl.algorithm import mixing_of
from secure_fl.algorithms.inclusivefl.mixing import PartyModel
from secure_fl.algorithms.inclusivefl.participants import exchange_tiers, require_large_tiers
from secure_fl.algorithms.inclusivefl.settings import Ladder
from secure_fl.algorithms.layers import Part, part_of
from secure_fl.algorithms.updates import Update, digest
from secure_fl.learning.anatomy import trainable
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ProtectionSettings, TrainingSettings

Server = Literal["fedadam", "linear"]

LADDER = Ladder.of({"weak": 4, "medium": 8, "strong": 12})
TIER_OF = {
    f"{tier}{number}": tier
    for tier, count in {"weak": 4, "medium": 3, "strong": 3}.items()
    for number in range(count)
}
SEALED = ProtectionSettings(mode="he+secagg", bits=8, min_cohort=3)


@dataclass(frozen=True, slots=True)
class Outline:
    """What mixing knows of a tier's model: names, where they belong, and how they moved."""

    parts: Mapping[str, Part]
    update: Update

    @property
    def values(self) -> int:
        """How many numbers a party of this tier trains."""
        return sum(value.numel() for value in self.update.values())


@dataclass(frozen=True, slots=True)
class Played:
    """What a round took: of the coordinator, and by party (CPU seconds)."""

    coordinator: Spent
    recorders: Mapping[str, CpuRecorder]
    mixed: Mapping[str, float]  # what is neither sealing nor opening: FedAdam, means, momentum
    equal: bool  # whether parties moved alike what their models have in common


def outlines(scale: int, seed: int) -> dict[str, Outline]:
    """One update for the largest model; smaller models have its lower layers."""
    with torch.device("meta"):
        models = {tier: bert_shapes.model(d, scale) for tier, d in LADDER.depths.items()}
    coins = torch.Generator().manual_seed(seed)
    whole = {
        name: torch.randn(weight.shape, generator=coins)
        for name, weight in trainable(models[LADDER.tiers[-1]]).items()
    }
    parts = {tier: part_of(model) for tier, model in models.items()}
    return {t: Outline(own, {name: whole[name] for name in own}) for t, own in parts.items()}


def play(server: Server, sketches: Mapping[str, Outline], seed: int) -> Played:
    """A round after the first: all have trained before, so there is momentum to mix in."""
    cfg = InclusiveFL(tiers=dict(LADDER.depths), server_optimizer=server, momentum="unmixed")
    recorders = {name: CpuRecorder(name) for name in TIER_OF}
    mixed: dict[str, float] = {}
    proofs: dict[str, dict[str, bytes]] = {}

    async def program(cohort: Cohort) -> None:
        me, tier = cohort.me, TIER_OF[cohort.me]
        g, peers = sketches[tier].update, await exchange_tiers(cohort, tier, LADDER)
        turn = peers.draw(cohort, seed, 2, 1.0, frozenset(cohort.parties))
        require_large_tiers(turn, me)
        own = PartyModel(me, tier, sketches[tier].parts, g)
        mixing = mixing_of(cfg, own, TrainingSettings())
        # Momentum lies with the smaller tier, which opened it, or with the larger, which adds it.
        neighbour = LADDER.above(tier) if server == "fedadam" else LADDER.below(tier)
        m = {inner: g[name] for inner, name in own.last(turn).items()} if neighbour else {}
        mixing.load_state_dict(mixing.state_dict() | {"momentum": m})
        step = Clocked(mixing.step(cohort, turn, g, 1.0))
        moves = await step
        mixed[me] = step.seconds - sum(recorders[me].seconds.values())
        common = mixing.common(turn)
        proofs[me] = {part: digest({n: moves[n] for n in names}) for part, names in common.items()}

    spent = run_apart(SEALED, program, recorders)
    found: dict[str, set[bytes]] = {}
    for proof in proofs.values():
        for part, value in proof.items():
            found.setdefault(part, set()).add(value)
    return Played(spent, recorders, mixed, all(len(values) == 1 for values in found.values()))
