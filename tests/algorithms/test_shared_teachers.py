"""FedKD with shared and personal teachers: what is equal, what is sent, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import AdapterSettings, FedAvg, Federation, ModelSettings
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.fedkd.algorithm import APART, shared_and_own
from secure_fl.algorithms.fedkd.mutual_distillation import Words, losses, make_pair
from secure_fl.algorithms.updates import update_by
from secure_fl.errors import SettingsError
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.learning.anatomy import adapted, depth, trainable
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.learning_rates import ALONE
from secure_fl.settings import DPSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.equality import equal, kept_state, weights
from tests.support.fedkd_runs import NAMES, SGD, kd, site_of
from tests.support.raising import raises
from tests.support.token_hospitals import HEAD, corpora, ner

LORA = ModelSettings(layers=2, adapter=AdapterSettings(rank=2, targets="linear"))
shared = partial(kd, teachers="shared", student_rank=3)
personal = partial(kd, teachers="personal", student_rank=3)


def run(algorithm: FedKD, mode: Any = "none", **options: Any) -> Federation:
    return small(algorithm, mode, **{"model": LORA, "silos": silos(size=20)} | options)


def ranks(model: Any) -> set[int]:
    return {w.shape[0] for n, w in trainable(model).items() if ".lora_A." in n}


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_all_hospitals_have_the_same_teacher_and_student(
    mode: Any, tmp_path: Path, sent: dict[str, set[str]]
) -> None:
    result = run(shared(), mode, folder=tmp_path).run()
    assert set(result.models) == {"student", "model"}
    assert (depth(result.models["model"]), depth(result.models["student"])) == (2, 1)
    states = [kept_state(tmp_path, name, 2)["pair"] for name in NAMES]
    assert all(equal(states[0], state) for state in states)
    names = {name for own in sent.values() for name in own}
    assert names == set(states[0]) | {"records"}
    assert set(weights(result)) | {f"student.{n}" for n in weights(result, "student")} == set(
        states[0]
    )
    assert all(".lora_" in name or "classifier" in name for name in names - {"records"})
    for name in ("model", "student"):
        loaded, _, task = load_exported(tmp_path / name)
        assert task.labels == LABELS and depth(loaded) == depth(result.models[name])


def test_a_personal_teacher_keeps_half_of_its_adapter(
    tmp_path: Path, sent: dict[str, set[str]]
) -> None:
    result = run(personal(), "he+secagg", folder=tmp_path).run()
    assert set(result.models) == {"student", *(f"{name}/model" for name in NAMES)}
    teachers = [weights(result, f"{name}/model") for name in NAMES]
    assert ranks(result.models["student"]) == {3}
    for name, first in teachers[0].items():
        second = teachers[1][name]
        if ".lora_" not in name:
            assert torch.equal(first, second)
            continue
        dim = 0 if ".lora_A." in name else 1
        common, own = zip(first.chunk(2, dim), second.chunk(2, dim), strict=True)
        assert first.shape[dim] == 4 and torch.equal(*common) and not torch.equal(*own)
    assert all("classifier" not in name for name in kept_state(tmp_path, NAMES[0], 2)["own"])


def test_shared_teachers_are_fedavg_of_the_same_adapters() -> None:
    """Bit for bit: a student beside its teacher does not change it."""
    alone = small(FedAvg(rounds=2), model=LORA, silos=silos(size=20)).run()
    assert equal(weights(alone), weights(run(shared()).run()))


def test_a_student_from_labels_alone_is_fedavg_of_its_layers() -> None:
    adapter = AdapterSettings(rank=3, targets="linear")
    first = ModelSettings(layers=1, adapter=adapter)
    alone = small(FedAvg(rounds=2), model=first, silos=silos(size=20)).run()
    taught, by_labels = (run(shared(soft_labels=given)).run() for given in (True, False))
    assert equal(weights(alone), weights(by_labels, "student"))
    assert not equal(weights(alone), weights(taught, "student"))


def test_one_sum_a_round_has_both_models_adapters_and_heads() -> None:
    """Bytes of a round: of the values in it, and fewer than those of a student sent whole."""
    few, printed = run(shared(), "he+secagg"), run(kd(), "he+secagg", model=ModelSettings(layers=2))
    found, usual = (federation.run() for federation in (few, printed))
    values = sum(w.numel() for m in found.models.values() for w in trainable(m).values())
    ups = [sizes["up"] / 2 for sizes in found.document["bytes"].values()]
    assert max(ups) < min(sizes["up"] / 2 for sizes in usual.document["bytes"].values())
    assert 2 * values < min(ups) < 6 * values + 20_000  # 16 bits, and the envelope of a round


def test_the_gradient_of_each_model_is_clipped_by_itself() -> None:
    training = SGD.model_copy(update={"max_grad_norm": 1e-3, "learning_rate": 1.0})
    site = site_of(silos()[0], LORA, training)
    cfg = shared()
    pair = make_pair(site, cfg.model_copy(update=APART))
    train = partial(site.fit, pair, 1, ALONE, objective=losses)
    Δ = update_by(shared_and_own(site, pair, cfg)[0].views, train)
    for student in (False, True):
        own = [δ.norm() for name, δ in Δ.items() if name.startswith("student.") == student]
        norm = torch.stack(own).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


def test_rates_and_scales_of_both_models() -> None:
    site = site_of(
        silos()[0], LORA.model_copy(update={"adapter": AdapterSettings(rank=2, alpha=6)})
    )
    η = SGD.learning_rate or 0.0
    for cfg in (shared(), personal()):
        pair = make_pair(site, cfg)
        assert pair.rates == (η, η)
        scales = {la.scaling["default"] for la in adapted(pair).values()}
        assert scales == {3.0}  # alpha/r, whatever the rank is


def test_heads_of_different_labels_stay_at_their_hospitals(sent: dict[str, set[str]]) -> None:
    result = ner(shared(rounds=1), "he+secagg", silos=corpora(), model=LORA).run()
    assert {f"{silo.name}/{m}" for silo in corpora() for m in ("model", "student")} == set(
        result.models
    )
    names = {name for own in sent.values() for name in own}
    assert len(names) > 5 and not any(head in name for name in names for head in HEAD)


def test_a_guard_judges_the_shared_teacher() -> None:
    for cfg, label in ((shared(), ""), (personal(), ""), (kd(), None)):
        assert cfg.undoable_label == label
    result = run(shared(), silos=silos(4, 20), sections={"guard": GuardSettings()}).run()
    assert result.document["guard"]["refused"] == []


# --- made-up records ------------------------------------------------------------------------------


def test_made_up_records_have_words_of_their_own_record_only() -> None:
    site = site_of(silos()[0], LORA)
    batch = site.train.batch(range(24))
    made = Words.of(site.tokenizer).made_up(batch)
    special, mask = set(site.tokenizer.all_special_ids), site.tokenizer.mask_token_id
    assert made["labels"] is batch["labels"] and made["input_ids"].shape == batch["input_ids"].shape
    spans = changed = 0
    for ids, seen, new, kept in zip(
        batch["input_ids"], batch["attention_mask"], made["input_ids"], made["attention_mask"],
        strict=True,
    ):  # fmt: skip
        words = [t for t, s in zip(ids.tolist(), seen.tolist(), strict=True) if s]
        assert set(new[seen.bool()].tolist()) <= set(words) | {mask}
        assert not (kept > seen).any()
        places = [k for k, t in enumerate(ids.tolist()) if seen[k] and t not in special]
        inside = [k for k in places if kept[k]]
        assert inside == list(range(inside[0], inside[-1] + 1)) and 3 * len(inside) >= len(places)
        assert all(kept[k] for k, t in enumerate(ids.tolist()) if seen[k] and t in special)
        spans, changed = spans + (inside != places), changed + int((new != ids).sum())
    assert 0 < spans < 24 and changed > 0


@pytest.mark.parametrize("soft_labels", [True, False])
def test_a_student_learns_from_made_up_records_and_its_teacher_does_not(soft_labels: bool) -> None:
    """A student may be taught by made-up records only."""
    cfg = shared(rounds=1, soft_labels=soft_labels)
    plain, made = (run(cfg.model_copy(update={"made_up": given})).run() for given in (False, True))
    assert equal(weights(plain), weights(made))
    assert not equal(weights(plain, "student"), weights(made, "student"))


def test_a_student_can_learn_from_the_soft_labels_of_made_up_records_alone() -> None:
    taught = run(shared(rounds=1, made_up=True, soft_labels=False)).run()
    alone = run(shared(rounds=1, soft_labels=False)).run()
    assert equal(weights(taught), weights(alone))
    assert not equal(weights(taught, "student"), weights(alone, "student"))


def test_made_up_entities_have_no_loss_outside_of_their_span() -> None:
    result = ner(shared(rounds=1, made_up=True), silos=corpora(), model=LORA).run()
    assert all(w.isfinite().all() for m in result.models.values() for w in m.parameters())
    ids = torch.arange(5, 25).reshape(2, 10)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    made = Words((), None).made_up(batch)
    assert ((made["labels"] == -100) == (made["attention_mask"] == 0)).all()


# --- stops, and differential privacy --------------------------------------------------------------

DP = DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0, accountant="rdp")
PRIVATE = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu", dp=DP)


@pytest.mark.parametrize("teachers", ["shared", "personal"])
def test_dp_sgd_covers_both_models(teachers: Any) -> None:
    result = run(kd(teachers=teachers, adaptive="sample"), "he+secagg", training=PRIVATE).run()
    assert set(result.document["privacy"]["steps"].values()) == {2 * 2}  # rounds, steps of a pass


@pytest.mark.parametrize(
    ("bad", "field"), [({"adaptive": "batch"}, "adaptive"), ({"made_up": True}, "made_up")]
)
def test_dp_sgd_refuses_losses_that_it_does_not_cover(bad: dict[str, Any], field: str) -> None:
    with raises(SettingsError, field=f"algorithm.{field}"):
        run(shared(**{"adaptive": "sample"} | bad), training=PRIVATE).run()


# --- refused before anything is computed ----------------------------------------------------------


@pytest.mark.parametrize("teachers", ["shared", "personal"])
def test_teachers_without_adapters_are_refused(teachers: Any) -> None:
    with raises(SettingsError, teachers, "[model.adapter]", field="model.adapter"):
        run(kd(teachers=teachers), model=ModelSettings(layers=2))


def test_a_teacher_of_another_checkpoint_is_refused() -> None:
    one, two, three = silos(size=20)
    other = replace(two, model=ModelSettings(layers=1, adapter=LORA.adapter))
    with raises(SettingsError, "one checkpoint", "private", party=NAMES[1], field="model"):
        run(shared(), silos=[one, other, three]).run()


@pytest.mark.parametrize(
    "bad",
    [{"factors": "per_party"}, {"exchange": "gradient"}, {"max_rank": 4}, {"joint_loss": True}],
    ids=str,
)
def test_settings_of_factors_are_refused_with_shared_teachers(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(bad))):
        shared(**bad)


def test_losses_are_equations_1_2_and_4() -> None:
    site = site_of(silos()[0], LORA)
    pair = make_pair(site, shared().model_copy(update=APART))
    batch = site.train.batch(range(6), None, site.device)
    losses(pair, batch).sum().backward()
    teacher = {n: w.grad.clone() for n, w in trainable(pair.teacher).items() if w.grad is not None}
    alone = site.task.loss(site.task.forward(pair.teacher, batch), batch, reduction="none")
    found = torch.autograd.grad(alone.sum(), list(trainable(pair.teacher).values()))
    for grad, mine in zip(found, teacher.values(), strict=True):
        torch.testing.assert_close(grad, mine)
