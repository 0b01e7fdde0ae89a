"""FedKD: shared layers stay equal, teachers stay local, and one step matches a step by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from secure_fl import FedAvg, Silo
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.fedkd.algorithm import Descent, Moments
from secure_fl.algorithms.fedkd.mutual_distillation import Pair, losses, make_pair
from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.corpora import make
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.errors import ModelError, SettingsError
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import embeddings, encoder_layers, trainable, word_output
from secure_fl.learning.dp.dp_sgd import checked_clipping, fit_privately
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.local_training import make_optimizer
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.party.hooks import Snapshot
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.equality import equal, kept_state, weights
from tests.support.families import save
from tests.support.fedkd_runs import NAMES, SGD, kd, run, site_of
from tests.support.private import make_site, notes, seeded
from tests.support.raising import raises
from tests.support.saved_models import dropping, save_tiny

__all__ = ["dropping"]  # a fixture

OFF: dict[str, Any] = {"tied": False, "mutual": False, "soft_labels": False, "hidden": False}


def test_an_undone_first_round_leaves_no_moments() -> None:
    """The guard restores the state from before the first step, which has none."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([weight])
    moments = Moments(optimizer, [weight])
    before = Snapshot({"moments": moments})
    before.take()
    weight.grad = torch.full((3,), 1000.0)
    optimizer.step()
    before.restore()
    assert moments.state_dict() == {} and not optimizer.state


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "mode"), [("joint", "he+secagg"), ("per_party", "he+secagg"), ("none", "none")]
)
def test_one_student_for_all_and_a_teacher_for_each(
    way: FactorMode, mode: Any, tmp_path: Path, sent: dict[str, set[str]]
) -> None:
    result = run(kd(factors=way), mode, folder=tmp_path).run()
    assert set(result.models) == {"student", *(f"{name}/model" for name in NAMES)}
    teachers = [weights(result, f"{name}/model") for name in NAMES]
    assert not any(equal(teachers[0], other) for other in teachers[1:])
    states = [kept_state(tmp_path, name, 2)["student"] for name in NAMES]
    assert all(equal(states[0], state) for state in states)
    student = trainable(result.models["student"])
    counts = {"joint": {"records", "parties"}, "per_party": set(), "none": {"records"}}[way]
    names = {n.partition("|")[0] for own in sent.values() for n in own}
    assert names - set(student) == counts
    assert set(student) <= names or way == "per_party"
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


def test_a_teacher_learns_at_a_quarter_of_the_rate_unless_it_has_its_own() -> None:
    site = site_of(silos()[0], ModelSettings(layers=1))
    η = SGD.learning_rate or 0.0
    assert make_pair(site, kd()).rates == (η / 4, η)
    assert make_pair(site, kd(teacher_learning_rate=0.5)).rates == (0.5, η)


# --- against what it must equal -------------------------------------------------------------------


def test_without_distillation_it_is_fedavg_of_the_student() -> None:
    """Bit for bit: the separate teacher changes nothing."""
    training = TrainingSettings(learning_rate=1e-3, batch_size=16, device="cpu")
    alone = small(FedAvg(rounds=2), model=ModelSettings(layers=1), training=training)
    pair = small(kd(factors="none", **OFF), model=ModelSettings(), training=training)
    assert equal(weights(alone.run()), weights(pair.run(), "student"))


@pytest.mark.parametrize("mean", ["records", "parties"])
def test_an_exchanged_gradient_is_the_weighted_mean_of_the_parties(mean: Any) -> None:
    """One step of full batches against one step by hand."""
    step: dict[str, Any] = {"exchange": "gradient", "steps": 1, "factors": "none", "tied": False}
    cfg = kd(rounds=1, adaptive="sample", mean=mean, teacher_learning_rate=0.05, **step)
    sizes, model = (12, 30, 6), ModelSettings(layers=2)
    splits = make("ade", parties=3, seed=0, size=sizes)
    parties = [Silo(n, s.train, s.dev) for n, s in zip(NAMES, splits, strict=True)]
    result = run(cfg, silos=parties, model=model, training=SGD).run()
    gradients: list[dict[str, Tensor]] = []
    for silo in parties:
        site = site_of(silo, model)
        pair = make_pair(site, cfg)
        losses(pair, site.train.batch(range(len(silo.train)))).mean().backward()
        gradients.append({n: w.grad for n, w in trainable(pair.student).items()})  # type: ignore[misc]
        teacher = weights(result, f"{silo.name}/model")  # line 7: on its own gradient
        for name, weight in trainable(pair.teacher).items():
            assert weight.grad is not None
            expected = weight - 0.05 * weight.grad
            torch.testing.assert_close(teacher[name], expected, atol=1e-6, rtol=1e-5)
    shares = [size / sum(sizes) if mean == "records" else 1 / 3 for size in sizes]
    start = trainable(make_pair(site_of(parties[0], model), cfg).student)
    for name, weight in weights(result, "student").items():
        g = sum(share * own[name] for share, own in zip(shares, gradients, strict=True))
        torch.testing.assert_close(weight, start[name] - 0.05 * g, atol=1e-6, rtol=1e-5)


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


# --- teachers that contain the student ------------------------------------------------------------

TWO = ModelSettings(layers=2)


def pair_at(site: Site, **settings: Any) -> Pair:
    return make_pair(site, kd(teacher_learning_rate=1e-3, **settings))


def shared(pair: Pair) -> int:
    """How many trained weights both models have."""
    student = {id(weight) for weight in trainable(pair.student).values()}
    return sum(id(weight) in student for weight in trainable(pair.teacher).values())


def test_both_models_are_made_of_the_same_layers_and_learn_at_the_student_s_rate() -> None:
    pair = pair_at(site_of(silos()[0], TWO))
    assert encoder_layers(pair.teacher)[0] is encoder_layers(pair.student)[0]
    assert embeddings(pair.teacher) is embeddings(pair.student)
    (teacher, η_t), (student, η_s) = (
        (group["params"], group["lr"]) for group in make_optimizer(pair, SGD).param_groups
    )
    assert (η_t, η_s) == (1e-3, 0.05)
    assert {id(w) for w in student} == {id(w) for w in trainable(pair.student).values()}
    assert not {id(w) for w in teacher} & {id(w) for w in student}
    assert len(teacher) + len(student) == len(trainable(pair))  # Wʰ compares two networks only


def test_every_hospital_has_the_shared_layers_and_its_own_above_them() -> None:
    result = run(kd(factors="none")).run()
    student = weights(result, "student")
    teachers = [weights(result, f"{name}/model") for name in NAMES]
    for name, weight in student.items():
        if "layer.0" in name:
            assert all(torch.equal(weight, teacher[name]) for teacher in teachers)
    above = [name for name in teachers[0] if "layer.1" in name and "weight" in name]
    assert above and not set(above) & set(student)
    assert not any(torch.equal(teachers[0][name], teachers[1][name]) for name in above)


def test_a_teacher_s_word_output_is_the_table_that_it_shares() -> None:
    """Trained word vectors move with the sum, so a table of the teacher's own would drift away."""
    words = {"no-ade": "helped", "ade": "harmed"}
    task = TaskSettings(prompt="patient was [MASK] .", label_words=words, max_length=32)
    spec = SiteSpec(make_task(task), ModelSettings(layers=2, freeze_embeddings=False), SGD, 0)
    pair = make_pair(Site(silos()[0], spec, SiteContext(EventLog(NAMES[0]))), kd())
    outputs = [word_output(model) for model in (pair.teacher, pair.student)]
    tables = [model.get_input_embeddings() for model in (pair.teacher, pair.student)]  # type: ignore[operator]
    assert {id(module.weight) for module in (*outputs, *tables)} == {id(tables[0].weight)}


@pytest.mark.parametrize("tied", [True, False])
def test_a_teacher_s_loss_teaches_the_layers_that_it_shares(tied: bool) -> None:
    """With the labels hidden from the student, only what is shared can move them."""
    site = site_of(silos()[0], TWO)
    pair = pair_at(site, tied=tied, soft_labels=False, hidden=False)
    out = site.task.forward(pair.teacher, site.train.batch(range(4), None, site.device))
    out.square().sum().backward()
    moved = [n for n, w in trainable(pair.student).items() if w.grad is not None]
    assert bool(moved) == tied
    assert all("layer.0" in name for name in moved)


def test_a_teacher_of_another_checkpoint_stays_apart(tmp_path: Path) -> None:
    site = site_of(silos()[0], TWO)
    assert shared(pair_at(site)) > 0
    site.model_settings = ModelSettings(layers=1)  # the same model, and less of it
    assert shared(pair_at(site)) > 0
    site.model_settings = save(tmp_path, "bert", num_attention_heads=2)
    site.shared_model_settings = TWO
    pair = pair_at(site, transform=False, hidden=False)
    assert shared(pair) == 0


def test_layers_that_two_models_use_are_counted_once_for_each_record() -> None:
    site = site_of(silos()[0], TWO)
    pair, batch = pair_at(site, adaptive="sample"), site.train.batch(range(3), None, site.device)
    assert shared(pair) > 0
    assert [checked_clipping(pair, losses, batch, way) for way in ("ghost", "per_sample")] == [
        "ghost",
        "per_sample",
    ]


# --- differential privacy -------------------------------------------------------------------------

DP = DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0, accountant="rdp")
PRIVATE = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", dp=DP)


def test_a_pair_trains_privately_as_one_module(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", Identity.generate("north"))
    site = make_site(notes(40), ledger=ledger, clipping="ghost", learning_rate=1e-2)
    site.shared_model_settings = site.model_settings = ModelSettings(layers=2)
    pair = make_pair(site, kd(adaptive="sample"))
    before = {n: w.detach().clone() for n, w in trainable(pair).items()}
    fit_privately(site, pair, 2, objective=losses, generator=seeded())
    assert site.privacy is not None
    assert site.privacy.statement()["steps"] == 2 * 4  # two passes of 40 / 10, not four
    assert not any(torch.equal(w, before[n]) for n, w in trainable(pair).items())
    assert {name.split(".")[0] for name in before} == {"teacher", "student"}  # one network


@pytest.mark.parametrize(
    ("how", "field"), [({"adaptive": "batch"}, "adaptive"), ({"exchange": "gradient"}, "exchange")]
)
def test_dp_refuses_losses_and_exchanges_that_it_does_not_cover(
    how: dict[str, Any], field: str
) -> None:
    with raises(SettingsError, field=f"algorithm.{field}"):
        run(kd(**{"adaptive": "sample"} | how), training=PRIVATE).run()


# --- settings -------------------------------------------------------------------------------------


def test_steps_are_asked_for_only_where_they_are_counted() -> None:
    by_step = kd(exchange="gradient", steps=7, rounds=3).demands(TrainingSettings(), 0)
    by_epoch = kd(rounds=3).demands(TrainingSettings(), 0)
    assert (by_step.exchanges, by_step.steps) == (21, 7)
    assert (by_epoch.exchanges, by_epoch.steps) == (3, 0)


@pytest.mark.parametrize(
    ("without_effect", "needed"),
    [
        ({"steps": 5}, {"exchange": "gradient"}),
        ({"student_rank": 4}, {"teachers": "shared"}),
        ({"transform": False, "teachers": "personal"}, {"teachers": "private"}),
        ({"max_rank": 4, "teachers": "shared"}, {"teachers": "private"}),
    ],
)
def test_settings_without_effect_are_refused(
    without_effect: dict[str, Any], needed: dict[str, Any]
) -> None:
    with raises(SettingsError, next(iter(without_effect)), *needed, *needed.values()):
        FedKD(**without_effect)
    FedKD(**without_effect | needed)


# --- refused and different teachers ---------------------------------------------------------------


def test_a_student_is_no_deeper_than_its_teacher() -> None:
    with raises(SettingsError, "3", "2", "1 to 2", field="algorithm.student_layers"):
        run(kd(student_layers=3)).run()


def own(teacher: ModelSettings) -> list[Silo]:
    """Hospitals, of which the second has a teacher of its own."""
    one, two, three = silos(size=20)
    return [one, Silo(two.name, two.train, two.dev, two.test, model=teacher), three]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "words": ({"words": ("alpha", "beta")}, {}, "vocabulary"),
    "heads": ({"num_attention_heads": 2}, {}, "num_attention_heads 2"),
    "width": ({"hidden_size": 32}, {"transform": False}, "hidden_size 32"),
    "depth": ({"num_hidden_layers": 1}, {"student_layers": 2, "hidden": False}, "teacher 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    changes, how, words = REFUSED[case]
    teacher = ModelSettings(name=save_tiny(tmp_path, **changes))
    with raises(ModelError, words, party=NAMES[1]):
        run(kd(**how), silos=own(teacher)).run()


def test_a_teacher_may_have_another_width(tmp_path: Path) -> None:
    teacher = ModelSettings(name=save_tiny(tmp_path / "own", hidden_size=32))  # Wʰ maps widths
    result = run(kd(), silos=own(teacher), folder=tmp_path / "run").run()
    config: Any = result.models[f"{NAMES[1]}/model"].config
    assert config.hidden_size == 32
    states = [kept_state(tmp_path / "run", name, 2)["student"] for name in NAMES]
    assert all(equal(states[0], state) for state in states)
