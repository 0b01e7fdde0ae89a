"""Every trained parameter has its part, whatever the architecture calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import transformers
from torch import nn

from secure_fl.algorithms.layers import head_names, part_of
from secure_fl.errors import ModelError
from secure_fl.learning import anatomy
from secure_fl.learning.anatomy import freeze_embeddings, trainable
from secure_fl.learning.tasks.heads import AttentiveClassifier, NewsRanker
from tests.support.raising import raises

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "embedding_size": 8,  # ELECTRA then projects its embeddings to the layers' width
}
DISTIL = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
}


def make(family: str, kind: str, layers: int = 3, **more: Any) -> nn.Module:
    sizes: Mapping[str, Any] = SIZES | {"num_hidden_layers": layers} | more
    config = transformers.AutoConfig.for_model(family)
    config.update({DISTIL.get(k, k) if family == "distilbert" else k: v for k, v in sizes.items()})
    auto = {
        "sequence": transformers.AutoModelForSequenceClassification,
        "token": transformers.AutoModelForTokenClassification,
        "body": transformers.AutoModel,
    }[kind]
    model: nn.Module = auto.from_config(config)
    return model


# What each architecture calls its parts: of the encoder layers, the path before the index.
LAYERS = {"distilbert": "transformer.layer"}
POOLER = {
    ("bert", "sequence"): {"bert.pooler.dense"},
    ("roberta", "sequence"): {"classifier.dense"},
    ("electra", "sequence"): {"classifier.dense"},
    ("distilbert", "sequence"): {"pre_classifier"},
}
FAMILIES = ("bert", "roberta", "distilbert", "electra")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_every_parameter_has_its_part(family: str, kind: str) -> None:
    model = make(family, kind)
    parts = part_of(model)
    assert set(parts) == set(trainable(model))
    for name, part in parts.items():
        if ".embeddings" in name:
            expected: Any = "embeddings"
        elif (path := f"{family}.{LAYERS.get(family, 'encoder.layer')}.") in name:
            expected = int(name.removeprefix(path).split(".")[0])
        else:
            pooler = POOLER.get((family, kind), set())
            expected = "pooler" if name.rpartition(".")[0] in pooler else "head"
        assert part == expected, name
    assert {p for p in parts.values() if isinstance(p, int)} == {0, 1, 2}
    output = {name for name, value in trainable(model).items() if value.shape[0] == 2}
    assert head_names(model) == {n for n in output if n.startswith("classifier")} != set()


@pytest.mark.parametrize("family", FAMILIES)
def test_names_mean_the_same_at_every_depth(family: str) -> None:
    deep, shallow = part_of(make(family, "sequence", 5)), part_of(make(family, "sequence", 1))
    assert {name: part for name, part in deep.items() if part in {*shallow.values()}} == shallow
    assert part_of(anatomy.cut(make(family, "sequence", 5), 2)) == {
        name: part for name, part in deep.items() if not isinstance(part, int) or part < 2
    }


def test_frozen_parameters_have_no_part() -> None:
    model = make("electra", "sequence")
    freeze_embeddings(model)
    left = {name for name, part in part_of(model).items() if part == "embeddings"}
    assert left == {"electra.embeddings_project.weight", "electra.embeddings_project.bias"}


def test_our_own_heads() -> None:
    for head, output in ((AttentiveClassifier, "classifier"), (NewsRanker, None)):
        body: Any = make("bert", "body")
        body.pooler = None
        model = AttentiveClassifier(body, 4) if head is AttentiveClassifier else NewsRanker(body)
        parts = part_of(model)
        own = {name: part for name, part in parts.items() if not name.startswith("backbone.")}
        assert set(own.values()) <= {"pooler", "head"} and own
        expected = {f"{output}.weight", f"{output}.bias"} if output else set()
        assert head_names(model) == expected


def test_names_do_not_change_under_opacus() -> None:
    from opacus import GradSampleModule

    model = make("bert", "token")
    assert part_of(GradSampleModule(model)) == part_of(model)


def test_unknown_architectures_are_refused_with_the_parameter() -> None:
    for model in (make("albert", "sequence"), make("albert", "sequence", 1)):
        with raises(ModelError):
            part_of(model)
    odd: Any = make("bert", "sequence")
    odd.adapter = nn.Linear(2, 2)
    with raises(ModelError, parameter="adapter.weight"):
        part_of(odd)
    inside: Any = make("bert", "sequence")
    inside.bert.dense = nn.Linear(2, 2)  # a name that is known outside of the body only
    with raises(ModelError, parameter="bert.dense.weight"):
        part_of(inside)
