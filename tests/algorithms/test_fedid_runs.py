"""FedID as a run: what is exchanged, members of their own, resuming, and what stops it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import corpora
from secure_fl.algorithms.baselines.settings import DSFL, MHAT
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedid.algorithm import fedid
from secure_fl.algorithms.public_distillation import PublicRecords, groups
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError, Disagreement, SecureFLError, SettingsError
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.site import Site
from secure_fl.party.session import Session
from secure_fl.settings import ModelSettings, TaskSettings
from secure_fl.testing.harness import LossyEngine, Program, federate
from secure_fl.testing.hospitals import HOST, LABELS, hosted, members
from tests.support.equality import equal, weights
from tests.support.event_documents import into
from tests.support.hands import LOCAL, NAMES, site_of
from tests.support.killing import Killed
from tests.support.raising import raises
from tests.support.saved_models import save_tiny

SLOW = pytest.mark.slow


# --- what is exchanged ----------------------------------------------------------------------------


def sums_of(events: Sequence[dict[str, Any]], party: str = NAMES[0]) -> list[int]:
    """The bytes of each host sum that a party took part in."""
    return [
        e["bulk_bytes"]
        for e in events
        if (e["event"], e.get("kind"), e.get("direction")) == ("crossing", "SumInput", "out")
        and (e["party"], e["audience"]) == (party, "host")
    ]


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
        "secure_fl.algorithms.rectifying.public_step",
        lambda site, *rest: steps.append((site.name, site.recorder.round)),
    )
    cfg = FedID(rounds=2, public_batch=4, batches_per_exchange=together, distill_epochs=2)
    events: list[dict[str, Any]] = []
    hosted(cfg, silos=members(size=8, shared=22), listener=into(events)).run()
    batches = exchanges * min(together, 5)
    found = sums_of(events)
    assert found == [4 * (batches // exchanges * 4 * len(LABELS) + 1)] * (2 * 2 * exchanges)
    assert cfg.releases(22, 8) == (batches // exchanges * 4, len(found))
    for name in (*NAMES, HOST):
        assert steps.count((name, 1)) == steps.count((name, 2)) == 2 * batches


@pytest.mark.parametrize("method", [FedID, DSFL, MHAT])
def test_members_learn_alone_before_they_teach(method: Any) -> None:
    """Half of the rounds by default: no sum, no noise and no step on public records in them."""
    assert [method(rounds=n).exchanging for n in (1, 3, 4, 5, 10)] == [1, 3, 2, 3, 5]
    events: list[dict[str, Any]] = []
    cfg = method(rounds=3, alone=2, epochs=1)
    hosted(cfg, silos=members(), listener=into(events)).run()
    assert len(sums_of(events)) == cfg.exchanging == cfg.releases(22, 8)[1] == 1
    assert {e["round"] for e in events if e["event"] == "scores" and e["party"] == HOST} == {
        1,
        2,
        3,
    }
    with pytest.raises(ValueError, match="nobody would learn from anybody"):
        method(rounds=2, alone=2)


def test_lots_are_of_one_size() -> None:
    batches = [torch.tensor([i]) for i in range(7)]
    for size, count in ((1, 7), (2, 3), (3, 2), (7, 1), (8, 1)):
        found = list(groups(batches, size))
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
    assert not torch.equal(
        first[0], torch.stack(PublicRecords(site_of(silo, seed=1), 4).batches(1, 0))
    )


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"distill": False, "feedback": "none"}, "would learn nothing"),
        ({"feedback": "exact"}, "host_learning_rate, some 0.1"),
        ({"feedback": "exact", "targets": "hard"}, "votes have no derivative"),
        ({"feedback": "exact", "fresh_optimizers": True}, "plain gradient descent"),
        ({"feedback": "some"}, "scalar"),
        ({"feedback_weight": -1}, "of at least 0"),
        ({"sample": 0}, "a number above 0"),
        ({"sample": 1.5}, "at most 1"),
        ({"batches_per_exchange": 0}, "of at least 1"),
        ({"host_learning_rate": 0}, "a number above 0"),
        ({"counted": "patients"}, "parties"),
    ],
)
def test_senseless_settings_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        FedID(**fields)


# --- members of their own -------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", ["scalar", pytest.param("exact", marks=SLOW)])
def test_every_member_may_have_a_model_and_a_tokenizer_of_its_own(
    feedback: Any, tmp_path: Path
) -> None:
    words = ["the", "patient", "rash", "after", "no", "dose", "mg"]
    odd = ModelSettings(name=save_tiny(tmp_path / "odd", words, hidden_size=32), layers=2)
    silos = members(size=8)
    silos = [
        silos[0],
        replace(silos[1], model=ModelSettings(layers=3, pooling="attentive")),
        replace(silos[2], model=odd),
        replace(silos[3], model=ModelSettings(layers=2)),
    ]
    cfg = FedID(rounds=1, feedback=feedback, host_learning_rate=0.1)
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
    cfg = FedID(rounds=2, feedback=feedback, host_learning_rate=0.1, batches_per_exchange=1)
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
    with raises(Disagreement, party=NAMES[2]):
        hosted(silos=silos).run()
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
    with raises(
        DataError, "5", "8", "feedback_batch", party=HOST, field="algorithm.feedback_batch"
    ):
        cfg = FedID(rounds=1, feedback="scalar", feedback_batch=8)
        hosted(cfg, silos=members(size=8, labelled=5)).run()
    for cfg in (FedID(rounds=1, feedback="scalar"), FedID(rounds=1)):  # all there are, or none
        hosted(cfg, silos=members(size=8, labelled=5)).run()


@pytest.mark.parametrize("kind", ["ner", "regression", "ranking"])
def test_tasks_without_classes_are_refused(kind: Any) -> None:
    corpus = {"ner": "ner", "regression": "similarity", "ranking": "news"}[kind]
    splits = corpora.make(corpus, parties=4, seed=1, size=8, labels="shared")
    public = corpora.public(corpus, seed=1, size=8)
    silos = [Silo(n, s.train, public=public) for n, s in zip(NAMES, splits[:3], strict=True)]
    silos.append(Silo(HOST, splits[3].train, role="host", public=public))
    with raises(SettingsError, party="hospital-1", field="task.kind"):
        hosted(silos=silos, task=TaskSettings(kind=kind, max_length=32)).run()


def test_without_a_host_or_public_records_nothing_begins() -> None:
    silos = members(size=8)
    for wrong in (silos[:3], [replace(s, public=()) for s in silos]):
        with pytest.raises(SecureFLError, match=r"host|public") as caught:
            hosted(silos=wrong)
        assert caught.value.fix


def test_fewer_public_records_than_a_batch_are_one_batch() -> None:
    events: list[dict[str, Any]] = []
    cfg = FedID(rounds=1, public_batch=50)
    hosted(cfg, silos=members(size=8, shared=5), listener=into(events)).run()
    assert sums_of(events) == [4 * (5 * len(LABELS) + 1)]
    assert cfg.releases(5, 8) == (5, 1)
