"""What FedID computes: Algorithm 1 once more by hand, and what settings change of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.fedid import FedID
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.learning.anatomy import trainable
from secure_fl.party.rounds import Round
from secure_fl.settings import ModelSettings
from secure_fl.testing.hospitals import HOST, LABELS, hosted, members
from tests.support.equality import equal, weights
from tests.support.hands import AS_PRINTED, BATCH, LOCAL, NAMES, RATE, Hand, ce, order, sgd, site_of

SLOW = pytest.mark.slow


# --- against Algorithm 1, by hand -----------------------------------------------------------------


def by_hand(
    silos: Sequence[Silo], specs: Mapping[str, ModelSettings], cfg: FedID
) -> dict[str, Hand]:
    """Lines 1-25 of Algorithm 1, with a server that sees everything."""
    all_hands = {silo.name: Hand(silo, specs[silo.name]) for silo in silos}  # lines 1, 2
    host = all_hands[HOST]
    parties = [hand for name, hand in all_hands.items() if name != HOST]
    sizes = [len(silo.train) for silo in silos if silo.name != HOST]
    w = [n / sum(sizes) if cfg.counted == "records" else 1 / len(sizes) for n in sizes]
    π = [log_shares(k) if cfg.own_shares != "kept" else torch.zeros(()) for k in parties]
    for t in range(1, cfg.rounds + 1):  # line 3
        squares: list[float] = []  # of a round's feedback so far
        for k in parties:
            for _ in range(cfg.epochs):
                k.descend(k.own_loss())  # line 7
        for epoch in range(cfg.distill_epochs if t > (cfg.alone or 0) else 0):
            drawn = order(t, epoch, len(silos[0].public), BATCH)
            while drawn:  # line 9
                together = cfg.batches_per_exchange or len(drawn)
                lot, drawn = drawn[:together], drawn[together:]
                said = [
                    [predicted(k, rows, cfg, shares) for k, shares in zip(parties, π, strict=True)]
                    for rows in lot
                ]
                told = [learned(host, *pair, w, cfg) for pair in zip(lot, said, strict=True)]
                squares += [h * h for _, h in told]
                unit = sqrt(fmean(squares)) if cfg.feedback_scale == "unit" else 1.0
                for rows, Y, (y, h) in zip(lot, said, told, strict=True):
                    for k, wk, yk in zip(parties, w, Y, strict=True):
                        z = k.ask(rows)
                        loss = ce(z, y) if cfg.distill else torch.zeros(())
                        if cfg.feedback == "scalar":
                            share = wk if cfg.feedback_scale == "printed" else 1.0
                            loss = loss + cfg.feedback_weight * share * h / unit * ce(
                                z, F.one_hot(yk.argmax(-1), yk.shape[-1]).float()
                            )
                        k.descend(loss)  # line 21
        if cfg.labelled:
            for _ in range(cfg.epochs):
                host.descend(host.own_loss())
    return all_hands


def log_shares(k: Hand) -> Tensor:
    """How large a party's classes are, half a record added to each."""
    counts = [int((k.train["labels"] == c).sum()) + 0.5 for c in range(len(LABELS))]
    return torch.tensor(counts).log() - torch.tensor(sum(counts)).log()


def predicted(k: Hand, rows: Tensor, cfg: FedID, shares: Tensor) -> Tensor:
    """Line 12; as likely as a class would be if the party had as many records of each."""
    y = k.ask(rows).detach().softmax(-1) / shares.exp()
    y = y / y.sum(-1, keepdim=True)
    return y if cfg.targets == "soft" else F.one_hot(y.argmax(-1), y.shape[-1]).float()


def learned(
    host: Hand, rows: Tensor, Y: Sequence[Tensor], w: Sequence[float], cfg: FedID
) -> tuple[Tensor, float]:
    """Lines 15 to 18: the ensemble, and what a step towards it was worth."""
    y = sum((wk * yk for wk, yk in zip(w, Y, strict=True)), torch.zeros(()))
    before = float(host.own_loss().detach())
    host.descend(ce(host.ask(rows), y), cfg.host_learning_rate or RATE)
    return y, before - float(host.own_loss().detach())


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {"rounds": 2, "distill_epochs": 2},
    "each alone at first": {"rounds": 3, "epochs": 1, "alone": 1},
    "with feedback": {
        "rounds": 2,
        "feedback": "scalar",
        "batches_per_exchange": 2,
        "feedback_weight": 0.3,  # rounding counts for more where feedback is so small
    },
    "as printed": AS_PRINTED | {"rounds": 2, "distill_epochs": 2},
    "votes": AS_PRINTED | {"targets": "hard", "epochs": 2},
    "votes of parties with as many of each": {"targets": "hard", "epochs": 2},
    "strong feedback of all alike": AS_PRINTED
    | {"feedback_weight": 50.0, "counted": "parties", "targets": "hard"},
    "older predictions": AS_PRINTED | {"feedback_weight": 50.0, "batches_per_exchange": 2},
    "no feedback": AS_PRINTED | {"feedback": "none", "host_learning_rate": 0.11},
    "no distillation": AS_PRINTED | {"distill": False, "feedback_weight": 50.0, "targets": "hard"},
}


@pytest.mark.parametrize("mode", ["none", pytest.param("he+secagg", marks=SLOW)])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_algorithm_1_by_hand(way: str, mode: Any) -> None:
    """Parties of other sizes, a host of another depth: every model against independent code."""
    cfg = FedID(**{"rounds": 1} | WAYS[way], public_batch=BATCH, feedback_batch=16)
    silos = members(size=(12, 20, 7))
    deeper = ModelSettings(layers=2)
    silos = [*silos[:3], replace(silos[3], model=deeper)]
    usual = ModelSettings(layers=1)
    result = hosted(cfg, mode, silos=silos, model=usual, training=sgd()).run()
    hands = by_hand(silos, {s.name: s.model or usual for s in silos}, cfg)
    atol = 2e-6 if mode == "none" else 1e-5  # rounded votes and means
    hands[HOST].assert_is(result.models["model"], atol)
    for name in NAMES:
        hands[name].assert_is(result.models[f"{name}/local"], atol)


def test_exact_feedback_moves_parties_along_the_derivative() -> None:
    """One exchange: θᵏ moves by -ηᵏ·λ·dL_val(θ_t)/dθᵏ, found by differences of L_val."""
    cfg = FedID(
        **AS_PRINTED
        | {"feedback": "exact", "batches_per_exchange": None, "host_learning_rate": RATE},
        rounds=1,
        epochs=1,
        distill=False,
        feedback_weight=1e4,
        public_batch=16,
        feedback_batch=16,
        counted="parties",
    )
    silos, model = members(size=8), ModelSettings(layers=1)
    result = hosted(cfg, silos=silos, model=model, training=sgd()).run()
    hands = {silo.name: Hand(silo, model) for silo in silos}
    parties, host = [hands[name] for name in NAMES], hands[HOST]
    for k in parties:
        k.descend(k.own_loss())
    rows = order(1, 0, 16, 16)[0]
    weight = trainable(parties[0].model)["classifier.bias"]
    start = {n: w.detach().clone() for n, w in trainable(host.model).items()}

    def judged(nudge: float) -> float:
        with torch.no_grad():
            for name, w in trainable(host.model).items():
                w.copy_(start[name])
            weight[0] += nudge
            y = torch.stack([k.ask(rows).softmax(-1) for k in parties]).mean(0)
            weight[0] -= nudge
        host.descend(ce(host.ask(rows), y))
        return float(host.own_loss().detach().double())

    slope = (judged(0.5) - judged(-0.5)) / 1.0
    moved = trainable(result.models[LOCAL[0]])["classifier.bias"][0] - weight[0]
    assert float(moved.detach()) == pytest.approx(-RATE * 1e4 * slope, rel=0.1)
    assert abs(slope) > 1e-5


# --- what settings change -------------------------------------------------------------------------


def test_together_they_are_older_predictions_and_fewer_bytes() -> None:
    cfgs = [FedID(rounds=1, public_batch=4, batches_per_exchange=n) for n in (1, 2, 4)]
    runs = [hosted(cfg, training=sgd(batch_size=8)).run() for cfg in cfgs]
    ups = [run.document["bytes"][NAMES[0]]["up"] for run in runs]
    assert ups[0] > ups[1] > ups[2]
    assert not equal(weights(runs[0]), weights(runs[1]))


def test_without_distillation_and_with_weightless_feedback_parties_only_train_alone() -> None:
    alone = dict(zip(LOCAL, members()[:3], strict=True))
    cfg = FedID(rounds=2, distill=False, feedback="scalar", feedback_weight=0.0)
    result = hosted(cfg, training=sgd(batch_size=8)).run()
    for name, silo in alone.items():
        site = site_of(silo, sgd(batch_size=8))
        model = site.model()
        with site.surroundings():
            optimizer = site.optimizer(model)
            for number in range(1, cfg.rounds + 1):
                site.fit(model, cfg.epochs, Round(number, cfg.rounds), optimizer=optimizer)
                for rows in order(1, 0, 16, 8):  # steps on nothing, which draw dropout all the same
                    site.task.forward(model.train(), site.public.batch(rows))
        assert equal(weights(result, name), dict(detached(model)))
    start = site_of(members()[3], sgd()).model()
    assert not equal(weights(result), dict(detached(start)))  # the host learns from them


def detached(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, w.detach()) for name, w in trainable(model).items())


@pytest.mark.parametrize(
    ("feedback", "labelled", "alike"),
    [("none", False, (True, True)), ("none", True, (True, False)), ("scalar", False, (False,) * 2)],
)
def test_what_the_hosts_labels_change(
    feedback: Any, labelled: bool, alike: tuple[bool, bool]
) -> None:
    """Its labels judge steps and nothing else: without feedback, parties never hear of them."""
    silos = members()
    host = silos[3]
    turned = [
        Text(e.id, e.text, label=LABELS[1 - LABELS.index(str(e.label))])
        for e in host.train
        if isinstance(e, Text)
    ]
    others = [*silos[:3], replace(host, train=turned)]
    cfg = FedID(rounds=2, epochs=1, feedback=feedback, labelled=labelled, targets="hard")
    one, two = (hosted(cfg, silos=each).run() for each in (silos, others))
    found = (equal(weights(one, name), weights(two, name)) for name in (LOCAL[0], "model"))
    assert tuple(found) == alike


def test_fresh_optimizers_make_every_step_as_long_as_the_first() -> None:
    """AdamW's first step is η·sign(g), so three of them end η or 3η from the start."""
    training = sgd(optimizer="adamw", learning_rate=1e-3, batch_size=8)
    start = dict(detached(site_of(members()[3], training).model()))
    moved = {}
    for fresh in (True, False):
        cfg = FedID(rounds=1, fresh_optimizers=fresh, labelled=False)
        result = hosted(cfg, training=training, silos=members(shared=24)).run()
        Δ = [(w - start[n]).abs().flatten() for n, w in weights(result).items()]
        moved[fresh] = torch.cat(Δ)
    steps = torch.tensor([1e-3, 3e-3])
    near = (moved[True][:, None] - steps).abs().min(1).values < 1e-5
    other = (moved[False][:, None] - steps).abs().min(1).values < 1e-5
    # Not all: some gradients are zero, and then there is no sign.
    assert near.float().mean() > 0.75 > 0.25 > other.float().mean()
