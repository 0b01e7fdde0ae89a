"""Membership attacks: they find who an overfit model was trained on, and accuse no other model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secure_fl import corpora
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.settings import FedSGD, Probe, Teaching
from secure_fl.audits import audit_statistics, audited_run, public_trials
from secure_fl.audits.attacks import membership, shadow_models
from secure_fl.audits.attacks.shadow_models import Shadows
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior, PublicView, Truth
from secure_fl.config.build import RunSettings, Settings
from secure_fl.config.data import CorpusData
from secure_fl.config.load import silos
from secure_fl.corpora import NAMES
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Example
from secure_fl.federation.federation import Federation
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings
from tests.support.readings import prior_of

COUNT, PASSES, MODELS = 50, 30, 8  # one set of shadow models for all attacks
small = partial(prior_of, rounds=PASSES // 10, epochs=10, layers=1, seed=1)


def corpus(seed: int, size: int, name: str = "ade") -> tuple[Example, ...]:
    return corpora.make(name, parties=1, seed=seed, size=size, shift=0.0)[0].train


@cache
def prior() -> Prior:
    records = corpus(1, 2 * COUNT)
    task = make_task(TaskSettings(labels=("no-ade", "ade"), max_length=48))
    training = TrainingSettings(learning_rate=2e-3, batch_size=10, device="cpu")
    return small({"north": records[:COUNT]}, training, task=task, public=records[COUNT:])


@cache
def trained(on: str) -> nn.Module:
    records = {"members": prior().truth["north"].records, "others": corpus(77, COUNT)}[on]
    encoded = prior().task.encode(records, prior().tokenizer)
    return shadow_models.imitate(prior(), shadow_models.site_of(prior(), encoded, "target", on))


@cache
def made() -> Shadows:
    return membership.shadows_for(prior(), shadow_models.pool_of(prior(), COUNT), MODELS, "tests")


def view(on: str) -> PublicView:
    return PublicView("public", trained(on), ("model/1",))


def attack(name: str, on: str) -> AuditFinding:
    run = {"lira": membership.lira, "rmia": membership.rmia}[name]
    return run(view(on), prior(), made())


@pytest.mark.parametrize("name", ["lira", "rmia"])
def test_an_overfit_model_tells_and_another_does_not(name):
    finding, null = attack(name, "members"), attack(name, "others")
    assert finding.succeeded
    assert not null.succeeded
    limits = {"level": membership.LEVEL, "margin": membership.MARGIN}
    least = audit_statistics.auc_threshold(COUNT, COUNT, **limits)
    assert finding.threshold == null.threshold == least
    assert finding.interval is not None and finding.interval[0] > 0.5
    assert finding.evidence == ("model/1",)


def test_a_broken_attack_does_not_succeed():
    guess = prior().rng("broken").normal(size=2 * COUNT)
    members = shadow_models.pool_of(prior(), COUNT).members
    assert not membership.judged(membership.LIRA, view("members"), guess, members).succeeded


def test_a_finding_holds_what_the_report_shows():
    details = attack("lira", "members").details
    fpr, tpr = details["roc"]["fpr"], details["roc"]["tpr"]
    assert fpr[0] == tpr[0] == 0
    assert fpr[-1] == tpr[-1] == 1
    assert len(fpr) == len(tpr) <= membership.POINTS
    assert np.trapezoid(tpr, fpr) == pytest.approx(details["auc"], abs=0.02)
    assert [rate["tpr"] for rate in details["tpr"]] == [None, None]  # 50 others are too few
    assert "1,000" in details["tpr"][1]["reason"]


def test_the_same_seed_gives_the_same_shadows():
    few = replace(prior(), algorithm=FedAvg(rounds=1, epochs=1))
    pool = shadow_models.pool_of(few, 10)
    first = membership.shadows_for(few, pool, 2, "tests")
    torch.rand(3)
    assert np.array_equal(first.scores, membership.shadows_for(few, pool, 2, "tests").scores)


def test_every_record_is_in_half_of_the_shadows():
    inside = shadow_models.halves(6, 40, np.random.default_rng(0))
    assert (inside.sum(0) == 3).all()
    assert 0 < inside.sum(1).min()


def test_a_pool_is_balanced_and_shuffled():
    pool = shadow_models.pool_of(prior(), 12)
    own = set(prior().truth["north"].records)
    assert pool.members.sum() == 12
    assert [record in own for record in pool.records] == pool.members.tolist()
    assert pool.members[:12].any()
    assert not pool.members[:12].all()
    held = shadow_models.pool_of(prior(), COUNT, spare=20)
    assert not set(held.records) & set(prior().outsiders[-20:])


def test_lira_by_hand():
    inside = np.array([[True, False], [True, True], [False, True], [False, False]])
    scores = np.array([[4.0, 0.0], [6.0, 1.0], [0.0, 3.0], [2.0, 2.0]])
    made = Shadows(scores, inside)
    v_in, v_out = (1 + 1 + 1 + 1) / 2, (1 + 1 + 1 + 1) / 2  # means 5, 2 inside and 1, 1 outside
    expected = [
        -((5 - 5) ** 2) / (2 * v_in) + (5 - 1) ** 2 / (2 * v_out),
        -((1 - 2) ** 2) / (2 * v_in) + (1 - 1) ** 2 / (2 * v_out),
    ]
    assert membership.guess_lira(np.array([5.0, 1.0]), made) == pytest.approx(expected)


def test_rmia_orders_by_surplus_confidence():
    references = Shadows(np.array([[0.0, 3.0, -3.0]]), np.array([[True, False, True]]))
    same = membership.guess_rmia(np.array([0.0, 3.0, 3.0]), references)
    assert same.tolist() == [0.5, 0.5, 1.0]  # the third is far surer than its references


def test_confidences_are_logits_of_the_label():
    encoded = prior().task.encode(prior().outsiders[:5], prior().tokenizer)
    model = trained("others")
    p = shadow_models.probabilities(prior().task, model, encoded)
    label = encoded.batch(range(5))["labels"].numpy()
    chosen = p[np.arange(5), label]
    expected = pytest.approx(np.log(chosen / (1 - chosen)), rel=1e-4)
    assert shadow_models.confidences(prior().task, model, encoded) == expected


def other(name: str, **task: Any) -> Prior:
    records = corpus(1, 60, name)
    made = make_task(TaskSettings(**task, max_length=48), records)
    known = small({"north": records[:30]}, prior().training, task=made, public=records[30:])
    return replace(known, algorithm=FedAvg(rounds=1, epochs=1))


@pytest.mark.parametrize(("name", "kind"), [("ner", "ner"), ("similarity", "regression")])
def test_other_tasks_are_attacked_by_their_losses(name, kind):
    assert name in NAMES
    setting = other(name, kind=kind)
    pool = shadow_models.pool_of(setting, membership.MOST)
    shadows = membership.shadows_for(setting, pool, 2, "tests")
    finding = membership.lira(PublicView("public", setting.model()), setting, shadows)
    assert finding.value is not None
    assert not finding.succeeded  # this model never learned anything


def test_an_overfit_model_of_several_labels_tells_and_another_does_not():
    overfit = other("codes", kind="multilabel", labels=LABELS)
    overfit = replace(overfit, algorithm=prior().algorithm)
    pool = shadow_models.pool_of(overfit, membership.MOST)
    shadows = membership.shadows_for(overfit, pool, MODELS, "tests")

    def finding(records: tuple[Example, ...]) -> AuditFinding:
        encoded = overfit.task.encode(records, overfit.tokenizer)
        site = shadow_models.site_of(overfit, encoded, "target")
        released = PublicView("public", shadow_models.imitate(overfit, site))
        return membership.lira(released, overfit, shadows)

    control, null = finding(overfit.truth["north"].records), finding(corpus(77, 30, "codes"))
    assert control.succeeded, control.value
    assert not null.succeeded


def test_what_cannot_be_tested_says_so():
    assert membership.unsupported(other("news", kind="ranking"))
    assert membership.unsupported(replace(prior(), outsiders=prior().outsiders[:5]))
    assert not membership.unsupported(prior())


def settings_of(algorithm: FedAvg | Teaching) -> Settings:
    return Settings(
        run=RunSettings(name="steps"),
        data=CorpusData(corpus="ade", parties=3, size=12),
        task=TaskSettings(labels=("ade", "no-ade"), max_length=48),
        model=ModelSettings(layers=1),
        training=TrainingSettings(device="cpu"),
        protection=ProtectionSettings(mode="none"),
        algorithm=algorithm,
    )


def imitated(settings: Settings) -> tuple[nn.Module, nn.Module]:
    """The released model, and a comparison model of all members' records."""
    members = silos(settings)
    released = Federation.of(settings, hospitals=members, progress=False).run().model
    knows = audited_run.prior_of(settings, members)
    records = [record for truth in knows.truth.values() for record in truth.records]
    encoded = knows.task.encode(records, knows.tokenizer)
    site = shadow_models.site_of(knows, encoded, membership.LIRA, 0)
    return released, shadow_models.imitate(knows, site)


def test_comparison_models_of_a_probe_are_probes() -> None:
    released, model = imitated(settings_of(Probe()))  # its result depends on the records alone
    state, expected = model.state_dict(), released.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.allclose(state[name], expected[name], atol=1e-4) for name in expected)


def test_comparison_models_of_fedsgd_make_as_many_steps() -> None:
    settings = settings_of(FedSGD(rounds=3, sample_rate=1.0))
    start = audited_run.prior_of(settings, silos(settings)).model().state_dict()
    paths = [
        max(float((m.state_dict()[n] - start[n]).abs().max()) for n in start)
        for m in imitated(settings)
    ]
    assert paths[1] == pytest.approx(paths[0], rel=0.2)  # the steps differ by dropout


def test_a_comparison_model_that_cannot_be_trained_is_no_verdict() -> None:
    settings = settings_of(Probe())
    knows = audited_run.prior_of(settings, silos(settings))
    alike = tuple(record for record in knows.outsiders if getattr(record, "label", "") == "ade")
    knows = replace(knows, truth={"a": Truth("a", alike[:4])}, outsiders=alike[4:8])

    def trials() -> tuple[AuditTrial, ...]:
        membership.shadows_for(knows, shadow_models.pool_of(knows, 4), 2, membership.LIRA)
        return ()

    (trial,) = public_trials._if_trainable((membership.LIRA,), trials)
    assert trial.verdict == "not tested"
    assert "have the same label" in trial.reason


def test_a_sentence_of_a_member_is_no_outsider() -> None:
    data = CorpusData(corpus="ner", parties=3, size=12)
    settings = settings_of(FedAvg()).model_copy(
        update={"data": data, "task": TaskSettings(kind="ner")}
    )
    first, *others = silos(settings)
    twice = replace(first, test=(replace(first.train[0], id="again"), *first.test))
    knows, alike = (audited_run.prior_of(settings, (one, *others)) for one in (first, twice))
    assert alike.outsiders == knows.outsiders
