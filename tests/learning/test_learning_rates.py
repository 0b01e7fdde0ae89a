"""Where no learning rate is named, a model's width says it: to optimisers, to tune, to audits."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
)

from secure_fl import FedAvg, FedKD, TrainingSettings
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd.mutual_distillation import Pair, make_pair
from secure_fl.algorithms.public_distillation import Learner
from secure_fl.config.load import dump, loads
from secure_fl.features.tuning.tuning import RATE, around
from secure_fl.learning.learning_rates import (
    MOST,
    MOST_OF_ADAPTERS,
    MOST_OF_ENTITIES,
    SGD,
    learning_rate_of,
    with_rate,
)
from secure_fl.learning.local_training import make_optimizer
from secure_fl.settings import AdapterSettings, DPSettings, ModelSettings
from secure_fl.testing.hospitals import silos, small
from tests.support.hands import site_of

NONE = TrainingSettings(device="cpu")


def bert(width: int, kind: type[PreTrainedModel] = BertForSequenceClassification) -> Any:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    return kind(BertConfig(vocab_size=8, hidden_size=width, **shape))


@pytest.mark.parametrize(("width", "rate"), [(1024, 2.81e-5), (768, 5e-5), (384, 2e-4), (32, MOST)])
def test_narrow_models_take_larger_steps(width: int, rate: float) -> None:
    model = bert(width)
    (group,) = make_optimizer(model, NONE).param_groups
    assert learning_rate_of(model, NONE) == group["lr"] == group["initial_lr"] == rate
    entities = learning_rate_of(bert(width, BertForTokenClassification), NONE)
    assert entities == (MOST_OF_ENTITIES if rate == MOST else rate)


def test_who_learns_alone_takes_half_steps() -> None:
    site = site_of(silos(1)[0], NONE)
    model, named = site.model(), TrainingSettings(learning_rate=0.3)
    assert [group["lr"] for group in site.optimizer(model).param_groups] == [MOST / 2]
    assert [learning_rate_of(model, how, alone=True) for how in (NONE, named)] == [MOST / 2, 0.3]
    assert learning_rate_of(bert(384), NONE, alone=True) == learning_rate_of(
        bert(384), NONE
    )  # no narrow one
    learner = Learner.of(site, FedID(), model)
    assert [group["lr"] for group in learner.public.param_groups] == [MOST / 2]


def test_batches_are_larger_under_dp_where_nobody_says() -> None:
    dp = DPSettings(epsilon=8)
    assert TrainingSettings().batch_size == 8
    assert TrainingSettings(dp=dp).batch_size == 32
    assert TrainingSettings(dp=dp, batch_size=4).batch_size == 4
    study = 'data = {corpus = "ade"}\nalgorithm = {name = "fedavg"}\n[training.dp]\nepsilon = 8\n'
    assert loads(study).training.batch_size == 32
    assert loads(dump(loads(study))).training.batch_size == 32


def test_settings_sgd_and_other_models_have_rates_of_their_own() -> None:
    named = TrainingSettings(learning_rate=0.3)
    assert learning_rate_of(bert(8), named) == 0.3
    assert with_rate(named, ModelSettings(), "ner") is named
    assert learning_rate_of(bert(768), TrainingSettings(optimizer="sgd")) == SGD
    assert learning_rate_of(nn.Linear(2, 2), NONE) == 5e-5


def test_it_is_known_before_a_model_is_there() -> None:
    assert with_rate(NONE, ModelSettings(), "pair").learning_rate == MOST
    assert with_rate(NONE, ModelSettings(), "ner").learning_rate == MOST_OF_ENTITIES
    beside = ModelSettings(adapter=AdapterSettings())
    assert with_rate(NONE, beside, "ner").learning_rate == MOST_OF_ADAPTERS
    study = 'data = {corpus = "%s"}\ntask = {kind = "%s"}\nalgorithm = {name = "fedavg"}\n'
    assert around(loads(study % ("ade", "classification")))[RATE][2] == MOST
    assert around(loads(study % ("ner", "ner")))[RATE][2] == MOST_OF_ENTITIES


def test_a_teacher_has_a_quarter_of_its_students() -> None:
    pair = make_pair(site_of(silos(1)[0], NONE), FedKD(student_layers=1, tied=False))
    assert isinstance(pair, Pair)
    assert [rate for _, rate in pair.parts()] == [MOST / 4, MOST, MOST]


@pytest.mark.slow
def test_the_built_in_model_leaves_one_class_by_the_usual_rate_alone() -> None:
    def said(rate: float | None) -> float:
        training = TrainingSettings(learning_rate=rate, device="cpu")
        run = small(FedAvg(rounds=10), silos=silos(3, 160), training=training).run()
        return run.pooled("test")["mcc"]

    assert said(5e-5) == 0.0  # BERT's rate, which was the default for all
    assert said(None) > 0.2
