"""FedID whole: Algorithm 1 once more by hand, its settings, its members, and what stops it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from pydantic import ValidationError
from torch import Tensor, nn

from secure_fl import corpora
from secure_fl.algorithms.fedid import FedID, fedid
from secure_fl.algorithms.public_coins import coins
from secure_fl.algorithms.public_records import PublicRecords, lots
from secure_fl.errors import DataError, Disagreement, SecureFLError, SettingsError
from secure_fl.examples import Text
from secure_fl.models import load_exported, load_model, load_tokenizer, trainable
from secure_fl.recorder import Event, Recorder
from secure_fl.seeds import seed_for
from secure_fl.session import Session
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.silo import Silo, Site
from secure_fl.tasks import make_task
from tests.algorithms.test_fedkd import save
from tests.harness import LossyEngine, Program, federate
from tests.hospitals import HOST, LABELS, hosted, members
from tests.test_federation import equal, weights
from tests.test_resume import Killed

NAMES = [f"hospital-{i}" for i in (1, 2, 3)]
LOCAL = [f"{name}/local" for name in NAMES]
RATE, BATCH = 0.05, 4
SLOW = pytest.mark.slow


def sgd(**changes: Any) -> TrainingSettings:
    """One step on all records, and nothing but the gradient."""
    plain: dict[str, Any] = {
        "optimizer": "sgd", "learning_rate": RATE, "weight_decay": 0.0, "batch_size": 1000,
        "max_grad_norm": None, "device": "cpu",
    }  # fmt: skip
    return TrainingSettings(**plain | changes)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint without dropout."""
    with torch.random.fork_rng():
        return save(tmp_path_factory.mktemp("still"))


# --- against Algorithm 1, by hand -----------------------------------------------------------------


class Hand:
    """A member of Algorithm 1, with a model and plain gradient descent."""

    def __init__(self, silo: Silo, spec: ModelSettings) -> None:
        self.task = make_task(TaskSettings(labels=LABELS, max_length=32))
        tokenizer = load_tokenizer(spec)
        self.train = self.task.encode(silo.train, tokenizer).batch(range(len(silo.train)))
        self.public = self.task.encode(silo.public, tokenizer, labelled=False)
        self.model = load_model(spec, self.task, tokenizer, 0)
        self.start = {n: w.detach().clone() for n, w in trainable(self.model).items()}

    def ask(self, rows: Tensor) -> Tensor:
        return self.task.forward(self.model, self.public.batch(rows))

    def own_loss(self) -> Tensor:
        return F.cross_entropy(self.task.forward(self.model, self.train), self.train["labels"])

    def descend(self, loss: Tensor, rate: float = RATE) -> None:
        found = list(trainable(self.model).values())
        with torch.no_grad():
            for weight, g in zip(found, torch.autograd.grad(loss, found), strict=True):
                weight -= rate * g

    def assert_is(self, model: nn.Module, atol: float = 2e-6) -> None:
        moved = 0.0
        for name, weight in trainable(self.model).items():
            torch.testing.assert_close(trainable(model)[name], weight, atol=atol, rtol=1e-5)
            moved = max(moved, float((weight - self.start[name]).detach().abs().max()))
        assert moved > 100 * atol  # or the bound would say nothing


def ce(z: Tensor, y: Tensor) -> Tensor:
    return -(y * torch.log_softmax(z, -1)).sum(-1).mean()


def order(round: int, epoch: int, size: int, batch: int) -> list[Tensor]:
    seed = seed_for(0, "public records", round, epoch)
    drawn = np.argsort(coins(seed, np.arange(size)), kind="stable")
    return [torch.from_numpy(drawn[i : i + batch]) for i in range(0, size, batch)]


def by_hand(
    silos: Sequence[Silo], specs: Mapping[str, ModelSettings], cfg: FedID
) -> dict[str, Hand]:
    """Lines 1-25 of Algorithm 1, with a server that sees everything."""
    all_hands = {silo.name: Hand(silo, specs[silo.name]) for silo in silos}  # lines 1, 2
    host = all_hands[HOST]
    parties = [hand for name, hand in all_hands.items() if name != HOST]
    sizes = [len(silo.train) for silo in silos if silo.name != HOST]
    w = [n / sum(sizes) if cfg.counted == "records" else 1 / len(sizes) for n in sizes]
    for t in range(1, cfg.rounds + 1):  # line 3
        for k in parties:
            for _ in range(cfg.epochs):
                k.descend(k.own_loss())  # line 7
        for epoch in range(cfg.distill_epochs):
            drawn = order(t, epoch, len(silos[0].public), BATCH)
            while drawn:  # line 9
                lot, drawn = drawn[: cfg.batches_per_exchange], drawn[cfg.batches_per_exchange :]
                said = [[predicted(k, rows, cfg) for k in parties] for rows in lot]
                for rows, Y, (y, h) in [
                    (rows, Y, learned(host, rows, w, Y, cfg))
                    for rows, Y in zip(lot, said, strict=True)
                ]:
                    for k, wk, yk in zip(parties, w, Y, strict=True):
                        z = k.ask(rows)
                        loss = ce(z, y) if cfg.distill else torch.zeros(())
                        if cfg.feedback == "scalar":
                            loss = loss + cfg.feedback_weight * wk * h * ce(
                                z, F.one_hot(yk.argmax(-1), yk.shape[-1]).float()
                            )
                        k.descend(loss)  # line 21
    return all_hands


def predicted(k: Hand, rows: Tensor, cfg: FedID) -> Tensor:
    """Line 12."""
    y = k.ask(rows).detach().softmax(-1)
    return y if cfg.targets == "soft" else F.one_hot(y.argmax(-1), y.shape[-1]).float()


def learned(
    host: Hand, rows: Tensor, w: Sequence[float], Y: Sequence[Tensor], cfg: FedID
) -> tuple[Tensor, float]:
    """Lines 15 to 18: the ensemble, and what a step towards it was worth."""
    y = sum((wk * yk for wk, yk in zip(w, Y, strict=True)), torch.zeros(()))
    before = float(host.own_loss().detach())
    host.descend(ce(host.ask(rows), y), cfg.host_learning_rate or RATE)
    return y, before - float(host.own_loss().detach())


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {"rounds": 2, "distill_epochs": 2},
    "votes": {"targets": "hard", "epochs": 2},
    "strong feedback of all alike": {"feedback_weight": 50.0, "counted": "parties",
                                     "targets": "hard"},
    "older predictions": {"feedback_weight": 50.0, "batches_per_exchange": 2},
    "no feedback": {"feedback": "none", "host_learning_rate": 0.11},
    "no distillation": {"distill": False, "feedback_weight": 50.0, "targets": "hard"},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["none", pytest.param("he+secagg", marks=SLOW)])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_algorithm_1_by_hand(way: str, mode: Any, still: str) -> None:
    """Parties of other sizes, a host of another depth: every model against independent code."""
    cfg = FedID(**{"rounds": 1} | WAYS[way], public_batch=BATCH, feedback_batch=16)
    silos = members(size=(12, 20, 7))
    deeper = ModelSettings(name=still, layers=2)
    silos = [*silos[:3], replace(silos[3], model=deeper)]
    usual = ModelSettings(name=still, layers=1)
    result = hosted(cfg, mode, silos=silos, model=usual, training=sgd()).run()
    hands = by_hand(silos, {s.name: s.model or usual for s in silos}, cfg)
    atol = 2e-6 if mode == "none" else 5e-6  # rounded votes and means
    hands[HOST].assert_is(result.models["model"], atol)
    for name in NAMES:
        hands[name].assert_is(result.models[f"{name}/local"], atol)


def test_exact_feedback_moves_parties_along_the_derivative(still: str) -> None:
    """One exchange: θᵏ moves by -ηᵏ·λ·dL_val(θ_t)/dθᵏ, found by differences of L_val."""
    cfg = FedID(
        rounds=1, feedback="exact", distill=False, feedback_weight=1e4, public_batch=16,
        feedback_batch=16, counted="parties",
    )  # fmt: skip
    silos, model = members(size=8), ModelSettings(name=still, layers=1)
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


# --- what is exchanged ----------------------------------------------------------------------------


def sums_of(events: Sequence[Event], party: str = NAMES[0]) -> list[int]:
    """The bytes of each host sum that a party took part in."""
    return [
        e["bulk_bytes"] for e in events
        if (e["event"], e.get("kind"), e.get("direction")) == ("crossing", "SumInput", "out")
        and (e["party"], e["audience"]) == (party, "host")
    ]  # fmt: skip


@pytest.mark.parametrize(("together", "exchanges"), [(1, 5), (2, 2), (5, 1), (99, 1)])
def test_batches_together_are_fewer_exchanges_with_as_many_steps(
    together: int, exchanges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 records are 5 batches of 4; of these, two at a time are 4, and one is left out."""
    steps: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "secure_fl.algorithms.feedback.public_step",
        lambda site, *rest: steps.append((site.name, site.recorder.round)),
    )
    monkeypatch.setattr(
        "secure_fl.algorithms.fedid.public_step",
        lambda site, *rest: steps.append((site.name, site.recorder.round)),
    )
    cfg = FedID(rounds=2, public_batch=4, batches_per_exchange=together, distill_epochs=2)
    events: list[Event] = []
    hosted(cfg, silos=members(size=8, shared=22), listener=events.append).run()
    batches = exchanges * min(together, 5)
    found = sums_of(events)
    assert found == [4 * (batches // exchanges * 4 * len(LABELS) + 1)] * (2 * 2 * exchanges)
    assert cfg.releases(22, 8) == (batches // exchanges * 4, len(found))
    for name in (*NAMES, HOST):
        assert steps.count((name, 1)) == steps.count((name, 2)) == 2 * batches


def test_together_they_are_older_predictions_and_fewer_bytes() -> None:
    cfgs = [FedID(rounds=1, public_batch=4, batches_per_exchange=n) for n in (1, 2, 4)]
    runs = [hosted(cfg, training=sgd(batch_size=8)).run() for cfg in cfgs]
    ups = [run.document["bytes"][NAMES[0]]["up"] for run in runs]
    assert ups[0] > ups[1] > ups[2]
    assert not equal(weights(runs[0]), weights(runs[1]))


def test_lots_are_of_one_size() -> None:
    batches = [torch.tensor([i]) for i in range(7)]
    for size, count in ((1, 7), (2, 3), (3, 2), (7, 1), (8, 1)):
        found = list(lots(batches, size))
        assert [len(lot) for lot in found] == [min(size, 7)] * count
        assert torch.cat([torch.cat(tuple(lot)) for lot in found]).tolist() == list(
            range(min(size, 7) * count)
        )


def test_all_members_draw_the_same_batches_and_others_in_each_pass() -> None:
    drawn = {}
    for silo in members(shared=18):
        records = PublicRecords(site_of(silo), 4)
        drawn[silo.name] = [torch.stack(records.batches(r, e)) for r, e in ((1, 0), (1, 1), (2, 0))]
    first = drawn[HOST]
    assert all(torch.equal(a, b) for d in drawn.values() for a, b in zip(d, first, strict=True))
    assert all(batches.shape == (4, 4) and len(batches.unique()) == 16 for batches in first)
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], torch.stack(PublicRecords(site_of(silo, 1), 4).batches(1, 0)))


def site_of(silo: Silo, seed: int = 0, labels: tuple[str, ...] = LABELS) -> Site:
    settings = TaskSettings(labels=labels, max_length=32)
    training = TrainingSettings(batch_size=8, device="cpu", learning_rate=2e-3)
    made = make_task(settings, silo.train)
    return Site(silo, made, ModelSettings(layers=1), training, seed, Recorder(silo.name))


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"distill": False, "feedback": "none"}, "would learn nothing"),
        ({"feedback": "exact", "targets": "hard"}, "votes have no derivative"),
        ({"feedback": "exact", "fresh_optimizers": True}, "plain gradient descent"),
        ({"feedback": "some"}, "scalar"),
        ({"feedback_weight": -1}, "greater than or equal to 0"),
        ({"sample": 0}, "greater than 0"),
        ({"sample": 1.5}, "less than or equal to 1"),
        ({"batches_per_exchange": 0}, "greater than or equal to 1"),
        ({"host_learning_rate": 0}, "greater than 0"),
        ({"counted": "patients"}, "parties"),
    ],
)
def test_senseless_settings_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FedID(**fields)


def test_without_distillation_and_with_weightless_feedback_parties_only_train_alone() -> None:
    alone = dict(zip(LOCAL, members()[:3], strict=True))
    cfg = FedID(rounds=2, distill=False, feedback_weight=0.0)
    result = hosted(cfg, training=sgd(batch_size=8)).run()
    for name, silo in alone.items():
        site = replace_site(silo, sgd(batch_size=8))
        model = site.model()
        with site.surroundings():
            for _ in range(cfg.rounds):
                site.fit(model, cfg.epochs)
                for rows in order(1, 0, 16, 8):  # steps on nothing, which draw dropout all the same
                    site.task.forward(model.train(), site.public.batch(rows))
        assert equal(weights(result, name), dict(detached(model)))
    start = replace_site(members()[3], sgd()).model()
    assert not equal(weights(result), dict(detached(start)))  # the host learns from them


def replace_site(silo: Silo, training: TrainingSettings) -> Site:
    task = make_task(TaskSettings(labels=LABELS, max_length=32))
    return Site(silo, task, ModelSettings(layers=1), training, 0, Recorder(silo.name))


def detached(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, w.detach()) for name, w in trainable(model).items())


@pytest.mark.parametrize(("feedback", "same"), [("none", True), ("scalar", False)])
def test_the_host_is_never_trained_on_its_labelled_records(feedback: Any, same: bool) -> None:
    """Its labels judge steps and nothing else: without feedback they do not matter at all."""
    silos = members()
    host = silos[3]
    turned = [
        Text(e.id, e.text, label=LABELS[1 - LABELS.index(str(e.label))])
        for e in host.train
        if isinstance(e, Text)
    ]
    others = [*silos[:3], replace(host, train=turned)]
    cfg = FedID(rounds=1, feedback=feedback, feedback_weight=50.0, targets="hard")
    one, two = (hosted(cfg, silos=each).run() for each in (silos, others))
    assert equal(weights(one, LOCAL[0]), weights(two, LOCAL[0])) == same


def test_fresh_optimizers_make_every_step_as_long_as_the_first() -> None:
    """AdamW's first step is η·sign(g), so three of them end η or 3η from the start."""
    training = sgd(optimizer="adamw", learning_rate=1e-3, batch_size=8)
    start = dict(detached(replace_site(members()[3], training).model()))
    moved = {}
    for fresh in (True, False):
        cfg = FedID(rounds=1, feedback="none", fresh_optimizers=fresh)
        result = hosted(cfg, training=training, silos=members(shared=24)).run()
        Δ = [(w - start[n]).abs().flatten() for n, w in weights(result).items()]
        moved[fresh] = torch.cat(Δ)
    steps = torch.tensor([1e-3, 3e-3])
    near = (moved[True][:, None] - steps).abs().min(1).values < 1e-5
    other = (moved[False][:, None] - steps).abs().min(1).values < 1e-5
    # Not all: some gradients are zero, and then there is no sign.
    assert near.float().mean() > 0.75 > 0.25 > other.float().mean()


# --- members of their own -------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", ["scalar", pytest.param("exact", marks=SLOW)])
def test_every_member_may_have_a_model_and_a_tokenizer_of_its_own(
    feedback: Any, tmp_path: Path
) -> None:
    words = ["the", "patient", "rash", "after", "no", "dose", "mg"]
    odd = ModelSettings(name=save(tmp_path / "odd", words, hidden_size=32), layers=2)
    silos = members(size=8)
    silos = [
        silos[0],
        replace(silos[1], model=ModelSettings(layers=3, pooling="attentive")),
        replace(silos[2], model=odd),
        replace(silos[3], model=ModelSettings(layers=2)),
    ]
    cfg = FedID(rounds=1, feedback=feedback)
    result = hosted(cfg, "he+secagg", silos=silos, folder=tmp_path / "run").run()
    assert set(result.models) == {"model", *LOCAL}
    models: dict[str, Any] = dict(result.models)
    assert [models[n].config.num_hidden_layers for n in ("model", LOCAL[0])] == [2, 1]
    third = models[LOCAL[2]]
    assert third.config.hidden_size == 32
    assert len(result.tokenizers[LOCAL[2]]) < len(result.tokenizers["model"])
    scored = {(h["party"], h.get("model", "")) for h in result.document["history"]}
    assert scored == {(HOST, ""), *((name, "local") for name in NAMES)}
    for place in ("model", *(f"parties/{name}/local" for name in NAMES)):
        model, _, task = load_exported(tmp_path / "run" / place)
        assert task.labels == LABELS
        assert all(w.isfinite().all() for w in model.parameters())


# --- resumed --------------------------------------------------------------------------------------


def killing(sessions: Mapping[str, Session], at: int) -> Any:
    """An engine whose process ends in the middle of an exchange."""
    engine = LossyEngine(sessions)

    def tap(party: str, direction: str, frame: Any) -> Any:
        if engine.exchanges == at and party == NAMES[1]:
            raise Killed
        return frame

    engine.tap = tap
    return engine


@pytest.mark.parametrize(
    ("mode", "feedback"), [("he+secagg", "scalar"), pytest.param("none", "exact", marks=SLOW)]
)
def test_killed_in_the_second_round_it_resumes_bit_for_bit(
    mode: Any, feedback: Any, tmp_path: Path
) -> None:
    cfg = FedID(rounds=2, feedback=feedback, targets="soft")
    counted: list[LossyEngine] = []

    def count(sessions: Mapping[str, Session]) -> LossyEngine:
        counted.append(LossyEngine(sessions))
        return counted[0]

    whole = hosted(cfg, mode, folder=tmp_path / "whole").run(count)
    last = counted[0].exchanges

    def engine(at: int) -> Any:
        return lambda sessions: killing(sessions, at)

    for at in (last * 2 // 3, last - 1):
        folder = tmp_path / f"killed-{at}"
        with pytest.raises(Killed):
            hosted(cfg, mode, folder=folder).run(engine(at))
        places = [folder / "parties" / n / "checkpoints" / "round-00001" for n in (*NAMES, HOST)]
        assert all(place.exists() for place in places)
        resumed = hosted(cfg, mode, folder=folder, resume=True).run()
        assert all(equal(weights(whole, n), weights(resumed, n)) for n in ("model", *LOCAL))
        assert whole.document["history"] == resumed.document["history"]


# --- what stops it --------------------------------------------------------------------------------


def program(site: Site, cfg: FedID) -> Program:
    return lambda door: fedid(door, site, cfg)


def test_members_with_their_classes_in_another_order_are_named() -> None:
    """Predictions of one class would be added to those of another, and nobody could tell."""
    silos = members(size=8)
    sites = [site_of(s) for s in (silos[0], silos[2], silos[3])]
    odd = site_of(silos[1], labels=LABELS[::-1])
    programs = {s.name: program(s, FedID(rounds=1)) for s in (*sites, odd)}
    out = federate(programs, host=HOST, mode="secagg", min_cohort=3, catch=True)
    assert isinstance(out.error, Disagreement) and out.error.where["party"] == odd.name
    assert "SumInput" not in [e.get("kind") for e in out.events]


@pytest.mark.parametrize("change", ["order", "text", "id", "fewer"])
def test_members_with_other_public_records_are_named(change: str) -> None:
    silos = members(size=8)
    records: list[Any] = list(silos[0].public)
    if change == "order":
        records.reverse()
    elif change == "fewer":
        records.pop()
    else:
        records[3] = replace(records[3], **{change: "another"})
    silos[2] = replace(silos[2], public=tuple(records))
    with pytest.raises(Disagreement) as caught:
        hosted(silos=silos).run()
    assert caught.value.where["party"] == NAMES[2]
    relabelled = replace(silos[1], public=corpora.public("ade", seed=0, size=16))
    hosted(silos=[silos[0], relabelled, members(size=8)[2], silos[3]]).run()  # labels do not count


def test_members_with_other_settings_are_named() -> None:
    silos = members(size=8)
    sites = [site_of(s) for s in silos]
    cfgs = [FedID(rounds=1), FedID(rounds=1), FedID(rounds=1, targets="hard"), FedID(rounds=1)]
    programs = {s.name: program(s, cfg) for s, cfg in zip(sites, cfgs, strict=True)}
    out = federate(programs, host=HOST, min_cohort=3, catch=True)
    assert isinstance(out.error, Disagreement) and out.error.where["party"] == NAMES[2]


def test_a_host_with_too_few_labels_for_a_batch_is_told() -> None:
    with pytest.raises(DataError, match="5 labelled records, and a batch takes 8") as caught:
        hosted(silos=members(size=8, labelled=5)).run()
    assert caught.value.where["party"] == HOST and "feedback_batch" in caught.value.fix
    hosted(FedID(rounds=1, feedback_batch=5), silos=members(size=8, labelled=5)).run()


@pytest.mark.parametrize("kind", ["ner", "regression", "ranking"])
def test_tasks_without_classes_are_refused(kind: Any) -> None:
    corpus = {"ner": "ner", "regression": "similarity", "ranking": "news"}[kind]
    splits = corpora.make(corpus, parties=4, seed=1, size=8, labels="shared")
    public = corpora.public(corpus, seed=1, size=8)
    silos = [Silo(n, s.train, public=public) for n, s in zip(NAMES, splits[:3], strict=True)]
    silos.append(Silo(HOST, splits[3].train, role="host", public=public))
    with pytest.raises(SettingsError, match="has no classes") as caught:
        hosted(silos=silos, task=TaskSettings(kind=kind, max_length=32)).run()
    assert caught.value.where["field"] == "task.kind"


def test_without_a_host_or_public_records_nothing_begins() -> None:
    silos = members(size=8)
    for wrong in (silos[:3], [replace(s, public=()) for s in silos]):
        with pytest.raises(SecureFLError, match=r"host|public") as caught:
            hosted(silos=wrong)
        assert caught.value.fix


def test_fewer_public_records_than_a_batch_are_one_batch() -> None:
    events: list[Event] = []
    cfg = FedID(rounds=1, public_batch=50)
    hosted(cfg, silos=members(size=8, shared=5), listener=events.append).run()
    assert sums_of(events) == [4 * (5 * len(LABELS) + 1)]
    assert cfg.releases(5, 8) == (5, 1)
