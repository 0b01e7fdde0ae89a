"""Splits stay put, files come back unchanged, and descriptions show what to worry about."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.partition import (
    How,
    Parties,
    classes,
    dirichlet_class,
    dirichlet_client,
    iid,
    one_corpus_each,
    partition,
)
from secure_fl.data.splits import Splits, describe, load, split, write
from secure_fl.errors import DataError
from secure_fl.settings import Kind
from tests.support.raising import raises

MANY = tuple(Text(f"r{k}", f"text {k % 300}", label=str(k % 3)) for k in range(1000))


def test_a_split_is_a_partition_of_about_the_asked_sizes() -> None:
    parts = split(MANY, dev=0.2, test=0.1, seed=1)
    assert sorted(parts.train + parts.dev + parts.test, key=MANY.index) == list(MANY)
    # Binomial: five standard deviations of 1000·0.2·0.8 are 63.
    assert abs(len(parts.dev) - 200) < 63
    assert abs(len(parts.test) - 100) < 48


def test_a_record_stays_on_its_side_when_others_come_go_and_move() -> None:
    whole = split(MANY, seed=4)
    part = split(MANY[::-2], seed=4)
    assert set(part.test) == set(whole.test) & set(MANY[::-2])
    assert set(part.dev) == set(whole.dev) & set(MANY[::-2])
    assert split(MANY, seed=5) != whole == split(MANY, seed=4)


def test_a_larger_test_share_keeps_the_smaller_one() -> None:
    small, large = split(MANY, test=0.1, seed=0), split(MANY, test=0.3, seed=0)
    assert set(small.test) < set(large.test)


def test_groups_are_never_cut() -> None:
    def patient(example: Example) -> str:
        return str(int(example.id[1:]) % 60)

    parts = split(MANY, seed=2, by=patient)
    groups = [{patient(e) for e in part} for part in (parts.train, parts.dev, parts.test)]
    assert sum(map(len, groups)) == 60 == len(set().union(*groups))


def test_a_part_can_be_left_out() -> None:
    parts = split(MANY, dev=0, test=0.5, seed=0)
    assert not parts.dev
    assert split(MANY, dev=0, test=0, seed=0) == Splits(MANY)


def test_senseless_splits() -> None:
    for dev, test in [(-0.1, 0.1), (0.5, 0.5), (float("nan"), 0.1)]:
        with raises(DataError, field="split"):
            split(MANY, dev=dev, test=test, seed=0)
    with raises(DataError, "1", split="dev") as caught:
        split(MANY[:1], dev=0.001, test=0, seed=0)
    assert "seed" not in caught.value.fix  # a hospital in a pilot chooses none
    with raises(DataError, "0", split="train"):
        split((), dev=0, test=0, seed=0)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda t: t.strip())
LABELS = {
    "classification": st.none() | TEXTS.map(str.strip),
    "regression": st.none() | st.floats(allow_nan=False, allow_infinity=False),
}


def examples_of(kind: str) -> st.SearchStrategy[Example]:
    words = st.lists(TEXTS, min_size=1, max_size=4).map(tuple)
    if kind == "ner":
        return st.builds(
            lambda id, words, tagged: Tagged(id, words, ("B-X",) * len(words) if tagged else None),
            TEXTS,
            words,
            st.booleans(),
        )
    if kind == "ranking":
        return st.builds(lambda id, t: Impression(id, t, t, (True,) * len(t)), TEXTS, words)
    if kind == "pair":
        return st.builds(Text, TEXTS, TEXTS, TEXTS, LABELS["classification"])
    return st.builds(Text, TEXTS, TEXTS, st.none(), LABELS[kind])


@pytest.mark.parametrize("kind", ["classification", "pair", "regression", "ner", "ranking"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_what_is_written_is_read_back(
    tmp_path: Path, kind: Kind, name: str, data: st.DataObject
) -> None:
    examples = tuple(data.draw(st.lists(examples_of(kind), min_size=1, max_size=5)))
    write(examples, tmp_path / name)
    assert load(tmp_path / name, kind) == examples


def test_files_are_reproducible_private_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    write(MANY, path)
    first = path.read_bytes()
    write(MANY, path)
    assert path.read_bytes() == first
    assert len(gzip.decompress(first).splitlines()) == len(MANY)
    assert path.stat().st_mode & 0o077 == 0
    with raises(DataError, "NaN"):
        write([Text("0", "x", label=float("nan"))], path)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("a.csv", "nowhere/a.jsonl", "folder.jsonl"):
        with raises(DataError, file=tmp_path / name):
            write(MANY, tmp_path / name)
    with raises(DataError, file=tmp_path / "a.jsonl"):
        write((), tmp_path / "a.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.jsonl"]


def test_a_description_of_texts() -> None:
    train = (
        Text("1", "one two three", label="yes"),
        Text("2", "one two three", label="no"),
        Text("3", "one", "two", None),
    )
    test = (Text("1", "one", label="yes"), Text("4", "one two three", label="yes"))
    found = describe(Splits(train, test=test))
    assert found["train"] == {
        "size": 3,
        "labels": {"(unlabelled)": 1, "no": 1, "yes": 1},
        "words": {"min": 2.0, "q25": 2.5, "median": 3.0, "q75": 3.0, "q95": 3.0, "max": 3.0},
    }
    assert found["dev"] == {"size": 0, "labels": {}, "words": {}}
    assert found["duplicate_texts"] == {"train": 1, "dev": 0, "test": 0}
    assert found["shared_texts"] == {"train/dev": 0, "train/test": 1, "dev/test": 0}
    assert found["shared_ids"] == {"train/dev": 0, "train/test": 1, "dev/test": 0}
    assert json.loads(json.dumps(found)) == found


def labels(*examples: Example) -> object:
    train = describe(Splits(examples))["train"]
    assert isinstance(train, dict)
    return train["labels"]


def test_descriptions_of_the_other_kinds() -> None:
    scored = [Text(str(k), "x", label=float(k)) for k in range(10)]
    assert labels(*scored) == {
        "0 to 1.8": 2,
        "1.8 to 3.6": 2,
        "3.6 to 5.4": 2,
        "5.4 to 7.2": 2,
        "7.2 to 9": 2,
    }
    tagged = Tagged("1", ("a", "b", "c"), ("B-D", "I-D", "B-D"))
    assert labels(tagged, Tagged("2", ("a",), ("O",))) == {"(no entity)": 1, "D": 2}
    shown = Impression("1", ("h",), ("a", "b", "c"), (True, False, False))
    assert labels(shown) == {"clicked": 1, "passed over": 2}


def test_no_text_of_a_record_is_in_a_description() -> None:
    assert "text 7" not in json.dumps(describe(split(MANY, seed=0)))


def test_text_in_the_column_of_labels_is_not_shown() -> None:
    """A wrong --column: what occurs once and is no name could be a record."""
    words = [Text(f"{k}", "note", label=f"Patient {k} fell on 3 May") for k in range(5)]
    classes = [Text(f"c{k}", "note", label=label) for k, label in enumerate(["ade", "no ade"] * 2)]
    found = describe(Splits((*words, *classes, Text("r", "note", label="rare"))))["train"]
    assert isinstance(found, dict)
    assert found["labels"] == {
        "ade": 2,
        "no ade": 2,
        "rare": 1,
        "(5 of one record each, withheld)": 5,
    }


# --- partitions give every example to exactly one party, and are as skewed as they claim --------


SPREADING: tuple[How, ...] = ("iid", "dirichlet_class", "dirichlet_client")


def labelled(labels: Sequence[str | float | None]) -> tuple[Text, ...]:
    return tuple(Text(str(k), f"text {k}", label=label) for k, label in enumerate(labels))


def ids(parties: Parties) -> list[str]:
    return sorted(example.id for party in parties for example in party)


def balanced(size: int, kinds: int) -> tuple[Text, ...]:
    return labelled([str(k % kinds) for k in range(size)])


def mixtures(parties: Parties) -> NDArray[np.int_]:
    labels = [[e.label for e in party if isinstance(e, Text)] for party in parties]
    names = sorted({str(label) for party in labels for label in party})
    return np.array([[party.count(name) for name in names] for party in labels])


@pytest.mark.parametrize("how", SPREADING)
@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=60),
    n=st.integers(1, 12),
    alpha=st.floats(0.001, 1e6),
    seed=st.integers(0, 2**32),
)
def test_every_example_goes_to_exactly_one_party(
    how: How, labels: list[str | float | None], n: int, alpha: float, seed: int
) -> None:
    examples = labelled(labels)
    rng = np.random.default_rng(seed)
    parties = partition(how, examples, n, rng, alpha=alpha, minimum=0)
    assert len(parties) == n
    assert ids(parties) == sorted(example.id for example in examples)
    sizes = [len(party) for party in parties]
    if how != "dirichlet_class":
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=40, deadline=None)
@given(
    scores=st.lists(st.floats(-5, 5), min_size=1, max_size=50),
    n=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_scores_are_partitioned_too(scores: list[float], n: int, seed: int) -> None:
    examples = labelled([*scores, None])
    parties = dirichlet_class(examples, n, np.random.default_rng(seed), alpha=0.3, minimum=0)
    assert ids(parties) == sorted(example.id for example in examples)


@pytest.mark.parametrize("how", SPREADING)
def test_a_seed_decides_everything(how: How) -> None:
    examples = balanced(50, 3)
    first, again, other = (
        partition(how, examples, 3, np.random.default_rng(seed), minimum=0) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_parties_keep_the_order_of_the_corpus() -> None:
    for party in iid(balanced(40, 2), 4, np.random.default_rng(0)):
        numbers = [int(example.id) for example in party]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("how", SPREADING[1:])
def test_a_small_alpha_skews_and_a_large_one_does_not(how: How) -> None:
    examples = balanced(2000, 4)

    def skew(alpha: float) -> float:
        parties = partition(how, examples, 5, np.random.default_rng(7), alpha=alpha, minimum=0)
        counts = mixtures(parties)
        spread = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return float(np.abs(spread - 0.25).mean())

    assert skew(0.1) > 0.15 > 0.05 > skew(1000)


def test_client_mixtures_follow_the_global_one() -> None:
    # E[q] = p: with 90 % of one class, the average first party draws 90 % of it.
    examples = labelled(["a"] * 900 + ["b"] * 100)
    shares = [
        mixtures(dirichlet_client(examples, 10, np.random.default_rng(seed), alpha=1.0))[0, 0] / 100
        for seed in range(60)
    ]
    assert abs(np.mean(shares) - 0.9) < 0.1


def test_what_the_classes_are() -> None:
    sentences: list[Example] = [
        Tagged("0", ("x", "y"), ("O", "B-Drug")),
        Tagged("1", ("x",), ("O",)),
        Tagged("2", ("x", "y"), ("B-Drug", "B-ADE")),
        Tagged("3", ("x",)),
    ]
    drug, none, also_drug, unlabelled = classes(sentences)
    assert drug == also_drug
    assert len({drug, none, unlabelled}) == 3
    scores = classes(labelled([k / 100 for k in range(100)]))
    assert np.bincount(scores).tolist() == [10] * 10
    assert classes([Impression("0", (), ("t",), (True,))] * 3).tolist() == [0, 0, 0]
    assert classes(labelled([1.0, 1.0, 1.0])).tolist() == [0, 0, 0]


def test_one_corpus_each() -> None:
    corpora = [balanced(3, 1), balanced(5, 2)]
    assert one_corpus_each(corpora, 2) == [tuple(c) for c in corpora]
    with raises(DataError, "2", "3", field="partition"):
        one_corpus_each(corpora, 3)
    with raises(DataError, "3", "4", field="minimum"):
        one_corpus_each(corpora, 2, minimum=4)


def test_a_party_below_the_minimum_is_named() -> None:
    with raises(DataError, "0", "1", "alpha", field="minimum"):
        dirichlet_class(balanced(20, 2), 10, np.random.default_rng(0), alpha=0.01)


@pytest.mark.parametrize("how", SPREADING)
def test_too_few_records_for_all_parties_are_no_fault_of_alpha(how: How) -> None:
    with raises(DataError, "2", "3", field="minimum") as error:
        partition(how, balanced(3, 1), 2, np.random.default_rng(0), minimum=2)
    assert "alpha" not in error.value.fix


@pytest.mark.parametrize("alpha", [1e-320, 1e308])
def test_an_alpha_beyond_floating_point_fails_cleanly_or_works(alpha: float) -> None:
    examples = balanced(30, 3)
    for how in SPREADING[1:]:
        try:
            parties = partition(how, examples, 4, np.random.default_rng(0), alpha=alpha, minimum=0)
        except DataError as error:
            assert error.where == {"field": "alpha"}
        else:
            assert ids(parties) == sorted(example.id for example in examples)


@pytest.mark.parametrize(
    ("how", "size", "parties", "fields", "field"),
    [
        *((how, 0, 2, {}, None) for how in SPREADING),
        *(
            (how, 9, 2, {"alpha": alpha}, "alpha")
            for how in SPREADING[1:]
            for alpha in (0.0, -1.0, float("nan"), float("inf"))
        ),
        ("iid", 9, 0, {}, "parties"),
        ("iid", 9, 2, {"minimum": -1}, "minimum"),
    ],
)
def test_senseless_requests(
    how: How, size: int, parties: int, fields: dict[str, Any], field: str | None
) -> None:
    with raises(DataError, field=field):
        partition(how, balanced(size, 3), parties, np.random.default_rng(0), **fields)
