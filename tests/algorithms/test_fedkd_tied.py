"""A student that is its teacher's first layers: what they share, and what stays apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.fedkd.algorithm import losses
from secure_fl.algorithms.fedkd.mutual_distillation import Pair, make_pair
from secure_fl.learning.anatomy import embeddings, encoder_layers, trainable
from secure_fl.learning.dp.sound import sound
from secure_fl.learning.site import Site
from secure_fl.learning.training import make_optimizer
from secure_fl.settings import ModelSettings
from secure_fl.testing.hospitals import silos
from tests.support.equality import weights
from tests.support.families import BY_KIND, save
from tests.support.fedkd_runs import NAMES, SGD, kd, run, site_of

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


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_teacher_of_any_family_answers_as_before(kind: str, tmp_path: Path) -> None:
    site = site_of(silos()[0], save(tmp_path, kind))
    pair, alone = pair_at(site), site.model()
    batch = site.train.batch(range(4), None, site.device)
    with torch.no_grad():
        answers = [site.task.forward(model.eval(), batch) for model in (pair.teacher, alone)]
    torch.testing.assert_close(*answers)
    assert bool(shared(pair)) == (kind != "albert")  # one layer for all depths


def test_layers_that_two_models_use_are_counted_once_for_each_record() -> None:
    site = site_of(silos()[0], TWO)
    pair, batch = pair_at(site, adaptive="sample"), site.train.batch(range(3), None, site.device)
    assert shared(pair) > 0
    assert [sound(pair, losses, batch, way) for way in ("ghost", "per_sample")] == [
        "ghost",
        "per_sample",
    ]
