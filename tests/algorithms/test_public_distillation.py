"""FedID's baselines: each by hand, its traffic, its privacy, and class shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from scipy.special import softmax
from torch import Tensor

from secure_fl import FedAvg
from secure_fl.algorithms.baselines.distillation import send_update
from secure_fl.algorithms.baselines.settings import DSFL, MHAT, FedDF, FedED, Gong
from secure_fl.algorithms.ensembles import Ensemble
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.public_distillation import (
    PublicRecords,
    class_shares,
    logits,
    party_logits,
)
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.errors import Disagreement, SettingsError
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.protocol.messages import Audience
from secure_fl.settings import DPSettings, ModelSettings, Protection, TrainingSettings
from secure_fl.testing.harness import Program, federate
from secure_fl.testing.hospitals import HOST, LABELS, hosted, members, small
from tests.support.attacker import Heard, Wiretap
from tests.support.equality import equal, kept_model, weights
from tests.support.hands import AS_PRINTED, LOCAL, NAMES, Hand, ce, order, sgd, site_of
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

C, D0, T = 2, 16, 2  # classes, public records, rounds
SIZES = (12, 20, 7)
SHARES = [n / sum(SIZES) for n in SIZES]
STEP = 1 / (2**15 - 1)  # of a bound, in 16 bits

METHODS: dict[str, Any] = {"dsfl": DSFL, "mhat": MHAT, "gong": Gong, "feded": FedED, "feddf": FedDF}


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
    "gong l1": lambda r: gong_by_hand(r, 1),
    "feded": feded_by_hand,
    "feddf": feddf_by_hand,
}


@pytest.mark.parametrize("name", [*METHODS, "gong l1"])
def test_a_round_by_hand(name: str) -> None:
    silos, spec = members(size=SIZES), ModelSettings(layers=1)
    fields = {"distance": "l1"} if name == "gong l1" else {}
    cfg = short(name.split()[0], **fields)
    result = hosted(cfg, silos=silos, model=spec, training=sgd()).run()
    r = Round(silos, spec)
    HANDS[name](r)
    r.host.assert_is(result.models["model"])
    if name in ("feded", "feddf"):
        assert set(result.models) == {"model"}
    else:
        for party, hand in zip(LOCAL, r.parties, strict=True):
            hand.assert_is(result.models[party])


# --- one ensemble under all modes -----------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["gong", "feddf"])
def test_logits_are_clamped_to_the_bound(name: str) -> None:
    found = opened(short(name, logit_bound=0.01), "he+secagg")
    assert found[0].abs().max() <= 0.01 * (1 + 1e-3) + 4 * STEP * 1.01


BOUNDS = {"gong": 21.0, "feddf": 21.0}


@pytest.mark.parametrize("name", mostly_slow([*METHODS, "fedid"], "gong", "mhat", "fedid"))
def test_protection_rounds_the_ensemble_and_nothing_else(name: str) -> None:
    """Each of three parts is rounded to a step of the bound, by less than one step."""
    cfg = FedID(rounds=1) if name == "fedid" else short(name)
    clear, sealed = opened(cfg, "none")[0], opened(cfg, "he+secagg")[0]
    assert 0 < (clear - sealed).abs().max() <= 3 * STEP * BOUNDS.get(name, 1.0) * 1.01
    assert (clear - clear.mean(0)).abs().max() > 0 or name == "mhat"


@pytest.mark.parametrize("name", mostly_slow([*METHODS, "fedid"], "feddf", "mhat", "fedid"))
def test_some_parties_are_drawn_and_the_host_may_ignore_its_labels(name: str) -> None:
    fields: dict[str, Any] = {"labelled": False, "sample": 0.5, "counted": "parties"}
    cfg = FedID(rounds=1, **fields) if name == "fedid" else short(name, **fields)
    result = hosted(cfg, silos=members(6, size=8)).run()  # 4 of 6: a sum's worth, and a dropout
    assert sum("train" in own for own in result.document["seconds"]["party"].values()) >= 4
    assert all(w.isfinite().all() for w in weights(result).values())


# --- what is left behind --------------------------------------------------------------------------


def test_without_distillation_feddf_is_fedavg(tmp_path: Path) -> None:
    silos, training = members(size=SIZES), sgd(batch_size=8)
    parties = [replace(silo, public=()) for silo in silos[:3]]
    mean = weights(small(FedAvg(rounds=1, epochs=1), silos=parties, training=training).run())
    cfg = short("feddf", labelled=False, host_learning_rate=1e-30)
    bounds: dict[Protection, float] = {"none": 1e-6, "he+secagg": 1e-4}
    for mode, bound in bounds.items():
        result = hosted(cfg, mode, silos=silos, training=training, folder=tmp_path / mode).run()
        for name, weight in weights(result).items():
            torch.testing.assert_close(weight, mean[name], atol=bound, rtol=1e-5)
        for member in (*NAMES, HOST):  # all members end a round with the host's model
            assert equal(weights(result), kept_model(tmp_path / mode, member, 1))


def test_members_with_other_models_cannot_share_one() -> None:
    silos = members(size=8)
    silos[1] = replace(silos[1], model=ModelSettings(layers=2))
    with raises(Disagreement, party=NAMES[1]):
        hosted(short("feded"), silos=silos).run()
    hosted(short("dsfl"), silos=silos).run()  # members send predictions only, so models may differ


@pytest.mark.parametrize(
    "name", mostly_slow([n for n, e in ALGORITHMS.items() if e.has_host], "fedid", "mhat", "gong")
)
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


# --- traffic, as in the paper's Table 5 -----------------------------------------------------------


def payload(heard: Heard) -> int:
    """The values in a relayed message, in bytes: all but the names and shapes before them."""
    return len(heard.bulk) - 8 - int.from_bytes(heard.bulk[:8], "little") if heard.bulk else 0


def traffic(cfg: Any) -> tuple[int, int]:
    """Bytes of values that all parties send up in sums, and that the host gives to all, once."""
    tap = Wiretap()
    hosted(cfg).run(tap)
    out = [h for h in tap.heard if h.direction == "out"]
    up = sum(
        len(h.bulk) for h in out if isinstance(h.message, messages.SumInput) and h.party != HOST
    )
    down = [h for h in out if isinstance(h.message, messages.Broadcast) and h.party == HOST]
    assert all(
        not h.bulk for h in out if isinstance(h.message, messages.Broadcast) and h.party != HOST
    )
    return up, sum(payload(h) for h in down)


K, Y = 3, 4 * D0 * C  # parties, and the bytes of one party's predictions: |D⁰| of the paper
COUNTS = 4 * 2  # a party's records and its weight, once a round; the paper leaves out such numbers


@pytest.mark.parametrize("method", [DSFL, MHAT])
def test_traffic_of_predictions(method: Any) -> None:
    up, down = traffic(method(rounds=T))
    assert up == T * K * (Y + COUNTS) and down == T * Y  # |D⁰| x (K + 1) x T


def test_traffic_of_gong() -> None:
    assert traffic(Gong()) == (K * (Y + COUNTS), 0)  # |D⁰| x K


def test_traffic_of_fedid_has_a_number_for_every_batch() -> None:
    batches = D0 // 8
    up, down = traffic(FedID(rounds=T))  # one exchange a round, and a weight with it
    assert up == T * K * (Y + 4 + 4) and down == T * (Y + 4 * batches)
    exact = AS_PRINTED | {"feedback": "exact", "host_learning_rate": 0.1}
    up, down = traffic(FedID(**exact, rounds=T))
    assert up == T * K * (Y + 4 + 4 * batches) and down == T * 2 * Y  # h is as large as y


def test_traffic_of_feded_and_feddf() -> None:
    """FedED's parties send predictions only; FedDF's model sums need a bound and a weight."""
    θ = 4 * sum(w.numel() for w in Hand(members()[3], ModelSettings(layers=1)).start.values())
    up, down = traffic(FedED(rounds=T))
    assert up == T * K * (Y + COUNTS) and down == T * θ and θ > 100 * Y  # (θ + |D⁰| x K) x T
    reach, weight = 4, 4
    up, down = traffic(FedDF(rounds=T))
    assert up == T * K * (θ + Y + COUNTS + reach + weight)
    assert down == T * (θ + 2 * reach)  # double precision there: (θ x (K + 1) + |D⁰| x K) x T


# --- class shares ---------------------------------------------------------------------------------


def lopsided(silo: Silo, often: int = 6, rarely: int = 1) -> Silo:
    """A hospital with more records of the first class than of the second."""
    kept = [e for e in silo.train if isinstance(e, Text)]
    labels = [LABELS[0]] * often + [LABELS[1]] * rarely
    return replace(
        silo, train=[replace(e, label=label) for e, label in zip(kept, labels, strict=False)]
    )


def private(**changes: Any) -> TrainingSettings:
    dp = DPSettings(epsilon=8.0, delta=1e-3)
    return TrainingSettings(batch_size=8, device="cpu", dp=dp, **changes)


def test_a_class_as_frequent_as_the_others_is_left_alone_and_a_frequent_one_is_said_less() -> None:
    site = site_of(lopsided(members(size=7)[0]))
    assert class_shares(site).tolist() == pytest.approx([6.5 / 8, 1.5 / 8])
    records, model = PublicRecords(site), site.model()
    rows, cfg = records.every(), FedID()
    kept = logits(site, model, records, rows).softmax(-1)
    found = party_logits(site, cfg, model, records, rows).softmax(-1)
    bayes = kept / class_shares(site)
    torch.testing.assert_close(found, bayes / bayes.sum(-1, keepdim=True))
    even = site_of(lopsided(members(size=8)[0], 4, 4))
    torch.testing.assert_close(party_logits(even, cfg, model, records, rows).softmax(-1), kept)
    plain = party_logits(site, FedID(own_shares="kept"), model, records, rows).softmax(-1)
    assert torch.equal(plain, kept)


def test_a_class_that_a_party_never_saw_is_not_certain() -> None:
    site = site_of(lopsided(members(size=7)[0], 7, 0))
    assert class_shares(site).tolist() == pytest.approx([7.5 / 8, 0.5 / 8])


def test_shares_change_what_the_host_learns() -> None:
    silos = [lopsided(silo) if silo.role == "party" else silo for silo in members(size=7)]
    kept, divided, default = (
        hosted(FedID(rounds=1, own_shares=way), silos=silos).run()
        for way in ("kept", "divided", None)
    )
    assert not equal(weights(kept), weights(divided)) and equal(weights(default), weights(divided))


def test_counts_are_kept_out_of_what_dp_sgd_covers() -> None:
    silo = lopsided(members(size=7)[0])
    site: Site = site_of(silo, private())
    records, model = PublicRecords(site), site.model()
    kept = logits(site, model, records, records.every())
    assert torch.equal(party_logits(site, FedID(), model, records, records.every()), kept)
    silos = [lopsided(s) if s.role == "party" else s for s in members(size=7)]
    with raises(SettingsError, field="algorithm.own_shares"):
        hosted(FedID(rounds=1, own_shares="divided"), silos=silos, training=private()).run()
