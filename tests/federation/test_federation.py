"""Whole runs in one process: results, reproducibility, protection, exports."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from secure_fl import Centralized, FedAdam, FedAvg, Local, Silo
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.corpora import make
from secure_fl.corpora.entities import OWN
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.exporting import load_exported
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import LocalEngine
from secure_fl.runs import checkpoint
from secure_fl.settings import DPSettings, Protection, TrainingSettings
from secure_fl.testing.hospitals import frozen, silos, small
from tests.support.command_line import ran
from tests.support.equality import equal, weights
from tests.support.killing import Killed, after, kill_when
from tests.support.token_hospitals import HEAD, NAMES, corpora, ner

MODES: tuple[Protection, Protection] = ("none", "he+secagg")


@pytest.mark.parametrize(
    ("algorithm", "mode"), [(FedAvg(rounds=2), "he+secagg"), (FedAdam(rounds=2), "none")]
)
def test_same_seed_same_bits_whatever_the_order(algorithm: Algorithm, mode: Protection) -> None:
    def shuffled(sessions: Any) -> LocalEngine:
        def order(parties: Sequence[str]) -> Sequence[str]:
            return random.Random(5).sample(list(parties), len(parties))

        return LocalEngine(sessions, order)

    first, second = small(algorithm, mode).run(), small(algorithm, mode).run(shuffled)
    assert equal(weights(first), weights(second))
    assert first.document["metrics"] == second.document["metrics"]
    other = small(algorithm, mode, seed=1).run()
    assert not equal(weights(first), weights(other))


def test_a_run_leaves_the_process_random_state_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    small().run()
    assert torch.equal(before, torch.get_rng_state())


def test_protection_changes_results_by_rounding_only() -> None:
    start = weights(small(FedAvg(rounds=1), training=frozen()).run())
    clear, sealed = (weights(small(mode=mode).run()) for mode in MODES)
    off = sum(float((clear[n] - sealed[n]).square().sum()) for n in clear)
    moved = sum(float((clear[n] - start[n]).square().sum()) for n in clear)
    assert (off / moved) ** 0.5 < 0.01  # 16 bits; the local optimiser amplifies a little


def test_fedavg_with_one_step_is_a_step_on_the_mean_gradient() -> None:
    """One round of one SGD step each: the new weights follow from the parties' own steps."""
    federation = small(FedAvg(rounds=1))
    parties = silos()
    sgd = federation.spec.training.model_copy(
        update={"optimizer": "sgd", "batch_size": 1000, "max_grad_norm": None, "weight_decay": 0.0}
    )
    together = weights(small(FedAvg(rounds=1), training=sgd, silos=parties).run())
    alone = small(Local(rounds=1), training=sgd, silos=parties).run()
    counts = {s.name: len(s.train) for s in parties}
    for name, weight in together.items():
        expected = sum(
            counts[s.name] * weights(alone, f"{s.name}/model")[name] for s in parties
        ) / sum(counts.values())
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=1e-5)


def test_local_sends_nothing_but_control_messages() -> None:
    result = small(Local(rounds=1)).run()
    assert all(b["up"] < 2000 for b in result.document["bytes"].values())
    assert set(result.models) == {f"hospital-{i}/model" for i in (1, 2, 3)}


def test_centralized_measures_every_hospital() -> None:
    last = small(Centralized(rounds=1)).run().document["metrics"]["last"]
    assert set(last["party"]) == {"hospital-1", "hospital-2", "hospital-3"}


def test_result_document_and_exported_model(tmp_path: Path) -> None:
    result = small(folder=tmp_path / "run").run()
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document == json.loads(json.dumps(result.to_json()))
    assert document["schema"] == "secure-fl/result/1" and document["status"] == "finished"
    assert document["protection"]["statement"].startswith("UNPROTECTED")
    for which in ("last", "best"):
        scores = document["metrics"][which]
        accuracies = [p["test"]["accuracy"] for p in scores["party"].values()]
        assert scores["mean"]["test"]["accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert all(b["up"] > 0 and b["down"] > 0 for b in document["bytes"].values())
    # The export is an ordinary transformers folder, with the same predictions.
    folder = tmp_path / "run" / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(["a rash appeared"], return_tensors="pt")
    with torch.no_grad():
        expected = result.model.eval()(**tokens).logits
        torch.testing.assert_close(model(**tokens).logits, expected)


def test_the_transcript_on_disk_matches_the_bytes(tmp_path: Path) -> None:
    result = small(folder=tmp_path / "run").run()
    for party, sizes in result.document["bytes"].items():
        lines = (tmp_path / "run" / "parties" / party / "transcript.jsonl").read_text()
        crossings = [json.loads(line) for line in lines.splitlines()]
        for direction, key in (("out", "up"), ("in", "down")):
            total = sum(
                c["head_bytes"] + c["bulk_bytes"] for c in crossings if c["direction"] == direction
            )
            assert total == sizes[key]


def test_embeddings_are_frozen_and_never_sent() -> None:
    result = small().run()
    assert not any("embeddings" in name for name in weights(result))


def test_the_collusion_bound_is_printed_with_every_run() -> None:
    statement = small(mode="he+secagg").run().document["protection"]["statement"]
    assert "3 of 3 hospitals are needed" in statement


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [(Local(rounds=1), "Nothing is shared"), (Centralized(rounds=1), "All records are in one")],
)
def test_who_forms_no_sum_names_no_bound(algorithm: Algorithm, said: str) -> None:
    statement = small(algorithm, "he+secagg").run().document["protection"]["statement"]
    assert statement.startswith(said) and "are needed" not in statement


# --- parties with label sets of their own -------------------------------------------------------


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
def test_encoders_are_one_and_heads_own(algorithm: Algorithm, mode: str, sent: list[str]) -> None:
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


@pytest.mark.parametrize("mode", ["none", pytest.param("he+secagg", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(rounds=3), FedAdam(rounds=3), FedKD(rounds=3, student_layers=1)],
    ids=lambda a: a.name,
)
def test_a_newcomer_brings_its_own_head(algorithm: Algorithm, mode: Any, tmp_path: Path) -> None:
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
    """Read the head's weights from a party's checkpoint."""
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
    shown = ran("train", tmp_path / "study.toml", "--out", tmp_path / "run")
    table = shown.stdout.split("test F1 of each entity type")[1]
    for text in ("Disease", "Drug", "hospital-2", "mean"):
        assert text in table
