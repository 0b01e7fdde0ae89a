"""Whole runs of InclusiveFL and its depth baselines: tiers, modes, resume, sampling, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from secure_fl import FedAvg, Federation, ModelSettings, ProtectionSettings, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.reference_points import AllLarge, AllSmall, ExclusiveFL
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.inclusivefl.mixing import ServerSGD
from secure_fl.algorithms.inclusivefl.tier_sums import TierSums
from secure_fl.algorithms.public_coins import sampled
from secure_fl.algorithms.updates import agree_by_name
from secure_fl.errors import Disagreement, ModelError, SecureFLError, SettingsError, TooFewParties
from secure_fl.learning.anatomy import depth, trainable
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.settings import DPSettings, Protection
from secure_fl.testing.harness import LossyEngine, Program, federate
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal, weights
from tests.support.killing import Killed, after, at_event, kill_when
from tests.support.raising import raises
from tests.support.token_hospitals import ner
from tests.support.toy_tiers import names_of, play

DEPTHS = {"weak": 1, "medium": 2, "strong": 3}
ONE_EACH = ("weak", "medium", "strong")
SERVERS: dict[str, dict[str, Any]] = {
    "fedadam": {"server_optimizer": "fedadam"},
    "linear": {},
}


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


@pytest.mark.parametrize("mode", get_args(Protection))
@pytest.mark.parametrize("way", SERVERS)
def test_every_way_in_every_mode(way: str, mode: Protection) -> None:
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


@pytest.mark.parametrize(  # what sealing keeps between rounds is kept besides what each way keeps
    ("way", "mode"), [*((way, "he+secagg") for way in SERVERS), ("fedadam", "none")]
)
def test_resume_is_bit_for_bit(tmp_path: Path, way: str, mode: Protection) -> None:
    algorithm = inclusive(3, **SERVERS[way], momentum="mixed")
    options: dict[str, Any] = {"mode": mode}
    whole = tiers(algorithm, folder=tmp_path / "whole", **options).run()
    events = len((tmp_path / "whole" / "events.jsonl").read_text().splitlines())
    events += sum(
        len(file.read_text().splitlines()) for file in tmp_path.glob("whole/parties/*/*.jsonl")
    )
    folder = tmp_path / "killed"
    stop = kill_when(at_event(int(events * 0.8)))
    with pytest.raises(Killed):
        tiers(algorithm, folder=folder, listener=stop, **options).run()
    resumed = tiers(algorithm, folder=folder, resume=True, **options).run()
    for name in whole.models:
        assert equal(weights(whole, name), weights(resumed, name))
    assert whole.document["metrics"] == resumed.document["metrics"]


@pytest.mark.parametrize("way", SERVERS)
def test_momentum_moves_the_weak_model_from_the_second_round_on(way: str) -> None:
    def last_layer(rounds: int, momentum: Any) -> torch.Tensor:
        algorithm = inclusive(rounds, momentum=momentum, **SERVERS[way])
        found = weights(tiers(algorithm).run(), "model-weak")
        layer: torch.Tensor = found["bert.encoder.layer.0.output.dense.weight"]
        return layer

    assert torch.equal(last_layer(1, "unmixed"), last_layer(1, "off"))
    assert not torch.equal(last_layer(2, "unmixed"), last_layer(2, "off"))


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


def test_places_are_given_out_by_shares() -> None:
    shares = {"strong": 1, "weak": 3}  # written in any order, given from weak to strong
    federation = tiers(inclusive(1, shares=shares), places=(None,) * 4)
    assert set(federation.run().models) == {"model-weak", "model"}


def test_the_same_parties_are_drawn_everywhere_and_others_in_other_rounds() -> None:
    parties = [f"p{i:03}" for i in range(100)]
    drawn = [sampled(0, number, parties, 0.1, 3) for number in range(60)]
    assert all(len(d) == 10 for d in drawn) and len(set(drawn)) > 50
    often = [sum(party in d for d in drawn) for party in parties]
    assert max(often) < 20 and min(often) >= 0 and sum(often) == 600
    assert len(sampled(0, 1, parties, 0.001, 3)) == 3  # fewer could not form a sum
    assert sampled(0, 1, parties, 1.0, 3) == frozenset(parties)
    assert sampled(0, 5, list(reversed(parties)), 0.1, 3) == drawn[5]


@pytest.mark.parametrize("way", ["fedadam", "linear"])
def test_a_sample_trains_and_everybody_follows(way: str) -> None:
    algorithm = inclusive(3, sample=0.4, **SERVERS[way])
    federation = tiers(algorithm, "he+secagg", ("weak", "strong") * 2)
    result = federation.run()
    assert set(result.models) == {"model-weak", "model"}
    trained = [h for h in result.document["seconds"]["party"].values() if "train" in h]
    assert trained


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_heads_of_parties_with_their_own_labels_stay_at_home(
    mode: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[str] = set()
    honest = Cohort.sum

    async def listening(self: Cohort, values: Any, **options: Any) -> Any:
        sent.update(values, options.get("read") or {})
        return await honest(self, values, **options)

    monkeypatch.setattr(Cohort, "sum", listening)
    whole = ner(FedAvg(rounds=1))
    parties = [replace(s, tier=t) for s, t in zip(whole.silos, ONE_EACH, strict=True)]
    protection = ProtectionSettings(mode=mode, bits=16, min_cohort=1)
    federation = ner(
        inclusive(1), mode, silos=parties, model=ModelSettings(), protection=protection
    )
    result = federation.run()
    assert set(result.models) == {f"hospital-{i}/model" for i in (1, 2, 3)}
    assert len({tuple(task.labels) for task in result.tasks.values()}) == 3
    assert sent and not any("classifier" in name for name in sent)


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


@pytest.mark.parametrize(
    ("places", "alone", "fix"),
    [
        (("weak", "strong", "strong", "strong"), "weak", "add parties to this tier, the smallest"),
        (("weak", "weak", "weak", "strong"), "strong", "give them tier 'weak'"),
    ],
)
def test_a_tier_too_small_for_its_sums_is_refused_before_training(
    places: tuple[str, ...], alone: str, fix: str
) -> None:
    with pytest.raises(TooFewParties) as caught:
        tiers(inclusive(), "he+secagg", places, min_cohort=3).run()
    text, party = str(caught.value), f"hospital-{places.index(alone) + 1}"
    assert f"tier '{alone}' has 1 party ({party})" in text
    assert fix in text and "IS that hospital" in text


def test_bad_tiers_are_explained() -> None:
    with raises(SettingsError, "'huge'", party="hospital-3", field="tier"):
        tiers(inclusive(), places=("weak", "weak", "huge")).run()
    with raises(ModelError, "9", "4", party="hospital-3", field="model.layers"):
        tiers(InclusiveFL(tiers={"weak": 1, "strong": 9}), places=("weak", "weak", "strong")).run()


def test_a_declared_tier_that_nobody_is_in() -> None:
    result = tiers(inclusive(2), places=("weak", "weak", "strong")).run()
    assert set(result.models) == {"model-weak", "model"}


# --- losses and lies -------------------------------------------------------------------------

NINE = {f"{t[0]}{i}": t for t in DEPTHS for i in range(3)}


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("exchange", [2, 3, 4])
def test_losing_a_party_costs_only_its_contribution(mode: Protection, exchange: int) -> None:
    updates = {
        p: [{name: [float(k)] * 10 for name in names_of(DEPTHS[t])}] * 2
        for k, (p, t) in enumerate(NINE.items())
    }

    def losing(sessions: Mapping[str, Session]) -> LossyEngine:
        return LossyEngine(sessions, lose={"m1": exchange})

    out = play(
        TierSums,
        NINE,
        DEPTHS,
        updates,
        server=lambda: ServerSGD(1.0),
        size=10,
        mode=mode,
        bits=24,
        engine=losing,
    )
    assert set(out.results) == set(NINE) - {"m1"}
    first = out.results["w0"][0]
    means = {"weak": 1.0, "medium": (3 + 5) / 2, "strong": 7.0}
    with_all = (3 * 1 + 3 * 4 + 3 * 7) / 9
    without = (3 * means["weak"] + 2 * means["medium"] + 3 * means["strong"]) / 8
    assert min(abs(float(first["emb.w"][0]) - x) for x in (with_all, without)) < 1e-3
    for party in out.results:
        assert torch.equal(out.results[party][1]["emb.w"], out.results["w0"][1]["emb.w"])


def test_a_tier_that_shrinks_below_min_cohort_stops_the_run() -> None:
    updates = {p: [{name: [1.0] for name in names_of(DEPTHS[t])}] * 2 for p, t in NINE.items()}
    out = play(
        TierSums,
        NINE,
        DEPTHS,
        updates,
        server=lambda: ServerSGD(1.0),
        min_cohort=3,
        mode="he+secagg",
        catch=True,
        engine=lambda sessions: LossyEngine(sessions, lose={"m1": 3}),
    )
    assert isinstance(out.error, SecureFLError) and out.results == {}


def test_parts_are_compared_with_those_who_hold_them() -> None:
    def program(party: str, value: float) -> Program:
        async def run(cohort: Cohort) -> Any:
            common = {"low": ["w"]} | ({"high": ["v"]} if party in ("b", "c") else {})
            state = {"w": torch.ones(2), "v": torch.full((3,), value)}
            await agree_by_name(cohort, state, common)
            return True

        return run

    for mode in get_args(Protection):
        fine = federate(
            {"a": program("a", 1), "b": program("b", 2), "c": program("c", 2)}, mode=mode
        )
        assert len(fine.results) == 3
        out = federate(
            {"a": program("a", 1), "b": program("b", 2), "c": program("c", 3)},
            mode=mode,
            catch=True,
        )
        found = [s.error for s in out.sessions.values() if isinstance(s.error, Disagreement)]
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


def test_dp_sgd_covers_all_that_is_sent() -> None:
    dp = DPSettings(epsilon=8.0, noise_multiplier=2.0, accountant="rdp")  # no search, no grid
    private = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu", dp=dp)
    result = tiers(inclusive(1), "he+secagg", training=private).run()
    assert result.document["privacy"] is not None
