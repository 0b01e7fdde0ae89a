"""Noised sums of votes: settings, a party's account, one sum alone, and an algorithm of sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from secure_fl import Federation, ProtectionSettings, Silo, TrainingSettings
from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.settings import DPSettings, ModelSettings, NoiseSettings, TaskSettings
from secure_fl.testing.harness import Federated, Program, federate
from tests.support.private import notes

NAMES, HUB = ("east", "north", "south", "west"), "hub"
DELTA = 1e-5
EXAMPLES, CLASSES, SUMS = 400, 2, 2  # of a round
VOTE = np.tile([0.5, -0.5], EXAMPLES).astype(np.float32)  # all for the first class, centred


def forced(**fields: Any) -> NoiseSettings:
    return NoiseSettings(**{"epsilon": 8.0, "force": True} | fields)


def account(settings: NoiseSettings, name: str = "north", threshold: int = 3) -> NoiseLedger:
    return NoiseLedger(name, settings, threshold)


def played(settings: NoiseSettings, west: Any = VOTE, **options: Any) -> Federated:
    """One noised sum over four parties and a host; every member returns noise and sum."""

    async def program(cohort: Cohort) -> Any:
        noise = cohort.prediction_noise(EXAMPLES, CLASSES, 1)
        assert noise is not None
        cohort.reserve(noise, 1)
        values = {"y": west if cohort.me == "west" else VOTE}
        opened = await cohort.sum(values, reveal=Audience.HOST, bound=1.0, noise=noise)
        return noise, opened.get("y")

    programs: dict[str, Program] = dict.fromkeys((*NAMES, HUB), program)
    return federate(
        programs,
        host=HUB,
        mode=options.pop("mode", "he+secagg"),
        threshold=3,
        ledgers=lambda name: account(settings, name),
        **options,
    )


class Voting(Algorithm):
    """Sums of votes for a host, and nothing else: what a round of distillation opens."""

    name: Literal["voting"] = "voting"
    rounds: int = 2

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        return (model,)

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        return EXAMPLES, SUMS * self.rounds


Hook = Callable[[Site, int], None]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Hook]:
    """What happens to a party between reserving and releasing; the algorithm is registered."""
    found: dict[str, Hook] = {}

    async def voting(cohort: Cohort, site: Site, cfg: Voting) -> None:
        examples, releases = cfg.releases(0, 0)
        noise = cohort.prediction_noise(examples, CLASSES, releases)
        async for round in cohort.rounds(cfg.rounds, keep={"site": site}):
            if site.training.dp is not None and not cohort.is_host:
                site.fit(site.model(), 1, round)
            if noise is not None:
                cohort.reserve(noise, SUMS)
            if "reserved" in found:
                found["reserved"](site, round.number)
            for _ in range(SUMS):
                await cohort.sum({"y": VOTE}, reveal=Audience.HOST, bound=1.0, noise=noise)

    entry = Entry(Voting, voting, has_host=True, opens_predictions=True, dp_covers_all=True)
    monkeypatch.setitem(ALGORITHMS, "voting", entry)
    return found


def federation(noise: NoiseSettings | None, dp: DPSettings | None = None, **options: Any) -> Any:
    silos = [Silo(name, notes(30, name), public=notes(4, "p")) for name in NAMES]
    hub = Silo(HUB, notes(10, HUB), public=notes(4, "p"), role="host")
    return Federation(
        [*silos, hub],
        options.pop("algorithm", Voting()),
        task=TaskSettings(labels=("no", "yes")),
        model=ModelSettings(layers=1),
        training=TrainingSettings(batch_size=10, dp=dp, device="cpu"),
        protection=ProtectionSettings(mode=options.pop("mode", "he+secagg"), noise=noise),
        **options,
    )
