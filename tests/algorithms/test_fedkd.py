"""FedKD whole: what is shared stays equal, and what is a party's own stays there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from secure_fl import FedAvg, Silo
from secure_fl.algorithms.fedkd.algorithm import Descent, losses
from secure_fl.algorithms.fedkd.mutual_distillation import make_pair
from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.corpora import make
from secure_fl.events import Event, TrainingProgress
from secure_fl.federation.result import Result
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.models import load_model
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.equality import equal, weights
from tests.support.fedkd_runs import NAMES, SGD, kd, run, site_of
from tests.support.run_states import kept_state
from tests.support.saved_models import dropping

__all__ = ["dropping"]  # a fixture

OFF: dict[str, Any] = {"tied": False, "mutual": False, "soft_labels": False, "hidden": False}
SLOW = pytest.mark.slow


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Collect the names of everything that any party gives to any sum."""
    names: set[str] = set()
    add = Cohort.sum

    async def listening(self: Cohort, values: Mapping[str, Any], **options: Any) -> Any:
        names.update(values)
        return await add(self, values, **options)

    monkeypatch.setattr(Cohort, "sum", listening)
    yield names


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "mode"), [("joint", "he+secagg"), ("per_party", "he+secagg"), ("none", "none")]
)
def test_one_student_for_all_and_a_teacher_for_each(
    way: FactorMode, mode: Any, tmp_path: Path, sent: set[str]
) -> None:
    result = run(kd(factors=way), mode, folder=tmp_path).run()
    assert set(result.models) == {"student", *(f"{name}/model" for name in NAMES)}
    teachers = [weights(result, f"{name}/model") for name in NAMES]
    assert not any(equal(teachers[0], other) for other in teachers[1:])
    states = [kept_state(tmp_path, name, 2)["student"] for name in NAMES]
    assert all(equal(states[0], state) for state in states)
    student = trainable(result.models["student"])
    counts = {"joint": {"records", "parties"}, "per_party": set(), "none": {"records"}}[way]
    assert {n.partition("|")[0] for n in sent} - set(student) == counts
    assert set(student) <= {n.partition("|")[0] for n in sent} or way == "per_party"
    assert not any("embeddings" in name for name in student)
    model, _, task = load_exported(tmp_path / "student")
    assert task.labels == LABELS
    assert all(torch.equal(w, trainable(model)[n]) for n, w in student.items())
    load_exported(tmp_path / "parties" / NAMES[1] / "model")
    scored = {(h["party"], h.get("model", "")) for h in result.document["history"]}
    assert scored == {(name, model) for name in NAMES for model in ("", "student")}
    assert ("sees the factors of every" in str(result.document["protection"])) == (
        way == "per_party"
    )


@SLOW
def test_a_shallow_student_costs_a_fraction_of_its_teacher() -> None:
    """1 of 4 layers by shallow factors, against the whole teacher by FedAvg; both sealed."""
    apart = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", pooled_scores=False)
    options: dict[str, Any] = {"model": ModelSettings(), "training": apart}  # updates alone
    whole = small(FedAvg(rounds=6), "he+secagg", **options).run()
    student = small(kd(rounds=6, max_rank=8), "he+secagg", **options).run()
    up, down = (
        whole.document["bytes"][NAMES[0]][way] / student.document["bytes"][NAMES[0]][way]
        for way in ("up", "down")
    )
    assert up > 4.5 and down > 4.5  # 3.5 by the depth alone


@SLOW
def test_mutual_distillation_learns() -> None:
    scores: dict[int, list[float]] = {}

    def listener(event: Event) -> None:
        if isinstance(event, TrainingProgress):
            scores.setdefault(event.round, []).append(event.loss)

    model = ModelSettings(layers=2, pooling="attentive")
    run(kd(rounds=12), model=model, silos=silos(size=160), listener=listener).run()
    first, last = (sum(scores[r]) / len(scores[r]) for r in (1, 12))
    assert last < 0.8 * first


def test_a_teacher_learns_at_a_quarter_of_the_rate_unless_it_has_its_own() -> None:
    site = site_of(silos()[0], ModelSettings(layers=1))
    η = SGD.learning_rate or 0.0
    assert make_pair(site, kd()).rates == (η / 4, η)
    assert make_pair(site, kd(teacher_learning_rate=0.5)).rates == (0.5, η)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ner": ("ner", {"labels": "shared"}),
    "regression": ("similarity", {}),
    "ranking": ("news", {}),
    "pair": ("pairs", {}),
}


@pytest.mark.parametrize("exchange", ["epoch", pytest.param("gradient", marks=SLOW)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task(kind: Any, exchange: Any) -> None:
    corpus, options = KINDS[kind]
    splits = make(corpus, parties=3, seed=1, size=16, **options)
    parties = [Silo(n, s.train, s.dev) for n, s in zip(NAMES, splits, strict=True)]
    task = TaskSettings(kind=kind, max_length=48)
    result = run(
        kd(rounds=1, exchange=exchange, steps=2), "he+secagg", silos=parties, task=task
    ).run()
    assert "student" in result.models
    assert all(w.isfinite().all() for m in result.models.values() for w in m.parameters())


@pytest.mark.parametrize("mode", ["he+secagg", pytest.param("none", marks=SLOW)])
def test_label_sets_of_their_own_leave_heads_at_home(mode: Any, sent: set[str]) -> None:
    splits = make("ner", parties=3, seed=1, size=24, labels="own")
    parties = [Silo(n, s.train, s.dev) for n, s in zip(NAMES, splits, strict=True)]
    result = run(kd(), mode, silos=parties, task=TaskSettings(kind="ner", max_length=32)).run()
    students = [weights(result, f"{name}/student") for name in NAMES]
    heads = {"classifier.weight", "classifier.bias"}
    assert not heads & {name.partition("|")[0] for name in sent}
    for name in set(students[0]) - heads:
        assert all(torch.equal(students[0][name], other[name]) for other in students)
    fresh = result.tasks[f"{NAMES[0]}/student"]
    start = load_model(ModelSettings(layers=1), fresh, tiny_tokenizer(), 0)
    assert not equal(students[0], weights(Result({}, {"model": start}, {}, {})))
    for name, student in zip(NAMES, students, strict=True):
        assert len(student["classifier.bias"]) == len(result.tasks[f"{name}/student"].labels)
        before = trainable(
            load_model(
                ModelSettings(layers=1), result.tasks[f"{name}/student"], tiny_tokenizer(), 0
            )
        )
        assert not torch.equal(student["classifier.weight"], before["classifier.weight"])


# --- against what it must equal -------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=SLOW)])
def test_without_distillation_it_is_fedavg_of_the_student(optimizer: Any) -> None:
    """Bit for bit: the teacher beside it changes nothing."""
    training = TrainingSettings(
        learning_rate=1e-3, batch_size=16, device="cpu", optimizer=optimizer
    )
    alone = small(FedAvg(rounds=2), model=ModelSettings(layers=1), training=training)
    pair = small(
        kd(factors="none", **OFF),
        model=ModelSettings(),
        training=training,
    )
    assert equal(weights(alone.run()), weights(pair.run(), "student"))


@pytest.mark.parametrize("mean", ["records", "parties"])
def test_an_exchanged_gradient_is_that_of_all_records(mean: Any) -> None:
    """One step of full batches against one step by hand on everybody's records together."""
    cfg = kd(
        rounds=1,
        exchange="gradient",
        steps=1,
        factors="none",
        adaptive="sample",
        mean=mean,
        tied=False,
        teacher_learning_rate=0.05,
    )
    sizes = (12, 30, 6)
    splits = make("ade", parties=3, seed=0, size=sizes)
    parties = [Silo(n, s.train, s.dev) for n, s in zip(NAMES, splits, strict=True)]
    model = ModelSettings(layers=2)
    result = run(cfg, silos=parties, model=model, training=SGD).run()
    gradients: list[dict[str, Tensor]] = []
    for silo in parties:
        site = site_of(silo, model)
        pair = make_pair(site, cfg)
        losses(pair, site.train.batch(range(len(silo.train)))).mean().backward()
        gradients.append(
            {n: w.grad for n, w in trainable(pair.student).items() if w.grad is not None}
        )
        # Line 7: the teacher's own step is on its own gradient.
        teacher = weights(result, f"{silo.name}/model")
        for name, weight in trainable(pair.teacher).items():
            assert weight.grad is not None
            torch.testing.assert_close(
                teacher[name], weight - 0.05 * weight.grad, atol=1e-6, rtol=1e-5
            )
    shares = [size / sum(sizes) if mean == "records" else 1 / 3 for size in sizes]
    start = trainable(make_pair(site_of(parties[0], model), cfg).student)
    for name, weight in weights(result, "student").items():
        g = sum(share * each[name] for share, each in zip(shares, gradients, strict=True))
        torch.testing.assert_close(weight, start[name] - 0.05 * g, atol=1e-6, rtol=1e-5)
    pooled = Silo("all", [e for s in parties for e in s.train])
    site = site_of(pooled, model)
    pair = make_pair(site, cfg)
    losses(pair, site.train.batch(range(48))).mean().backward()
    together = pair.student.get_parameter("classifier.weight").grad
    found = torch.stack(
        [share * each["classifier.weight"] for share, each in zip(shares, gradients, strict=True)]
    ).sum(0)
    assert together is not None
    assert torch.allclose(found, together, atol=1e-6) == (mean == "records")


def test_exchanged_gradients_train_with_dropout_like_epochs(dropping: str) -> None:
    site = site_of(silos()[0], ModelSettings(name=dropping, layers=2))
    pair = make_pair(site, kd(exchange="gradient"))
    descent = Descent(site, pair, trainable(pair.student))
    batch = site.train.batch(range(8))
    once, again = descent.gradients([batch]), descent.gradients([batch])
    assert not equal(once, again)
    assert pair.teacher.training and pair.student.training


def test_exchanged_gradients_are_clipped_model_by_model() -> None:
    training = SGD.model_copy(update={"max_grad_norm": 1e-3})
    site = site_of(silos()[0], ModelSettings(layers=2), training)
    pair = make_pair(site, kd(exchange="gradient", tied=False))
    g = Descent(site, pair, trainable(pair.student)).gradients([site.train.batch(range(8))])
    for found in (g.values(), (w.grad for w in trainable(pair.teacher).values())):
        norm = torch.stack([v.norm() for v in found if v is not None]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


def test_moments_of_the_teacher_stay_at_home(tmp_path: Path) -> None:
    cfg = kd(exchange="gradient", steps=2, tied=False)
    run(cfg, folder=tmp_path).run()
    states = [kept_state(tmp_path, name, 2) for name in NAMES]
    pair = make_pair(site_of(silos()[0], ModelSettings(layers=2)), cfg)
    assert len(states[0]["student_optimizer"]) == len(trainable(pair.student))
    assert len(states[0]["optimizer"]) == len(trainable(pair.teacher)) + len(pair.W)
    for at, state in states[0]["student_optimizer"].items():
        assert state["step"] == 4  # two rounds of two
        assert all(
            torch.equal(state["exp_avg"], other["student_optimizer"][at]["exp_avg"])
            for other in states
        )
    assert not torch.equal(
        states[0]["optimizer"]["0"]["exp_avg"], states[1]["optimizer"]["0"]["exp_avg"]
    )
