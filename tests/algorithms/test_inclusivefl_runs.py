"""Runs of InclusiveFL and its depth baselines: tiers, modes, momentum, dropouts, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import (
    Federation,
    ModelSettings,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.reference_points import AllLarge, AllSmall, ExclusiveFL
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.inclusivefl.mixing import ServerSGD, TierSums
from secure_fl.algorithms.inclusivefl.participants import spread, tier_of
from secure_fl.algorithms.updates import agree_by_name
from secure_fl.data.silo import Silo
from secure_fl.errors import Disagreement, ModelError, SecureFLError, SettingsError, TooFewParties
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import depth, trainable
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.equality import equal, weights
from tests.support.killing import Killed, after, kill_when
from tests.support.raising import raises
from tests.support.toy_tiers import names_of, play

DEPTHS = {"weak": 1, "medium": 2, "strong": 3}
ONE_EACH = ("weak", "medium", "strong")
SERVERS: dict[str, dict[str, Any]] = {"fedadam": {"server_optimizer": "fedadam"}, "linear": {}}


def tiers(
    algorithm: Algorithm,
    mode: Protection = "none",
    places: tuple[str | None, ...] = ONE_EACH,
    *,
    min_cohort: int = 1,
    **options: Any,
) -> Federation:
    parties = [replace(s, tier=t) for s, t in zip(silos(len(places), 24), places, strict=True)]
    protection = ProtectionSettings(mode=mode, bits=16, min_cohort=min_cohort)
    given = {"silos": parties, "model": ModelSettings(), "protection": protection} | options
    return small(algorithm, mode, **given)


def inclusive(rounds: int = 2, **options: Any) -> InclusiveFL:
    return InclusiveFL(rounds=rounds, tiers=DEPTHS, **{"momentum": "unmixed"} | options)


@pytest.mark.parametrize("way", SERVERS)
@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_tiers_share_lower_layers(way: str, mode: Protection) -> None:
    result = tiers(inclusive(**SERVERS[way]), mode).run()
    last = result.document["metrics"]["last"]["party"]
    assert set(last) == {f"hospital-{i}" for i in (1, 2, 3)}  # each measures its own tier's model
    assert set(result.models) == {"model-weak", "model-medium", "model"}
    found = [result.models[name] for name in ("model-weak", "model-medium", "model")]
    assert [depth(model) for model in found] == [1, 2, 3]
    medium, strong = (trainable(model) for model in found[1:])
    below = [name for name in medium if ".layer.0." in name]
    assert below
    assert all(torch.equal(medium[name], strong[name]) for name in below)
    assert not torch.equal(medium["classifier.weight"], strong["classifier.weight"])


@pytest.mark.parametrize(("optimizer", "same"), [("adamw", "off"), ("sgd", "unmixed")])
def test_momentum_that_is_left_open_follows_the_parties_optimiser(
    optimizer: Any, same: Any
) -> None:
    training = TrainingSettings(
        learning_rate=1e-2, batch_size=16, device="cpu", optimizer=optimizer
    )

    def weak(momentum: Any) -> dict[str, Any]:
        made = tiers(inclusive(2, momentum=momentum), training=training)
        return weights(made.run(), "model-weak")

    assert equal(weak(None), weak(same))


@pytest.mark.parametrize("algorithm", [AllLarge, AllSmall])
def test_one_size_for_all(algorithm: Any) -> None:
    result = tiers(algorithm(rounds=1, tiers=DEPTHS), "he+secagg", min_cohort=3).run()
    assert set(result.models) == {"model"}
    assert depth(result.model) == (3 if algorithm is AllLarge else 1)
    assert len(result.document["metrics"]["last"]["party"]) == 3


def test_exclusive_learning_leaves_the_others_out() -> None:
    places = ("weak", "strong", "strong", "medium")
    result = tiers(ExclusiveFL(rounds=2, tiers=DEPTHS), "he+secagg", places, min_cohort=2).run()
    assert set(result.models) == {"model"} and depth(result.model) == 3
    assert set(result.document["metrics"]["last"]["party"]) == {"hospital-2", "hospital-3"}
    up = {party: sizes["up"] for party, sizes in result.document["bytes"].items()}
    assert max(up["hospital-1"], up["hospital-4"]) < 0.2 * up["hospital-2"]
    seconds = result.document["seconds"]["party"]
    assert "load model" not in seconds["hospital-1"] and "train" not in seconds["hospital-4"]


def test_equal_tiers_are_fedadam() -> None:
    """One tier, one depth: what is left of Algorithm 1 is FedAdam, to the last bit."""
    from secure_fl import FedAdam

    depths = {"weak": 1, "strong": 3}
    ours = tiers(AllSmall(rounds=2, tiers=depths, weights="samples", server_optimizer="fedadam"))
    adam = FedAdam(rounds=2, server_learning_rate=2e-3, beta1=0.9, tau=1e-3)
    theirs = tiers(adam, model=ModelSettings(layers=1))
    first, second = weights(ours.run()), weights(theirs.run())
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-6, rtol=1e-5)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(("alone", "others"), [("weak", "strong"), ("strong", "weak")])
def test_a_tier_too_small_for_its_sums_is_refused_before_training(alone: str, others: str) -> None:
    with raises(TooFewParties, f"'{alone}'", "hospital-1", field="algorithm.tiers") as caught:
        tiers(inclusive(), "he+secagg", (alone, *[others] * 3), min_cohort=3).run()
    assert ("'weak'" in str(caught.value.fix)) == (alone == "strong")  # a tier that it can join


def test_bad_tiers_are_explained() -> None:
    with raises(SettingsError, "'huge'", party="hospital-3", field="tier"):
        tiers(inclusive(), places=("weak", "weak", "huge")).run()
    with raises(ModelError, "9", "4", party="hospital-3", field="model.layers"):
        tiers(InclusiveFL(tiers={"weak": 1, "strong": 9}), places=("weak", "weak", "strong")).run()


# --- losses and lies -------------------------------------------------------------------------

NINE = {f"{t[0]}{i}": t for t in DEPTHS for i in range(3)}


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("exchange", [2, 3, 4])
def test_losing_a_party_costs_only_its_contribution(mode: Protection, exchange: int) -> None:
    updates = {
        p: [{name: [float(k)] * 10 for name in names_of(DEPTHS[t])}] * 2
        for k, (p, t) in enumerate(NINE.items())
    }
    options: dict[str, Any] = {"server": lambda: ServerSGD(1.0), "size": 10, "bits": 24}
    engine = partial(LossyEngine, lose={"m1": exchange})
    out = play(TierSums, NINE, DEPTHS, updates, mode=mode, engine=engine, **options)
    assert set(out.results) == set(NINE) - {"m1"}
    first = float(out.results["w0"][0]["emb.w"][0])
    with_all, without = (3 * 1 + 3 * 4 + 3 * 7) / 9, (3 * 1 + (3 + 5) + 3 * 7) / 8
    assert min(abs(first - with_all), abs(first - without)) < 1e-3
    for party in out.results:
        assert torch.equal(out.results[party][1]["emb.w"], out.results["w0"][1]["emb.w"])


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_parts_are_compared_with_those_who_hold_them(mode: Protection) -> None:
    def program(party: str, value: float) -> Program:
        async def run(cohort: Cohort) -> Any:
            common = {"low": ["w"]} | ({"high": ["v"]} if party in ("b", "c") else {})
            state = {"w": torch.ones(2), "v": torch.full((3,), value)}
            await agree_by_name(cohort, state, common)
            return True

        return run

    def compared(**values: float) -> Federated:
        return federate({p: program(p, v) for p, v in values.items()}, mode=mode, catch=True)

    assert len(compared(a=1, b=2, c=2).results) == 3
    errors = [s.error for s in compared(a=1, b=2, c=3).sessions.values()]
    found = [error for error in errors if isinstance(error, Disagreement)]
    assert found and "high" in str(found[0]) and found[0].where["party"] in ("b", "c")


def test_who_lost_its_model_cannot_join_late(tmp_path: Path) -> None:
    """Nobody else need hold the model of its tier, so the run says so instead of going astray."""
    algorithm = inclusive(3)
    with pytest.raises(Killed):
        tiers(algorithm, folder=tmp_path, listener=kill_when(after(2))).run()
    kept = tmp_path / "parties" / "hospital-1" / "checkpoints"
    assert list(kept.glob("round-*"))
    shutil.rmtree(kept)
    with pytest.raises(SecureFLError, match="joined late"):
        tiers(algorithm, folder=tmp_path, resume=True).run()


# --- tiers of parties -----------------------------------------------------------------------------

TWO = ("weak", "strong")


def asked(
    parties: list[Silo],
    lose: Mapping[str, int] | None = None,
    host: str | None = None,
    **options: Any,
) -> Federated:
    """Every party's tier, if it is none of these that are lost."""

    def program(silo: Silo) -> Program:
        async def run(cohort: Cohort) -> str:
            task = make_task(TaskSettings(labels=LABELS))
            spec = SiteSpec(task, ModelSettings(), TrainingSettings(), 0)
            site = Site(silo, spec, SiteContext(EventLog(silo.name)))
            return tier_of(cohort, site, TWO, options.get("shares"))

        return run

    async def hosting(cohort: Cohort) -> None:
        return None

    programs: dict[str, Program] = {silo.name: program(silo) for silo in parties}
    programs |= {} if host is None else {host: hosting}
    return federate(
        programs, host=host, engine=lambda sessions: LossyEngine(sessions, lose or {}), catch=True
    )


def test_tiers_by_shares() -> None:
    assert spread({"weak": 7, "medium": 2, "strong": 1}, 10) == ["weak"] * 7 + ["medium"] * 2 + [
        "strong"
    ]
    assert spread({"weak": 1, "medium": 1, "strong": 1}, 4) == ["weak", "weak", "medium", "strong"]
    assert len(spread({"a": 0.5, "b": 0.3, "c": 0.2}, 7)) == 7


@pytest.mark.parametrize("shares", [None, {"strong": 1.0, "weak": 1.0}])
@pytest.mark.parametrize("host", [None, "a-host"])
def test_who_is_lost_moves_nobody_to_another_tier(host: str | None, shares: Any) -> None:
    parties = silos(4, 24)
    every = {"hospital-1": "weak", "hospital-2": "weak"}
    every |= {"hospital-3": "strong", "hospital-4": "strong"}
    found = asked(parties, host=host, shares=shares).results
    assert {party: tier for party, tier in found.items() if party != host} == every
    left = asked(parties, {"hospital-1": 1}, host, shares=shares).results
    del every["hospital-1"]  # of three, the second would be among the weak
    assert {party: tier for party, tier in left.items() if party != host} == every


def test_a_silos_own_tier_is_the_first_to_count() -> None:
    first, *others = silos(3, 24)
    found = asked([replace(first, tier="strong"), *others]).results
    assert found == {"hospital-1": "strong", "hospital-2": "weak", "hospital-3": "strong"}


def test_shares_of_a_tier_that_there_is_not() -> None:
    out = asked(silos(3, 24), shares={"weak": 1.0, "huge": 1.0})
    refusal = out.sessions["hospital-1"].error
    assert isinstance(refusal, SettingsError) and "no tier 'huge'" in str(refusal)
