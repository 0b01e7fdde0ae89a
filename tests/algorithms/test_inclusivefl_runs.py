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

from secure_fl import Federation, ModelSettings, ProtectionSettings, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.reference_points import AllLarge, AllSmall, ExclusiveFL
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.inclusivefl.ladder import Ladder
from secure_fl.algorithms.inclusivefl.mixing import TierSums
from secure_fl.algorithms.inclusivefl.participants import of_tiers, spread, tier_of
from secure_fl.algorithms.server_optimizers import ServerSGD
from secure_fl.algorithms.updates import agree_by_name
from secure_fl.capture.opening import RecordedRun
from secure_fl.data.silo import Silo
from secure_fl.errors import Disagreement, ModelError, SecureFLError, SettingsError, TooFewParties
from secure_fl.learning.anatomy import depth, trainable
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal, weights
from tests.support.event_documents import into
from tests.support.families import save
from tests.support.fedkd_runs import site_of
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
    return InclusiveFL(rounds=rounds, **{"tiers": DEPTHS, "momentum": "unmixed"} | options)


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
@pytest.mark.parametrize("way", SERVERS)
def test_a_tier_that_can_share_nothing_is_refused_before_training(
    way: str, alone: str, others: str
) -> None:
    """Weak models have one layer, which is their own. FedAdam sums every layer tier by tier."""
    with raises(TooFewParties, f"'{alone}'", "hospital-1", field="algorithm.tiers") as caught:
        tiers(inclusive(**SERVERS[way]), "he+secagg", (alone, *[others] * 3), min_cohort=3)
    assert ("'weak'" in str(caught.value.fix)) == (alone == "strong")  # a tier that it can join
    assert ("server_optimizer" in str(caught.value.fix)) == (way == "fedadam")


def test_a_single_tier_that_is_too_small_is_refused() -> None:
    places = ("weak", "weak", "strong", "strong")
    with raises(TooFewParties, "'strong'", field="algorithm.tiers") as caught:
        tiers(ExclusiveFL(tiers=DEPTHS), places=places, min_cohort=3).run()
    assert "add parties" in str(caught.value.fix)


# --- tiers with fewer members than `min_cohort` -----------------------------------------------

FOUR = ("weak", "weak", "medium", "strong")
LAYERS = {"weak": 2, "medium": 3, "strong": 4}
ALL = [f"hospital-{i}" for i in (1, 2, 3, 4)]


def test_four_hospitals_in_three_tiers_share_what_enough_of_them_have(tmp_path: Path) -> None:
    """With default rules: the first layer is summed over all, and nothing over fewer than three."""
    events: list[dict[str, Any]] = []
    algorithm = InclusiveFL(rounds=2, tiers=LAYERS, momentum="unmixed")
    options: dict[str, Any] = {"min_cohort": 3, "folder": tmp_path, "record": True}
    result = tiers(algorithm, "he+secagg", FOUR, listener=into(events), **options).run()
    assert set(result.models) == {f"{name}/model" for name in ALL}
    found = [trainable(model) for model in result.models.values()]
    for name in found[0]:
        same = [torch.equal(found[0][name], other[name]) for other in found[1:]]
        assert same == [".layer.0." in name] * 3
    view = RecordedRun(tmp_path)
    sums = [note for party in ALL for note in view.notes(party)]
    assert sums and all(len(s.owners) >= 3 for note in sums for s in note.segments)
    assert {part.of for part in view.parts if part.total} == {tuple(ALL)}
    layers = {one["part"]: (one["sums"], one["stay"]) for one in result.document["layers"]}
    assert layers == {
        "layer 1": ([ALL], []),
        "layer 2": ([], ALL),
        "layer 3": ([], ALL[2:]),
        "layer 4": ([], ALL[3:]),
        "output": ([], ALL),
    }
    said = [event["text"] for event in events if event["event"] == "layers"]
    assert len(said) == 4 and f"layer 1: summed over {', '.join(ALL)}" in said[0]
    page = (tmp_path / "report.html").read_text()
    assert "Parts of the models and their hospitals" in page
    plan = algorithm.sharing(dict(zip(ALL, FOUR, strict=True)), ModelSettings(), 3)
    assert plan == said[0]


def test_a_first_layer_without_a_norm_takes_the_momentum_of_the_others(tmp_path: Path) -> None:
    """ModernBERT's first layer has no attention norm, and is the last one of a tier of one."""
    model = save(tmp_path, "modernbert")
    algorithm = inclusive(tiers={"weak": 1, "strong": 3})
    result = tiers(algorithm, places=("weak", "strong"), model=model).run()
    assert [depth(one) for one in result.models.values()] == [1, 3]


def test_own_layers_are_trained_by_themselves_and_the_rest_as_printed() -> None:
    """Only medium's second layer is its own: two hospitals have it as their last."""
    places = ("weak",) * 3 + ("medium",) * 2
    depths = {"weak": 1, "medium": 2}
    made = InclusiveFL(rounds=1, tiers=depths)
    free: dict[str, Any] = {"model": ModelSettings(freeze_embeddings=False)}
    some, all_ = (tiers(made, places=places, min_cohort=n, **free).run() for n in (3, 2))
    assert equal(weights(some, "model-weak"), weights(all_, "model-weak"))
    own, mixed = weights(some, "hospital-4/model"), weights(all_, "model")
    same = {name for name in own if torch.equal(own[name], mixed[name])}
    assert same == {name for name in own if "embeddings" in name}
    assert some.document["layers"][-1] == {
        "part": "output", "sums": [ALL[:3]], "stay": ["hospital-4", "hospital-5"],
    }  # fmt: skip


def test_no_layer_stays_where_all_tiers_are_large_enough() -> None:
    events: list[dict[str, Any]] = []
    result = tiers(inclusive(1), places=ONE_EACH * 2, min_cohort=2, listener=into(events)).run()
    assert set(result.models) == {"model-weak", "model-medium", "model"}
    assert all(one["sums"] and not one["stay"] for one in result.document["layers"])
    assert not [event for event in events if event["event"] == "layers"]


def test_a_layer_whose_owners_are_lost_stays_from_then_on() -> None:
    every = {f"{t[0]}{i}": t for t in LAYERS for i in range(3)}
    before, after = (
        of_tiers(Ladder.of(LAYERS), {p: t for p, t in every.items() if p not in lost}, 3)
        for lost in ((), ("s2",))
    )
    assert not any(before.stays(part, t) for t in LAYERS for part in range(LAYERS[t]))
    assert {part for part in range(4) if after.stays(part, "strong")} == {2, 3}
    assert not any(after.stays(part, t) for t in ("weak", "medium") for part in range(LAYERS[t]))


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
            site = site_of(silo, ModelSettings())
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
