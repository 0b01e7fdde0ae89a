"""What is written reads back equal, and differences are named."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.settings import FedAdam
from secure_fl.config import load as config
from secure_fl.config import toml as config_toml
from secure_fl.config.data import CorpusData, PartyData, PartyFiles, SourceData
from secure_fl.config.load import Settings
from secure_fl.data.rows import Columns
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings

texts = st.text(max_size=8)
filled = st.text(min_size=1, max_size=8)
fractions = st.floats(0, 0.49)
rates = st.floats(0, 1e6, exclude_min=True)
counts = st.integers(1, 2**40)
models = st.builds(
    ModelSettings,
    name=filled,
    layers=st.none() | counts,
    pretrained=st.booleans(),
    freeze_embeddings=st.booleans(),
)
columns = st.builds(Columns, text=st.none() | texts, label=st.none() | texts)
party_files = st.builds(
    PartyFiles,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
    train=filled,
    dev=filled | fractions,
    test=filled | fractions,
    tier=st.none() | texts,
    model=st.none() | models,
)
data = (
    st.builds(
        CorpusData,
        corpus=st.just("ade"),
        parties=st.just(3),
        size=st.none() | counts | st.tuples(counts, counts, counts),
        shift=st.none() | st.floats(0, 1),
        public=counts,
        labelled=st.just(0) | counts,
    )
    | st.builds(
        SourceData,
        source=filled,
        columns=columns,
        partition=st.sampled_from(["iid", "dirichlet_class", "dirichlet_client"]),
        parties=st.integers(3, 9),
        alpha=rates,
        dev=fractions,
        test=fractions,
        public=st.floats(0, 0.9, exclude_min=True),
        labelled=st.none() | fractions,
    )
    | st.builds(
        PartyData,
        party=st.lists(party_files, min_size=3, max_size=4, unique_by=lambda p: p.name).map(tuple),
        public=st.none() | filled,
        columns=columns,
    )
)
trees = st.builds(
    Settings,
    run=st.builds(
        config.RunSettings, name=texts, seed=st.integers(-(2**60), 2**60), folder=st.none() | texts
    ),
    task=st.builds(
        TaskSettings, labels=st.none() | st.lists(texts).map(tuple), positive=st.none() | texts
    ),
    data=data,
    model=models,
    training=st.builds(TrainingSettings, learning_rate=rates, max_grad_norm=st.none() | rates),
    protection=st.builds(ProtectionSettings, mode=st.sampled_from(["none", "secagg"])),
    algorithm=st.builds(FedAvg, rounds=counts) | st.builds(FedAdam, tau=rates),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(trees)
def test_what_is_dumped_loads_back_equal(tree: Settings) -> None:
    text = config.dump(tree)
    tomllib.loads(text)
    assert config.loads(text) == tree
    assert config.dump(config.loads(text)) == text


@settings(max_examples=50, deadline=None)
@given(trees, trees)
def test_differences_are_empty_only_for_equal_settings(a: Settings, b: Settings) -> None:
    moved = a.model_copy(update={"run": b.run.model_copy(update={"seed": a.run.seed})})
    assert config.differences(a, moved) == []  # a run may be moved and renamed
    unmoved = b.model_copy(update={"run": a.run.model_copy(update={"seed": b.run.seed})})
    assert (config.differences(a, b) == []) == (a == unmoved)


def test_differences_name_fields_with_both_values(study: Path) -> None:
    a = config.load(study)
    b = config.load(study, ["algorithm.rounds=9", "data.size=40"])
    assert config.differences(a, b) == ["algorithm.rounds: 2 -> 9", "data.size: nothing -> 40"]


def test_none_can_be_written_where_it_is_not_the_default(study: Path) -> None:
    found = config.load(study, ["training.max_grad_norm=none"])
    assert found.training.max_grad_norm is None
    assert config.loads(config.dump(found)) == found
    # but it stays a name where text is allowed
    assert config.load(study, ["task.positive=none"]).task.positive == "none"


plain = st.recursive(
    st.booleans() | st.integers() | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(texts, plain, max_size=4))
def test_the_writer_writes_what_tomllib_reads(tree: dict[str, object]) -> None:
    text = config_toml.write(tree)
    assert tomllib.loads(text) == tree
    assert set(config_toml.lines(text).values()) <= set(range(1, text.count("\n") + 2))


def test_lines_are_found_in_every_spelling() -> None:
    text = "\ufeff"[1:] + (
        "a.b = 1\r\n[c]\nd = [\n  1,\n  2, # x\n]\ns = '''\n[no]\n'''\n[[e.f]]\ng = {h = 2}\n"
        '[[e.f]]\n"k.l" = 3\n'
    )
    found = config_toml.lines(text)
    assert found[("a", "b")] == 1
    assert found[("c", "d")] == 3
    assert found[("c", "s")] == 7
    assert found[("e", "f", 0, "g", "h")] == 11
    assert found[("e", "f", 1, "k.l")] == 13
    assert not any("no" in key for key in found)
