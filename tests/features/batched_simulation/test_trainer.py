"""Sites that are trained as one batch end with the weights that the loop gives each of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import FedAvg, ModelSettings, Silo, TaskSettings, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.reference_points import Local
from secure_fl.corpora import make
from secure_fl.events import EventLog
from secure_fl.features.batched_simulation import trainer
from secure_fl.features.batched_simulation.trainer import FAMILIES, BatchedTraining, stacked
from secure_fl.federation.result import Result
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.party.rounds import Round
from secure_fl.testing.hospitals import LABELS, small
from tests.support.event_documents import into
from tests.support.families import save
from tests.support.sampling import mostly_slow
from tests.support.saved_models import dropping
from tests.support.token_hospitals import corpora, ner

__all__ = ["dropping"]  # a fixture
SIZES = (20, 25, 33, 40, 21)  # of sites: one to three batches of 16, few of them full
NO_DROPOUT: Mapping[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_ELECTRA_DROPOUT = {**NO_DROPOUT, "summary_last_dropout": 0.0}
NO_DISTIL_DROPOUT = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "qa_dropout": 0.0,
}


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sites were in each stack that was made."""
    made = list[int]()

    def counting(model: torch.nn.Module, copies: int) -> torch.nn.Module:
        made.append(copies)
        return stacked(model, copies)

    monkeypatch.setattr("secure_fl.features.batched_simulation.trainer.stacked", counting)
    return made


def silos() -> list[Silo]:
    splits = make("ade", parties=len(SIZES), seed=0, size=SIZES)
    return [Silo(f"hospital-{i}", s.train, s.dev, s.test) for i, s in enumerate(splits, 1)]


def trained(
    *, batched: bool, algorithm: Algorithm | None = None, **options: Any
) -> tuple[Result, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    given: dict[str, Any] = {"silos": silos(), "listener": into(told)} | options
    return small(
        algorithm or FedAvg(rounds=2, epochs=1),
        trainer=BatchedTraining if batched else None,
        **given,
    ).run(), told


def require_close(one: Result, other: Result, *, exactly: bool = False) -> None:
    for name in one.models:
        mine, theirs = trainable(one.models[name]), trainable(other.models[name])
        for weight, values in mine.items():
            atol = 0.0 if exactly else 5e-5  # rounding, which differs by processor; a step is 2e-3
            torch.testing.assert_close(values, theirs[weight], rtol=0.0, atol=atol)


def losses(told: list[dict[str, Any]]) -> Mapping[tuple[Any, ...], float]:
    found = [e for e in told if e["event"] == "train"]
    return {(e["party"], e["round"], e["step"], e["steps"]): e["loss"] for e in found}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "sgd", "learning_rate": 0.1, "accumulate": 2, "max_grad_norm": 0.1},
        {"bucketing": True, "class_weights": "balanced", "schedule": "constant", "batch_size": 8},
    ],
    ids=["usual", "sgd", "bucketing"],
)
def test_the_loop_and_the_stack_agree(settings: dict[str, Any], stacks: list[int]) -> None:
    given: dict[str, Any] = {"learning_rate": 2e-3, "batch_size": 16, "device": "cpu"} | settings
    training = TrainingSettings(**given)
    alone, said_alone = trained(batched=False, training=training)
    assert not stacks
    beside, said = trained(batched=True, training=training)
    assert stacks and max(stacks) > 1
    require_close(alone, beside)
    assert losses(said) == pytest.approx(losses(said_alone), rel=1e-3)
    assert len(losses(said)) > len(SIZES)


# Other families have copies of RoBERTa's modules.
@pytest.mark.parametrize(
    "family", mostly_slow(sorted(FAMILIES), "bert", "distilbert", "electra", "roberta")
)
def test_every_family_that_is_stacked_agrees(
    family: str, tmp_path: Path, stacks: list[int]
) -> None:
    settled: dict[str, Mapping[str, Any]] = {
        "distilbert": NO_DISTIL_DROPOUT,
        "electra": NO_ELECTRA_DROPOUT,
    }
    model = save(tmp_path / "model", family, **settled.get(family, NO_DROPOUT))
    alone, _ = trained(batched=False, algorithm=FedAvg(rounds=1), model=model)
    beside, _ = trained(batched=True, algorithm=FedAvg(rounds=1), model=model)
    assert stacks
    require_close(alone, beside)


def test_words_are_labelled_side_by_side(stacks: list[int]) -> None:
    shared: dict[str, Any] = {"silos": _same_labels(), "algorithm": FedAvg(rounds=2)}
    require_close(ner(**shared).run(), ner(**shared, trainer=BatchedTraining).run())
    assert stacks


def test_heads_of_two_shapes_are_stacked_apart(stacks: list[int]) -> None:
    """Four sites, of which two find other types than the others, and so have a smaller head."""
    parts = [(silo, silo.train[at::2]) for silo in corpora()[:2] for at in (0, 1)]
    sites = [Silo(f"site-{n}", part, s.dev, s.test) for n, (s, part) in enumerate(parts, 1)]
    given: dict[str, Any] = {"silos": sites, "algorithm": FedAvg(rounds=2)}
    require_close(ner(**given).run(), ner(**given, trainer=BatchedTraining).run())
    assert stacks == [2, 2]


def _same_labels() -> list[Silo]:
    splits = make("ner", parties=3, seed=1, size=40, labels="shared")
    return [Silo(f"hospital-{i}", s.train, s.dev, s.test) for i, s in enumerate(splits, 1)]


def test_sites_that_begin_with_weights_of_their_own_train_alone(stacks: list[int]) -> None:
    alone, _ = trained(batched=False, algorithm=Local(rounds=3))
    beside, _ = trained(batched=True, algorithm=Local(rounds=3))
    require_close(alone, beside)
    assert len(stacks) <= len(set(SIZES))  # until it was seen, and never again


def four_sites(batched: BatchedTraining | None) -> list[Site]:
    task = make_task(TaskSettings(labels=LABELS, max_length=32))
    training = TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=16, device="cpu")
    spec = SiteSpec(task, ModelSettings(layers=1), training, 1)
    return [
        Site(Silo(f"hospital-{i}", s.train), spec, SiteContext(EventLog(""), trainer=batched))
        for i, s in enumerate(make("ade", parties=4, seed=0, size=32), 1)
    ]


def test_a_result_is_only_for_the_weights_that_it_was_trained_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two batches of a round start differently, and a site of the first has the second's start."""
    monkeypatch.setattr(trainer, "MAX_SITES", 2)
    results: list[list[torch.nn.Module]] = []
    for batched in (None, BatchedTraining()):
        sites, models = four_sites(batched), []
        for number, moved in ((0, False), (2, True), (1, True)):
            models.append(sites[number].model())
            with torch.no_grad():
                for weight in trainable(models[-1]).values() if moved else ():
                    weight.mul_(1.5)
            sites[number].fit(models[-1], 1, Round(1, 1))
        results.append(models)
    for alone, beside in zip(*results, strict=True):
        for name, weight in trainable(alone).items():
            torch.testing.assert_close(trainable(beside)[name], weight, rtol=0.0, atol=5e-5)


def test_dropout_is_drawn_at_each_site_by_itself(dropping: str, stacks: list[int]) -> None:
    model = ModelSettings(name=dropping)
    alone, _ = trained(batched=False, model=model)
    beside, _ = trained(batched=True, model=model)
    require_close(alone, beside, exactly=True)
    assert not stacks


def test_sealed_sums_of_a_stack_are_those_of_the_loop_to_their_grid(stacks: list[int]) -> None:
    alone, _ = trained(batched=False, mode="he+secagg")
    beside, _ = trained(batched=True, mode="he+secagg")
    assert stacks
    for name, values in trainable(alone.model).items():
        torch.testing.assert_close(values, trainable(beside.model)[name], rtol=0.0, atol=2e-3)
