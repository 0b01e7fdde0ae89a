"""FedKD whole: what is shared stays equal, what is a party's own stays there, and it resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from secure_fl import FedAvg, Federation, Silo
from secure_fl.algorithms.factors import Way
from secure_fl.algorithms.fedkd import Descent, FedKD, losses
from secure_fl.algorithms.pairing import make_pair
from secure_fl.corpora import make
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.ledger import Ledger
from secure_fl.errors import DataError, ModelError, SettingsError
from secure_fl.events import Event, EventLog
from secure_fl.federation.result import Result
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.dp.training import fit_privately
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.models import load_model
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.party.cohort import Cohort
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.harness import LossyEngine
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.equality import equal, weights
from tests.support.killing import Killed, after, kill_when
from tests.support.private import make_site, notes, seeded
from tests.support.raising import raises
from tests.support.run_states import kept_state
from tests.support.saved_models import dropping, save_tiny

__all__ = ["dropping"]  # a fixture

WAYS: tuple[Way, ...] = get_args(Way)
NAMES = [f"hospital-{i}" for i in (1, 2, 3)]
OFF: dict[str, Any] = {"mutual": False, "soft_labels": False, "hidden": False}
SGD = TrainingSettings(
    optimizer="sgd",
    learning_rate=0.05,
    weight_decay=0.0,
    batch_size=1000,
    max_grad_norm=None,
    device="cpu",
    schedule="constant",
)

SLOW = pytest.mark.slow

kd = partial(FedKD, rounds=2, student_layers=1)


def run(algorithm: FedKD, mode: Any = "none", **options: Any) -> Federation:
    """Teachers of two layers, and few records."""
    usual = {"model": ModelSettings(layers=2), "silos": silos(size=20)}
    return small(algorithm, mode, **usual | options)


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
    way: Way, mode: Any, tmp_path: Path, sent: set[str]
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
        if event["event"] == "train":
            scores.setdefault(event["round"], []).append(event["loss"])

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


def site_of(silo: Silo, model: ModelSettings, training: TrainingSettings = SGD) -> Site:
    task = make_task(TaskSettings(labels=LABELS, max_length=32))
    return Site(silo, task, model, training, 0, EventLog(silo.name))


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
    pair = make_pair(site, kd(exchange="gradient"))
    g = Descent(site, pair, trainable(pair.student)).gradients([site.train.batch(range(8))])
    for found in (g.values(), (w.grad for w in trainable(pair.teacher).values())):
        norm = torch.stack([v.norm() for v in found if v is not None]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


def test_moments_of_the_teacher_stay_at_home(tmp_path: Path) -> None:
    cfg = kd(exchange="gradient", steps=2)
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


# --- interruptions --------------------------------------------------------------------------------


def stopped_after(round: int, cfg: FedKD, mode: Any, folder: Path, **options: Any) -> None:
    with pytest.raises(Killed):
        run(cfg, mode, folder=folder, listener=kill_when(after(round)), **options).run()


GRADIENT = {"exchange": "gradient", "steps": 2}
HOW: list[Any] = [
    pytest.param({"factors": "joint"}, "he+secagg", id="joint"),
    pytest.param({"factors": "per_party"}, "none", id="per_party", marks=SLOW),
    pytest.param(GRADIENT, "none", id="gradient"),
    *(
        pytest.param({"factors": way} | more, mode, marks=SLOW)
        for way in WAYS
        for more in ({}, GRADIENT)
        for mode in ("none", "he+secagg")
    ),
]


@pytest.mark.parametrize(("how", "mode"), HOW)
def test_resume_is_bit_for_bit(tmp_path: Path, how: dict[str, Any], mode: Any) -> None:
    cfg = kd(rounds=2, max_rank=8, **how)
    whole = run(cfg, mode, folder=tmp_path / "whole").run()
    stopped_after(1, cfg, mode, tmp_path / "again")
    again = run(cfg, mode, folder=tmp_path / "again", resume=True).run()
    for name in ("student", *(f"{name}/model" for name in NAMES)):
        assert equal(weights(whole, name), weights(again, name)), name
    assert whole.document["history"] == again.document["history"]


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ({}, "he+secagg"),
        pytest.param(GRADIENT, "none", marks=SLOW),
        pytest.param(GRADIENT, "he+secagg", marks=SLOW),
    ],
)
def test_who_joins_late_is_given_the_student(
    tmp_path: Path, how: dict[str, Any], mode: Any
) -> None:
    cfg, four = kd(rounds=2, **how), silos(4, size=20)
    late = four[3].name
    stopped_after(1, cfg, mode, tmp_path, silos=four[:3])
    result = run(cfg, mode, folder=tmp_path, silos=four, resume=True).run()
    assert f"{late}/model" in result.models
    states = [kept_state(tmp_path, silo.name, 2) for silo in four]
    for state in states[1:]:
        assert equal(states[0]["student"], state["student"])
        assert {n for n in state["factors"]} == {n for n in states[0]["factors"]}
        for name, subspace in state["factors"].items():
            if name != "count":
                assert torch.equal(subspace["B"], states[0]["factors"][name]["B"])


@pytest.mark.parametrize("exchange", [4, 9, *(pytest.param(e, marks=SLOW) for e in (6, 8, 11, 15))])
def test_who_leaves_is_not_missed(exchange: int) -> None:
    four = silos(4, size=20)

    def losing(sessions: Any) -> LossyEngine:
        return LossyEngine(sessions, lose={four[3].name: exchange})

    result = run(kd(rounds=2), "he+secagg", silos=four).run(losing)
    assert "student" in result.models
    assert all(w.isfinite().all() for w in result.models["student"].parameters())


# --- differential privacy -------------------------------------------------------------------------

DP = DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0, accountant="rdp")
PRIVATE = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", dp=DP)


@pytest.mark.parametrize("clipping", ["ghost", pytest.param("per_sample", marks=SLOW)])
def test_a_pair_trains_privately_as_one_module(clipping: Any, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", Identity.generate("north"))
    site = make_site(notes(40), ledger=ledger, clipping=clipping, learning_rate=1e-2)
    site.shared_model_settings = site.model_settings = ModelSettings(layers=2)
    pair = make_pair(site, kd(adaptive="sample"))
    before = {n: w.detach().clone() for n, w in trainable(pair).items()}
    fit_privately(site, pair, 2, objective=losses, generator=seeded())
    assert site.privacy is not None
    assert site.privacy.statement()["steps"] == 2 * 4  # two passes of 40 / 10, not four
    for name, weight in trainable(pair).items():
        assert not torch.equal(weight, before[name])
    assert {name.split(".")[0] for name in before} == {"teacher", "student", "W"}


def test_a_round_spends_one_pass_for_both_models() -> None:
    result = run(kd(adaptive="sample", epochs=1), "he+secagg", training=PRIVATE).run()
    steps = 2 * 2  # rounds, and steps of a pass over 20 records by 16
    assert set(result.document["privacy"]["steps"].values()) == {steps}


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"adaptive": "batch"}, "touch each other"),
        ({"adaptive": "sample", "exchange": "gradient"}, "passes"),
    ],
)
def test_what_dp_does_not_cover_is_refused(how: dict[str, Any], found: str) -> None:
    with pytest.raises(SettingsError, match=found) as caught:
        run(kd(**how), training=PRIVATE).run()
    assert (
        caught.value.where["field"]
        == f"algorithm.{'exchange' if 'exchange' in how else 'adaptive'}"
    )


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        ({"max_rank": 0}, "a number from 1 on"),
        ({"student_layers": 0}, "a number from 1 on"),
        ({"energy_start": 0.0}, "energy_start: found 0.0"),
        ({"energy_end": 1.5}, "energy_end: found 1.5"),
        ({"energy_start": 0.99, "energy_end": 0.95}, "precision grows"),
        ({"joint_loss": True, "mutual": False}, "mutual"),
        ({"factors": "shared"}, "joint"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        FedKD(**bad)


def test_a_student_is_no_deeper_than_its_teacher() -> None:
    with raises(SettingsError, "3", "2", "1 to 2", field="algorithm.student_layers"):
        run(kd(student_layers=3)).run()


def own(teacher: ModelSettings) -> list[Silo]:
    """Hospitals, of which the second has a teacher of its own."""
    one, two, three = silos(size=20)
    return [one, Silo(two.name, two.train, two.dev, two.test, model=teacher), three]


Made = Callable[[Path], ModelSettings]
REFUSED: dict[str, tuple[Made, dict[str, Any], str]] = {
    "words": (
        lambda f: ModelSettings(name=save_tiny(f, words=("alpha", "beta"))),
        {},
        "another vocabulary",
    ),
    "heads": (
        lambda f: ModelSettings(name=save_tiny(f, num_attention_heads=2)),
        {},
        "num_attention_heads 2",
    ),
    "width": (
        lambda f: ModelSettings(name=save_tiny(f, hidden_size=32)),
        {"transform": False},
        "hidden_size 32",
    ),
    "depth": (lambda f: ModelSettings(layers=1), {"student_layers": 2}, "teacher 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_no_student_fits_is_explained(case: str, tmp_path: Path) -> None:
    make_teacher, how, found = REFUSED[case]
    with pytest.raises(ModelError, match=found) as caught:
        run(kd(**how), silos=own(make_teacher(tmp_path))).run()
    assert caught.value.where["party"] == NAMES[1]


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        pytest.param({"num_hidden_layers": 6}, {}, marks=SLOW),
        ({"hidden_size": 32}, {}),  # Wʰ maps between the widths
        pytest.param({"num_attention_heads": 2, "hidden_size": 48}, {"hidden": False}, marks=SLOW),
    ],
    ids=str,
)
def test_a_teacher_of_ones_own_may_be_another(
    changes: dict[str, Any], how: dict[str, Any], tmp_path: Path
) -> None:
    teacher = ModelSettings(name=save_tiny(tmp_path / "own", **changes))
    result = run(kd(**how), silos=own(teacher), folder=tmp_path / "run").run()
    found: Any = result.models[f"{NAMES[1]}/model"].config
    assert all(getattr(found, name) == value for name, value in changes.items())
    states = [kept_state(tmp_path / "run", name, 2)["student"] for name in NAMES]
    assert all(equal(states[0], state) for state in states)


def test_texts_with_other_labels_are_explained() -> None:
    one, two, three = silos()
    odd = Silo(two.name, [e for e in two.train if e.label == "ade"])  # type: ignore[union-attr]
    with pytest.raises(DataError, match=f"{two.name} lacks no-ade"):
        run(kd(), silos=[one, odd, three], task=TaskSettings()).run()


@pytest.mark.parametrize("way", ["joint", *(pytest.param(w, marks=SLOW) for w in WAYS[1:])])
def test_no_party_moves_when_nothing_can_be_learnt(way: Way) -> None:
    """An update of next to nothing, from everybody: no NaN, and the student as it was."""
    nothing = TrainingSettings(
        learning_rate=1e-30, weight_decay=0.0, optimizer="sgd", device="cpu", batch_size=16
    )
    start = trainable(make_pair(site_of(silos()[0], ModelSettings(layers=2)), kd()).student)
    result = run(kd(factors=way), "he+secagg", training=nothing).run()
    for name, weight in weights(result, "student").items():
        torch.testing.assert_close(weight, start[name], rtol=0, atol=1e-20)
