"""FedID: Algorithm 1 by hand, the effect of settings, exchanges and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl import corpora
from secure_fl.algorithms.baselines.settings import DSFL, MHAT
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedid.algorithm import fedid
from secure_fl.algorithms.public_distillation import PublicRecords, groups
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError, Disagreement, SecureFLError, SettingsError
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.site import Site
from secure_fl.settings import ModelSettings, TaskSettings
from secure_fl.testing.harness import Program, federate
from secure_fl.testing.hospitals import HOST, LABELS, hosted, members
from tests.support.equality import equal, weights
from tests.support.event_documents import into
from tests.support.hands import AS_PRINTED, BATCH, LOCAL, NAMES, RATE, Hand, ce, order, sgd, site_of
from tests.support.raising import raises
from tests.support.saved_models import save_tiny

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
    "default": {"rounds": 2, "distill_epochs": 2},
    "alone at first": {"rounds": 3, "epochs": 1, "alone": 1},
    "feedback": {
        "rounds": 2,
        "feedback": "scalar",
        "batches_per_exchange": 2,
        "feedback_weight": 0.3,  # rounding has more effect on small feedback
    },
    "as printed": AS_PRINTED | {"rounds": 2, "distill_epochs": 2},
    "votes": {"targets": "hard", "epochs": 2},
    "strong feedback of equal parties": AS_PRINTED
    | {"feedback_weight": 50.0, "counted": "parties", "targets": "hard"},
    "older predictions": AS_PRINTED | {"feedback_weight": 50.0, "batches_per_exchange": 2},
    "no feedback": AS_PRINTED | {"feedback": "none", "host_learning_rate": 0.11},
    "no distillation": AS_PRINTED | {"distill": False, "feedback_weight": 50.0, "targets": "hard"},
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_algorithm_1_by_hand(way: str) -> None:
    """Parties of other sizes, a host of another depth: every model against independent code."""
    cfg = FedID(**{"rounds": 1} | WAYS[way], public_batch=BATCH, feedback_batch=16)
    silos, usual = members(size=(12, 20, 7)), ModelSettings(layers=1)
    silos = [*silos[:3], replace(silos[3], model=ModelSettings(layers=2))]
    result = hosted(cfg, silos=silos, model=usual, training=sgd()).run()
    hands = by_hand(silos, {s.name: s.model or usual for s in silos}, cfg)
    hands[HOST].assert_is(result.models["model"])
    for name in NAMES:
        hands[name].assert_is(result.models[f"{name}/local"])


# --- what settings change -------------------------------------------------------------------------


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


# --- what is exchanged ----------------------------------------------------------------------------


def sums_of(events: Sequence[dict[str, Any]], party: str = NAMES[0]) -> list[int]:
    """The bytes of each host sum that a party took part in."""
    return [
        e["bulk_bytes"]
        for e in events
        if (e["event"], e.get("kind"), e.get("direction")) == ("crossing", "SumInput", "out")
        and (e["party"], e["audience"]) == (party, "host")
    ]


@pytest.mark.parametrize(("together", "exchanges"), [(1, 6), (4, 2), (99, 1)])
def test_batches_together_are_fewer_exchanges_with_as_many_steps(
    together: int, exchanges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """26 records are 6 batches of 4; at most four at a time are three at a time."""
    steps: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "secure_fl.algorithms.fedid.algorithm.public_step",
        lambda site, *rest: steps.append((site.name, site.recorder.round)),
    )
    fields: dict[str, Any] = {
        "batches_per_exchange": together,
        "distill_epochs": 2,
        "fresh_optimizers": True,
    }
    cfg, events = FedID(rounds=2, public_batch=4, **fields), list[dict[str, Any]]()
    hosted(cfg, silos=members(size=8, shared=26), listener=into(events)).run()
    batches = 6
    found = sums_of(events)
    assert found == [4 * (batches // exchanges * 4 * len(LABELS) + 1)] * (2 * 2 * exchanges)
    assert cfg.releases(26, 8) == (batches // exchanges * 4, len(found))
    for name in (*NAMES, HOST):
        assert steps.count((name, 1)) == steps.count((name, 2)) == 2 * batches


@pytest.mark.parametrize("method", [FedID, DSFL, MHAT])
def test_members_learn_alone_before_they_teach(method: Any) -> None:
    """By default in half of the rounds, without sums, noise or steps on public records."""
    assert [method(rounds=n).exchanging for n in (1, 3, 4, 5, 10)] == [1, 3, 2, 3, 5]
    events: list[dict[str, Any]] = []
    cfg = method(rounds=3, alone=2, epochs=1)
    hosted(cfg, silos=members(), listener=into(events)).run()
    assert len(sums_of(events)) == cfg.exchanging == cfg.releases(22, 8)[1] == 1
    scored = {e["round"] for e in events if e["event"] == "scores" and e["party"] == HOST}
    assert scored == {1, 2, 3}
    with pytest.raises(SettingsError):
        method(rounds=2, alone=2)


def test_groups_of_batches_have_one_size_and_leave_no_batch_out() -> None:
    batches = [torch.tensor([i]) for i in range(10)]
    for most, size in ((1, 1), (2, 2), (6, 5), (9, 5), (10, 10), (11, 10), (None, 10)):
        found = list(groups(batches, most))
        assert [len(group) for group in found] == [size] * (10 // size)
        rows = torch.cat([torch.cat(tuple(group)) for group in found]).tolist()
        assert rows == list(range(10))


def test_all_members_draw_the_same_batches_and_others_in_each_pass() -> None:
    drawn = {}
    for silo in members(shared=18):
        records = PublicRecords(site_of(silo), 4)
        drawn[silo.name] = [torch.stack(records.batches(r, e)) for r, e in ((1, 0), (1, 1), (2, 0))]
    first = drawn[HOST]
    assert all(torch.equal(a, b) for d in drawn.values() for a, b in zip(d, first, strict=True))
    assert all(batches.shape == (4, 4) and len(batches.unique()) == 16 for batches in first)
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    assert not torch.equal(
        first[0], torch.stack(PublicRecords(site_of(silo, seed=1), 4).batches(1, 0))
    )


# --- members of their own -------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", ["scalar", "exact"])
def test_every_member_may_have_a_model_and_a_tokenizer_of_its_own(
    feedback: Any, tmp_path: Path
) -> None:
    words = ["the", "patient", "rash", "after", "no", "dose", "mg"]
    odd = ModelSettings(name=save_tiny(tmp_path / "odd", words, hidden_size=32), layers=2)
    models = (None, ModelSettings(layers=3, pooling="attentive"), odd, ModelSettings(layers=2))
    silos = [replace(s, model=m) for s, m in zip(members(size=8), models, strict=True)]
    cfg = FedID(rounds=1, feedback=feedback, host_learning_rate=0.1)
    result = hosted(cfg, "he+secagg", silos=silos, folder=tmp_path / "run").run()
    assert set(result.models) == {"model", *LOCAL}
    configs = {name: model.config for name, model in result.models.items()}
    assert [configs[n].num_hidden_layers for n in ("model", LOCAL[0])] == [2, 1]  # type: ignore[union-attr]
    assert configs[LOCAL[2]].hidden_size == 32  # type: ignore[union-attr]
    assert len(result.tokenizers[LOCAL[2]]) < len(result.tokenizers["model"])
    scored = {(h["party"], h.get("model", "")) for h in result.document["history"]}
    assert scored == {(HOST, ""), *((name, "local") for name in NAMES)}
    for place in ("model", *(f"parties/{name}/local" for name in NAMES)):
        model, _, task = load_exported(tmp_path / "run" / place)
        assert task.labels == LABELS and all(w.isfinite().all() for w in model.parameters())


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


@pytest.mark.parametrize("change", ["order", "text", "fewer"])
def test_members_with_other_public_records_are_named(change: str) -> None:
    silos = members(size=8)
    records: list[Any] = list(silos[0].public)
    if change == "order":
        records.reverse()
    elif change == "fewer":
        records.pop()
    else:
        records[3] = replace(records[3], text="another")
    silos[2] = replace(silos[2], public=tuple(records))
    with raises(Disagreement, party=NAMES[2]):
        hosted(silos=silos).run()


def test_a_host_with_too_few_labels_for_a_batch_is_told() -> None:
    with raises(
        DataError, "5", "8", "feedback_batch", party=HOST, field="algorithm.feedback_batch"
    ):
        cfg = FedID(rounds=1, feedback="scalar", feedback_batch=8)
        hosted(cfg, silos=members(size=8, labelled=5)).run()
    for cfg in (FedID(rounds=1, feedback="scalar"), FedID(rounds=1)):  # all there are, or none
        hosted(cfg, silos=members(size=8, labelled=5)).run()


@pytest.mark.parametrize(("kind", "corpus"), [("ner", "ner"), ("regression", "similarity")])
def test_tasks_without_classes_are_refused(kind: Any, corpus: str) -> None:
    splits = corpora.make(corpus, parties=4, seed=1, size=8, labels="shared")
    public = corpora.public(corpus, seed=1, size=8)
    silos = [Silo(n, s.train, public=public) for n, s in zip(NAMES, splits[:3], strict=True)]
    silos.append(Silo(HOST, splits[3].train, role="host", public=public))
    with raises(SettingsError, field="task.kind"):
        hosted(silos=silos, task=TaskSettings(kind=kind, max_length=32)).run()


def test_without_a_host_or_public_records_nothing_begins() -> None:
    silos = members(size=8)
    for wrong in (silos[:3], [replace(s, public=()) for s in silos]):
        with pytest.raises(SecureFLError, match=r"host|public") as caught:
            hosted(silos=wrong)
        assert caught.value.fix
