"""Partitions give every example to exactly one party, and are as skewed as they claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.partition import (
    Parties,
    classes,
    dirichlet_class,
    dirichlet_client,
    iid,
    one_corpus_each,
    partition,
)
from secure_fl.errors import DataError
from tests.support.raising import raises

SPREADING = ("iid", "dirichlet_class", "dirichlet_client")


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
    how: str, labels: list[str | float | None], n: int, alpha: float, seed: int
) -> None:
    examples = labelled(labels)
    rng = np.random.default_rng(seed)
    parties = partition(how, [examples], n, rng, alpha=alpha, minimum=0)
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
def test_a_seed_decides_everything(how: str) -> None:
    examples = balanced(50, 3)
    first, again, other = (
        partition(how, [examples], 3, np.random.default_rng(seed), minimum=0) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_parties_keep_the_order_of_the_corpus() -> None:
    for party in iid(balanced(40, 2), 4, np.random.default_rng(0)):
        numbers = [int(example.id) for example in party]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("how", ["dirichlet_class", "dirichlet_client"])
def test_a_small_alpha_skews_and_a_large_one_does_not(how: str) -> None:
    examples = balanced(2000, 4)

    def skew(alpha: float) -> float:
        parties = partition(how, [examples], 5, np.random.default_rng(7), alpha=alpha, minimum=0)
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
    rng = np.random.default_rng(0)
    assert partition("one_corpus_each", corpora, 2, rng) == [tuple(c) for c in corpora]
    with raises(DataError, "2", "3", field="partition"):
        one_corpus_each(corpora, 3)
    with raises(DataError, "3", "4", field="minimum"):
        one_corpus_each(corpora, 2, minimum=4)


def test_corpora_are_pooled_before_they_are_spread() -> None:
    parties = partition("iid", [balanced(3, 1), balanced(5, 1)], 2, np.random.default_rng(0))
    assert [len(party) for party in parties] == [4, 4]


def test_a_party_below_the_minimum_is_named() -> None:
    with raises(DataError, "0", "1", "alpha", field="minimum"):
        dirichlet_class(balanced(20, 2), 10, np.random.default_rng(0), alpha=0.01)


@pytest.mark.parametrize("how", ["iid", "dirichlet_client", "dirichlet_class"])
def test_too_few_records_for_all_parties_are_no_fault_of_alpha(how: str) -> None:
    with raises(DataError, "2", "3", field="minimum") as error:
        partition(how, [balanced(3, 1)], 2, np.random.default_rng(0), minimum=2)
    assert "alpha" not in error.value.fix


@pytest.mark.parametrize("alpha", [1e-320, 1e308])
def test_an_alpha_beyond_floating_point_fails_cleanly_or_works(alpha: float) -> None:
    examples = balanced(30, 3)
    for how in ("dirichlet_class", "dirichlet_client"):
        try:
            parties = partition(
                how, [examples], 4, np.random.default_rng(0), alpha=alpha, minimum=0
            )
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
            for how in ("dirichlet_class", "dirichlet_client")
            for alpha in (0.0, -1.0, float("nan"), float("inf"))
        ),
        ("by_hand", 9, 2, {}, "partition"),
        ("iid", 9, 0, {}, "parties"),
        ("iid", 9, 2, {"minimum": -1}, "minimum"),
    ],
)
def test_senseless_requests(
    how: str, size: int, parties: int, fields: dict[str, Any], field: str | None
) -> None:
    with raises(DataError, field=field):
        partition(how, [balanced(size, 3)], parties, np.random.default_rng(0), **fields)
