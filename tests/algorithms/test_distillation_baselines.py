"""The baselines of FedID's tables: each by hand, what it exchanges, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from scipy.special import entr, softmax
from torch import Tensor

from secure_fl import FedAvg
from secure_fl.algorithms.baselines.distillation import send_update, sharpened
from secure_fl.algorithms.baselines.settings import DSFL, MHAT, FedDF, FedED, Gong
from secure_fl.algorithms.ensembles import Ensemble
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.public_distillation import cross_entropy
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.data.silo import Silo
from secure_fl.errors import Disagreement, SettingsError
from secure_fl.learning.anatomy import trainable
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.runs import checkpoint
from secure_fl.settings import ModelSettings, Protection, TaskSettings
from secure_fl.testing.harness import Program, federate
from secure_fl.testing.hospitals import HOST, hosted, members, small
from tests.support.equality import equal, weights
from tests.support.hands import LOCAL, NAMES, Hand, ce, order, sgd
from tests.support.raising import raises

C, D0, T = 2, 16, 2  # classes, public records, rounds
SIZES = (12, 20, 7)
SHARES = [n / sum(SIZES) for n in SIZES]
STEP = 1 / (2**15 - 1)  # of a bound, in 16 bits

METHODS: dict[str, Any] = {
    "dsfl": DSFL,
    "mhat": MHAT,
    "gong": Gong,
    "feded": FedED,
    "feddf": FedDF,
}


def short(name: str, **fields: Any) -> Any:
    return METHODS[name](**{"rounds": 1, "epochs": 1, "distill_epochs": 1} | fields)


# --- by hand --------------------------------------------------------------------------------------


class Round:
    """Three parties and a host, who all hold their models, for code that sees everything."""

    def __init__(self, silos: Sequence[Silo], spec: ModelSettings) -> None:
        hands = {silo.name: Hand(silo, spec) for silo in silos}
        self.host, self.parties = hands[HOST], [hands[name] for name in NAMES]
        for k in self.parties:
            k.descend(k.own_loss())
        self.rows = torch.arange(len(silos[0].public))

    def mean(self, of: Callable[[Hand], Tensor]) -> Tensor:
        with torch.no_grad():
            return sum(
                (w * of(k) for w, k in zip(SHARES, self.parties, strict=True)), torch.zeros(())
            )

    def learn(self, who: Hand, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = ce) -> None:
        for batch in order(1, 0, len(self.rows), 1000 if len(self.rows) < 1000 else 8):
            who.descend(loss(who.ask(batch), y[batch]))

    def merged(self) -> None:
        """Line 7 of FedDF: the host's model becomes the mean of the parties'."""
        for name, weight in trainable(self.host.model).items():
            with torch.no_grad():
                weight.copy_(self.mean(lambda k, name=name: trainable(k.model)[name]))  # type: ignore[misc]


def dsfl_by_hand(r: Round) -> None:
    y = r.mean(lambda k: k.ask(r.rows).softmax(-1))
    y = torch.from_numpy(softmax(y.numpy() / 0.1, axis=-1))
    r.host.descend(r.host.own_loss())
    for member in (r.host, *r.parties):
        r.learn(member, y)


def mhat_by_hand(r: Round) -> None:
    """The host's loss is the parties' mean loss, one after the other; nothing is averaged."""
    votes = [k.ask(r.rows).argmax(-1) for k in r.parties]
    r.host.descend(r.host.own_loss())
    z = r.host.ask(r.rows)
    losses = [w * F.cross_entropy(z, v) for w, v in zip(SHARES, votes, strict=True)]
    r.host.descend(torch.stack(losses).sum())
    taught = r.host.ask(r.rows).detach().softmax(-1)
    for k in r.parties:
        r.learn(k, taught)


def gong_by_hand(r: Round, power: int = 2) -> None:
    z = r.mean(lambda k: k.ask(r.rows))
    r.host.descend(r.host.own_loss())
    r.learn(r.host, z, lambda mine, theirs: ((mine - theirs).abs() ** power).mean())


def feded_by_hand(r: Round) -> None:
    y = r.mean(lambda k: k.ask(r.rows).softmax(-1))
    r.host.descend(r.host.own_loss())
    r.learn(r.host, y, lambda z, y: F.kl_div(z.log_softmax(-1), y, reduction="batchmean"))


def feddf_by_hand(r: Round) -> None:
    z = r.mean(lambda k: k.ask(r.rows))
    r.merged()
    r.host.descend(r.host.own_loss())
    r.learn(
        r.host, z.softmax(-1), lambda z, y: F.kl_div(z.log_softmax(-1), y, reduction="batchmean")
    )


HANDS: dict[str, Callable[[Round], None]] = {
    "dsfl": dsfl_by_hand,
    "mhat": mhat_by_hand,
    "gong": gong_by_hand,
    "feded": feded_by_hand,
    "feddf": feddf_by_hand,
}


@pytest.mark.parametrize("name", METHODS)
def test_a_round_by_hand(name: str) -> None:
    silos, spec = members(size=SIZES), ModelSettings(layers=1)
    result = hosted(short(name), silos=silos, model=spec, training=sgd()).run()
    r = Round(silos, spec)
    HANDS[name](r)
    r.host.assert_is(result.models["model"])
    if name in ("dsfl", "mhat", "gong"):
        for party, hand in zip(LOCAL, r.parties, strict=True):
            hand.assert_is(result.models[party])
    else:
        assert set(result.models) == {"model"}


def test_gong_may_take_the_absolute_distance() -> None:
    silos, spec = members(size=SIZES), ModelSettings(layers=1)
    cfg = Gong(epochs=1, distill_epochs=1, distance="l1")
    result = hosted(cfg, silos=silos, model=spec, training=sgd()).run()
    r = Round(silos, spec)
    gong_by_hand(r, 1)
    r.host.assert_is(result.models["model"])


# --- the pieces -----------------------------------------------------------------------------------


def test_a_loss_to_the_sum_of_votes_is_the_sum_of_losses_to_votes() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(9, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    votes = [torch.randint(4, (9,), generator=generator) for _ in range(5)]
    one_by_one = torch.stack([F.cross_entropy(z, v) for v in votes]).sum()
    shares = torch.stack([F.one_hot(v, 4) for v in votes]).double().mean(0)
    at_once = 5 * cross_entropy(z, shares)
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss, z)[0] for loss in (at_once, one_by_one)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
def test_sharpening_is_a_softmax_of_probabilities(temperature: float) -> None:
    y = torch.rand(50, 3, generator=torch.Generator().manual_seed(2)).softmax(-1)
    found = sharpened(y, temperature).numpy()
    np.testing.assert_allclose(found, softmax(y.numpy() / temperature, axis=-1), atol=1e-6)
    calmer = entr(found).sum(-1) < entr(y.numpy()).sum(-1)
    assert calmer.all() == (temperature == 0.1)
    assert (found.argmax(-1) == y.numpy().argmax(-1)).all()


@pytest.mark.parametrize("name", ["gong", "feddf"])
def test_a_run_whose_logits_reach_the_bound_goes_on(name: str) -> None:
    cfg = short(name, logit_bound=0.01)
    found = opened(cfg, "he+secagg")
    assert found[0].abs().max() <= 0.01 * (1 + 1e-3) + 4 * STEP * 1.01


# --- one ensemble under all modes -----------------------------------------------------------------


Sent = list[tuple[str, Tensor]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """What every party gives to an ensemble, in order."""
    found: Sent = []
    honest = Ensemble.send

    async def listening(self: Ensemble, y: Tensor) -> None:
        found.append((self._cohort.me, y.clone()))
        await honest(self, y)

    monkeypatch.setattr(Ensemble, "send", listening)
    yield found


def opened(cfg: Any, mode: Any, **options: Any) -> list[Tensor]:
    """What the host opens in a run."""
    found: list[Tensor] = []
    honest = Ensemble.open

    async def listening(self: Ensemble) -> Tensor:
        found.append(await honest(self))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ensemble, "open", listening)
        hosted(cfg, mode, **options).run()
    return found


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_opened_votes_are_whole_numbers_of_parties(mode: Any, sent: Sent) -> None:
    votes = 3 * opened(MHAT(rounds=1, counted="parties"), mode)[0]
    assert (votes - votes.round()).abs().max() <= 3 * STEP * 1.01
    expected = torch.stack([y for _, y in sent]).sum(0)
    assert torch.equal(votes.round(), expected)
    assert set(expected.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert all(y.sum(-1).eq(1).all() and y.max(-1).values.eq(1).all() for _, y in sent)


BOUNDS = {"gong": 21.0, "feddf": 21.0}


@pytest.mark.parametrize("counted", ["records", pytest.param("parties", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*METHODS, "fedid"])
def test_protection_rounds_the_ensemble_and_nothing_else(name: str, counted: Any) -> None:
    """Each of three parts is rounded to a step of the bound, by less than one step."""
    cfg = FedID(rounds=1, counted=counted) if name == "fedid" else short(name, counted=counted)
    clear, sealed = opened(cfg, "none")[0], opened(cfg, "he+secagg")[0]
    parts = 3 if counted == "records" else 1  # of a weighted sum; or the mean of three
    off = (clear - sealed).abs().max()
    assert 0 < off <= parts * STEP * BOUNDS.get(name, 1.0) * 1.01
    assert (clear - clear.mean(0)).abs().max() > 0 or cfg.name == "mhat"


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_sealed_and_clear_runs_lead_to_nearly_the_same_model(name: str) -> None:
    silos = members(size=SIZES)
    training = sgd(batch_size=8)
    modes: tuple[Protection, Protection] = ("none", "he+secagg")
    runs = [hosted(short(name), mode, silos=silos, training=training).run() for mode in modes]
    clear, sealed = (weights(run) for run in runs)
    start = Hand(silos[3], ModelSettings(layers=1)).start
    off = sum(float((clear[n] - sealed[n]).square().sum()) for n in clear) ** 0.5
    moved = sum(float((clear[n] - start[n]).square().sum()) for n in clear) ** 0.5
    assert off < 0.01 * moved


# --- what is left behind --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("name", ["feded", "feddf"])
def test_all_members_end_a_round_with_the_hosts_model(name: str, mode: Any, tmp_path: Path) -> None:
    result = hosted(short(name), mode, folder=tmp_path).run()
    found = [
        checkpoint.load(tmp_path / "parties" / member / "checkpoints" / "round-00001")["keep"]
        for member in (*NAMES, HOST)
    ]
    assert all(equal(weights(result), state["model"]) for state in found)


def test_without_distillation_feddf_is_fedavg() -> None:
    silos = members(size=SIZES)
    training = sgd(batch_size=8)
    cfg = FedDF(rounds=1, epochs=1, labelled=False, host_learning_rate=1e-30)
    mean = weights(
        small(
            FedAvg(rounds=1, epochs=1), silos=[replaced(s) for s in silos[:3]], training=training
        ).run()
    )
    bounds: dict[Protection, float] = {"none": 1e-6, "he+secagg": 1e-4}
    for mode, bound in bounds.items():
        found = weights(hosted(cfg, mode, silos=silos, training=training).run())
        for name, weight in mean.items():
            torch.testing.assert_close(found[name], weight, atol=bound, rtol=1e-5)
    cfg = FedDF(rounds=1, epochs=1, labelled=False)
    other = weights(hosted(cfg, silos=silos, training=training).run())
    assert max(float((other[n] - mean[n]).abs().max()) for n in mean) > 2e-5


def replaced(silo: Silo) -> Silo:
    return Silo(silo.name, silo.train, silo.dev)


@pytest.mark.parametrize("name", ["feded", "feddf"])
def test_members_with_other_models_cannot_share_one(name: str) -> None:
    silos = members(size=8)
    deeper = Silo(NAMES[1], silos[1].train, public=silos[1].public, model=ModelSettings(layers=2))
    silos[1] = deeper
    with raises(Disagreement, party=NAMES[1]):
        hosted(short(name), silos=silos).run()
    hosted(short("dsfl"), silos=silos).run()  # where only predictions travel, they may differ


def test_one_shot_is_one_round() -> None:
    assert Gong().rounds == 1
    with pytest.raises(SettingsError, match="1"):
        Gong(rounds=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_the_hosts_labelled_records_can_be_left_alone(name: str) -> None:
    runs = [
        hosted(short(name, labelled=labelled), training=sgd()).run() for labelled in (True, False)
    ]
    assert not equal(*(weights(run) for run in runs))


@pytest.mark.parametrize("name", ["dsfl", "mhat", "gong"])
def test_pairs_of_texts_are_distilled_too(name: str) -> None:
    from secure_fl import corpora

    splits = corpora.make("pairs", parties=4, seed=1, size=8)
    public = corpora.public("pairs", seed=1, size=8)
    silos = [Silo(n, s.train, public=public) for n, s in zip(NAMES, splits[:3], strict=True)]
    silos.append(Silo(HOST, splits[3].train, role="host", public=public))
    labels = {str(e.label) for s in splits for e in s.train}  # type: ignore[union-attr]
    task = TaskSettings(kind="pair", labels=tuple(sorted(labels)), max_length=48)
    result = hosted(short(name), "he+secagg", silos=silos, task=task).run()
    assert all(w.isfinite().all() for w in weights(result).values())


@pytest.mark.parametrize("name", [n for n, e in ALGORITHMS.items() if e.has_host])
def test_as_many_predictions_are_opened_as_the_noise_is_sized_for(name: str) -> None:
    rounds = 1 if name == "gong" else 2
    make: Any = ALGORITHMS[name].settings
    cfg = make(rounds=rounds)
    found = opened(cfg, "none")
    examples, releases = cfg.releases(D0, 8)
    assert [tuple(y.shape) for y in found] == [(examples, C)] * releases


@pytest.mark.parametrize("bound", [1e-3, 10.0])
def test_a_host_that_names_a_low_bound_does_not_learn_who_is_beyond_it(bound: float) -> None:
    """A refusal would tell it, one bound after the other, how far each hospital's model moved."""

    def program(name: str, move: float) -> Program:
        async def run(cohort: Cohort) -> Any:
            if not cohort.is_host:
                await send_update(cohort, {"w": torch.full((20,), move)}, 1.0)
                return None
            await cohort.sum({"reach": [0.0]}, reveal=Audience.HOST)
            await cohort.broadcast({"reach": [bound]})
            nothing = {"w": np.zeros(20), "weight": [0.0]}
            return await cohort.sum(nothing, reveal=Audience.HOST, bound=bound)

        return run

    moves = {"a": 0.1, "b": 0.2, "c": 0.4, "hub": 0.0}
    programs = {name: program(name, move) for name, move in moves.items()}
    out = federate(programs, mode="he+secagg", min_cohort=3, host="hub")
    expected = sum(min(move, bound) for name, move in moves.items() if name != "hub")
    np.testing.assert_allclose(out.results["hub"]["w"], np.full(20, expected), rtol=0.05)
