"""Parties with label sets of their own: one encoder, and a head that never leaves its hospital."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from secure_fl import FedAdam, FedAvg, Local, Silo
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.cli.main import main
from secure_fl.corpora import make
from secure_fl.corpora.entities import OWN
from secure_fl.events import Event, Scored
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.exporting import load_exported
from secure_fl.party.cohort import Cohort
from secure_fl.runs import checkpoint
from secure_fl.settings import DPSettings, TrainingSettings
from secure_fl.testing.hospitals import frozen
from tests.support.killing import Killed, after, kill_when
from tests.support.token_hospitals import HEAD, NAMES, corpora, ner


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the names of everything that any party gives to any sum."""
    names: list[str] = []
    add = Cohort.sum

    async def listening(self: Cohort, values: Mapping[str, Any], **options: Any) -> Any:
        names.extend(values)
        return await add(self, values, **options)

    monkeypatch.setattr(Cohort, "sum", listening)
    yield names


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("algorithm", [FedAvg(rounds=2), FedAdam(rounds=2)], ids=lambda a: a.name)
def test_encoders_are_one_and_heads_are_their_own(
    algorithm: Algorithm, mode: str, sent: list[str]
) -> None:
    result = ner(algorithm, mode).run()
    assert set(result.models) == {f"{name}/model" for name in NAMES}
    weights = [trainable(result.models[f"{name}/model"]) for name in NAMES]
    for own, types in zip(weights, OWN, strict=False):
        assert len(own["classifier.bias"]) == 1 + 2 * len(types)  # O, and B- and I- of each
    assert set(weights[0]) > HEAD
    for name in set(weights[0]) - HEAD:
        assert all(torch.equal(weights[0][name], other[name]) for other in weights[1:])
    first, third = weights[0]["classifier.weight"], weights[2]["classifier.weight"]
    assert first.shape == third.shape and not torch.equal(first, third)  # two types each
    assert set(sent) == (set(weights[0]) - HEAD) | {"records"}
    assert result.document["local_heads"] is True


def test_the_head_is_trained_where_it_stays() -> None:
    """After one round the head is as local training left it, the rest as the mean moved it."""
    started = ner(FedAvg(rounds=1), training=frozen()).run()
    together = ner(FedAvg(rounds=1)).run()
    alone = ner(Local(rounds=1)).run()
    for name in NAMES:
        key = f"{name}/model"
        own, local, start = (trainable(r.models[key]) for r in (together, alone, started))
        for weight in HEAD:
            assert torch.equal(own[weight], local[weight])
            assert not torch.equal(own[weight], start[weight])
        inner = next(n for n in own if n.endswith("query.weight"))
        counts = {s.name: len(s.train) for s in corpora()}
        moves = {n: trainable(alone.models[f"{n}/model"])[inner] - start[inner] for n in NAMES}
        mean = sum(counts[n] * moves[n] for n in NAMES) / sum(counts.values())
        torch.testing.assert_close(own[inner], start[inner] + mean, atol=1e-6, rtol=1e-5)


def test_one_label_set_means_one_shared_model() -> None:
    result = ner(FedAvg(rounds=1), silos=corpora("shared")).run()
    assert set(result.models) == {"model"} and result.document["local_heads"] is False


def test_local_heads_under_differential_privacy(sent: list[str]) -> None:
    dp = DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0)
    training = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", dp=dp)
    result = ner(FedAvg(rounds=1), "he+secagg", training=training).run()
    assert result.document["privacy"] and not HEAD & set(sent)


def test_resuming_gives_the_same_heads(tmp_path: Path) -> None:
    whole = ner(FedAvg(rounds=2), folder=tmp_path / "whole").run()
    again = ner(FedAvg(rounds=2), folder=tmp_path / "again")
    stop = RuntimeError("the power fails")

    def fail(event: Event) -> None:
        if isinstance(event, Scored) and event.round == 2:
            raise stop

    again.listener = fail
    with pytest.raises(Exception, match="the power fails"):
        again.run()
    resumed = ner(FedAvg(rounds=2), folder=tmp_path / "again", resume=True).run()
    for name in NAMES:
        before, after = (trainable(r.models[f"{name}/model"]) for r in (whole, resumed))
        assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("mode", ["none", pytest.param("he+secagg", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(rounds=3), FedAdam(rounds=3), FedKD(rounds=3, student_layers=1)],
    ids=lambda a: a.name,
)
def test_who_joins_late_brings_its_own_head(
    algorithm: Algorithm, mode: Any, tmp_path: Path
) -> None:
    """It is given what is equal at all, never the head of another hospital, and keeps its own."""
    splits = make("ner", parties=4, seed=1, size=24, labels="own")
    four = [Silo(f"hospital-{i}", s.train, s.dev) for i, s in enumerate(splits, 1)]
    late, key = four[1].name, "student" if algorithm.name == "fedkd" else "model"

    three = [silo for silo in four if silo.name != late]
    with pytest.raises(Killed):
        ner(algorithm, mode, silos=three, folder=tmp_path, listener=kill_when(after(2))).run()
    result = ner(algorithm, mode, silos=four, folder=tmp_path, resume=True).run()
    assert {h["round"] for h in result.document["history"] if h["party"] == late} == {3}
    models = {silo.name: trainable(result.models[f"{silo.name}/{key}"]) for silo in four}
    for name in set(models[late]) - HEAD:
        assert all(torch.equal(models[late][name], other[name]) for other in models.values())
    given = {silo.name: head(tmp_path, silo.name, 2) for silo in four}
    assert set(given[late]) == HEAD
    for name, weight in given[late].items():
        assert len(weight) == len(result.tasks[f"{late}/{key}"].labels)
        assert not any(torch.equal(weight, given[silo.name][name]) for silo in three)
        assert not torch.equal(weight, models[late][name])  # it learns, where it stays
        assert torch.equal(head(tmp_path, late, 3)[name], models[late][name])


def head(folder: Path, name: str, round: int) -> dict[str, torch.Tensor]:
    """What a party's checkpoint keeps of its head."""
    place = folder / "parties" / name / "checkpoints" / f"round-{round:05d}"
    found: dict[str, torch.Tensor] = checkpoint.load(place)["keep"]["head"]
    return found


def test_entities_are_scored_by_type_and_party(tmp_path: Path) -> None:
    result = ner(FedAvg(rounds=1), folder=tmp_path / "run").run()
    last = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["last"]
    for name, types in zip(NAMES, OWN, strict=False):
        scores = last["party"][name]["test"]
        assert {n for n in scores if n.startswith("f1/")} == {f"f1/{kind}" for kind in types}
        assert {"precision", "recall", "f1"} < set(scores)
    drug = [last["party"][n]["test"]["f1/Drug"] for n in (NAMES[0], NAMES[2])]  # those who tag it
    assert last["mean"]["test"]["f1/Drug"] == pytest.approx(np.mean(drug))
    model, tokenizer, task = load_exported(tmp_path / "run" / "parties" / NAMES[1] / "model")
    assert task.labels == ("O", "B-Disease", "I-Disease")
    found = task.evaluate(model, task.encode(corpora()[1].test, tokenizer))
    assert found["f1"] == pytest.approx(last["party"][NAMES[1]]["test"]["f1"])
    assert result.tasks[f"{NAMES[1]}/model"].labels == task.labels


def test_the_command_line_shows_entity_types(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        '[data]\ncorpus = "ner"\nsize = 24\n[task]\nkind = "ner"\nmax_length = 32\n[model]\n'
        'layers = 1\n[training]\ndevice = "cpu"\n[protection]\nmode = "none"\n'
        '[algorithm]\nname = "fedavg"\nrounds = 1\n'
    )
    shown = CliRunner().invoke(
        main, ["train", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run")]
    )
    assert shown.exit_code == 0, shown.output
    table = shown.stdout.split("test F1 of each entity type")[1]
    for text in ("Disease", "Drug", "hospital-2", "mean"):
        assert text in table
