"""Whole runs in one process: results, reproducibility, protection, exports."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from secure_fl import Centralized, FedAdam, FedAvg, Local
from secure_fl.algorithms.base import Algorithm
from secure_fl.party.session import LocalEngine
from secure_fl.settings import Protection
from secure_fl.testing.hospitals import frozen, silos, small
from tests.support.equality import equal, weights

MODES: tuple[Protection, Protection] = ("none", "he+secagg")


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
@pytest.mark.parametrize("algorithm", [FedAvg(rounds=2), FedAdam(rounds=2)])
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
    assert "3 of 3 parties are needed" in statement


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [(Local(rounds=1), "Nothing is shared"), (Centralized(rounds=1), "All records are in one")],
)
def test_who_forms_no_sum_names_no_bound(algorithm: Algorithm, said: str) -> None:
    statement = small(algorithm, "he+secagg").run().document["protection"]["statement"]
    assert statement.startswith(said) and "parties are needed" not in statement
