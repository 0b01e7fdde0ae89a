"""Real data sets: read in their own layout, dealt to parties without overlap."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import collection
from benchmarks.collection import DEFAULT, PARTS, SETS, read
from benchmarks.datasets import Spread, silos
from secure_fl.data.partition import classes, iid
from secure_fl.errors import DataError
from secure_fl.learning.tasks import make_task
from secure_fl.seeds import seed_for
from secure_fl.settings import TaskSettings

needs_data = pytest.mark.skipif(not DEFAULT.is_dir(), reason="the data sets are not here")


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as stream:
        stream.writelines(f"{json.dumps(row)}\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def text(k: int) -> dict[str, Any]:
        return {"idx": k, "text1": f"text {k}", "text2": None, "label": k % 2}

    parts = ["train"] * 6 + ["dev"] * 2 + ["test"] * 2
    write(
        tmp_path / "ade_cls/all.jsonl.gz", [text(k) | {"split": parts[k % 10]} for k in range(50)]
    )
    write(tmp_path / "sst2/train.jsonl.gz", [text(k) for k in range(100)])
    write(tmp_path / "sst2/dev.jsonl.gz", [text(k + 1000) for k in range(20)])
    write(tmp_path / "imdb/train10k.jsonl.gz", [text(k + 5000) for k in range(200)])
    tagged = {"tokens": ["no", "rash"], "tags": ["O", "B-ADE"]}
    for name in ("ncbi_disease", "psytar_ner"):
        for part in PARTS:
            write(tmp_path / name / f"{part}.jsonl.gz", [tagged | {"idx": k} for k in range(8)])
    return tmp_path


def ids(found: Iterable[Any], part: str) -> list[str]:
    return [example.id for silo in found for example in getattr(silo, part)]


def test_a_column_says_which_part_a_row_belongs_to(folder: Path) -> None:
    found = read("ade_cls", folder)
    assert [len(getattr(found, part)) for part in PARTS] == [30, 10, 10]
    assert all(int(example.id) % 10 < 6 for example in found.train)
    assert all(int(example.id) % 10 > 7 for example in found.test)


def test_without_public_test_records_the_dev_file_is_the_test(folder: Path) -> None:
    found = read("sst2", folder)
    assert {example.id for example in found.test} == {str(k) for k in range(1000, 1020)}
    assert len(found.train) + len(found.dev) == 100 and 2 <= len(found.dev) <= 25
    assert not {e.id for e in found.train} & {e.id for e in found.dev}


def test_parties_share_nothing_and_get_alike_many(folder: Path) -> None:
    found = silos(Spread(("sst2",), 4, train=42, dev=4, test=10), folder, seed=0)
    assert [silo.name for silo in found] == [f"hospital-0{k}" for k in range(1, 5)]
    for part, size in (("train", 42), ("dev", 4), ("test", 10)):
        dealt = ids(found, part)
        assert len(dealt) == len(set(dealt)) == size
    sizes = [len(silo.train) for silo in found]
    assert max(sizes) - min(sizes) == 1


def test_a_seed_changes_what_is_learned_and_not_what_is_measured(folder: Path) -> None:
    spread = Spread(("sst2",), 2, train=30, dev=3, test=10)
    first, same, other = (silos(spread, folder, seed) for seed in (0, 0, 1))
    assert first == same
    assert set(ids(first, "train")) != set(ids(other, "train"))
    assert set(ids(first, "test")) == set(ids(other, "test"))
    assert set(ids(first, "dev")) == set(ids(other, "dev"))


def test_several_sets_are_one_for_each_party_with_its_tier(folder: Path) -> None:
    spread = Spread(("psytar_ner", "ncbi_disease"), 2, train=5, tiers=("strong", "weak"))
    found = silos(spread, folder, seed=0)
    assert [(s.name, s.tier) for s in found] == [("psytar_ner", "strong"), ("ncbi_disease", "weak")]
    assert [(len(s.train), len(s.dev), len(s.test)) for s in found] == [(5, 8, 8)] * 2


# --- public records and a host -----------------------------------------------

HALF = Spread(("sst2",), 3, train=80, dev=4, test=10, public=0.5, labelled=0.2)


def by_id(examples: Iterable[Any]) -> set[str]:
    return {example.id for example in examples}


def labels(examples: Iterable[Any]) -> set[Any]:
    return {example.label for example in examples}


def private(found: Iterable[Any]) -> list[set[str]]:
    return [by_id(silo.train) for silo in found if silo.role == "party"]


def test_half_becomes_public_and_the_host_keeps_a_share_with_labels(folder: Path) -> None:
    *parties, host = found = silos(HALF, folder, seed=0)
    assert [silo.name for silo in found] == ["hospital-01", "hospital-02", "hospital-03", "host"]
    assert [silo.role for silo in found] == ["party"] * 3 + ["host"]
    assert [len(silo.train) for silo in found] == [14, 13, 13, 8]  # 40 over 3; a fifth of 40
    assert all(silo.public == host.public and len(silo.public) == 32 for silo in found)
    parts = [*private(found), by_id(host.train), by_id(host.public)]
    whole = set.union(*parts)
    assert len(whole) == sum(map(len, parts)) == HALF.train
    assert whole <= by_id(read("sst2", folder).train)
    assert labels(host.public) == {None} and labels(host.train) == {"0", "1"}
    assert (len(host.dev), len(host.test)) == (4, 10)
    assert not any(silo.dev or silo.test for silo in parties)


def test_without_public_records_nothing_else_of_them_matters(folder: Path) -> None:
    plain = Spread(("sst2",), 3, train=80, dev=4, test=10)
    other = replace(plain, labelled=0.5, public_size=3, labelled_size=2, everywhere=True)
    assert silos(plain, folder, 0) == silos(replace(other, hosted=False), folder, 0)
    rng = np.random.default_rng(seed_for(0, "spread", "sst2"))  # and by hand
    train = read("sst2", folder).train
    some = [train[k] for k in sorted(rng.permutation(len(train))[:80])]
    assert [silo.train for silo in silos(plain, folder, 0)] == iid(some, 3, rng)


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        ({}, [0, 0, 0, 10]),
        ({"everywhere": True}, [10, 10, 10, 10]),
        ({"hosted": False}, [10, 0, 0]),
        ({"hosted": False, "everywhere": True}, [10, 10, 10]),
    ],
)
def test_who_is_measured(folder: Path, options: dict[str, Any], measured: list[int]) -> None:
    found, usual = silos(replace(HALF, **options), folder, 0), silos(HALF, folder, 0)
    assert [len(silo.test) for silo in found] == measured
    assert {silo.test for silo in found if silo.test} == {usual[-1].test}
    assert {silo.dev for silo in found if silo.dev} == {usual[-1].dev}
    assert private(found) == private(usual)  # rows of a table differ in nothing private


def test_cuts_for_a_sweep_are_nested_and_leave_private_records_alone(folder: Path) -> None:
    usual = silos(HALF, folder, 0)
    sizes = (20, 10, 5)
    few = [silos(replace(HALF, public_size=size), folder, 0) for size in sizes]
    shared = [by_id(found[-1].public) for found in few]
    assert [len(ids) for ids in shared] == list(sizes)
    assert by_id(usual[-1].public) > shared[0] > shared[1] > shared[2]
    less = silos(replace(HALF, labelled_size=3), folder, 0)
    assert len(less[-1].train) == 3 and by_id(less[-1].train) < by_id(usual[-1].train)
    assert less[-1].public == usual[-1].public
    assert all(private(found) == private(usual) for found in (*few, less))
    with pytest.raises(DataError, match="field public_size: 33 of 32 records"):
        silos(replace(HALF, public_size=33), folder, 0)
    with pytest.raises(DataError, match="field labelled_size: 9 of 8 records"):
        silos(replace(HALF, labelled_size=9), folder, 0)


def test_another_set_may_take_the_place_of_the_public_records(folder: Path) -> None:
    usual, across = silos(HALF, folder, 0), silos(replace(HALF, public_set="imdb"), folder, 0)
    there = by_id(read("imdb", folder).train)
    assert len(there) == 200 and read("imdb", folder).test == ()
    assert len(across[-1].public) == len(usual[-1].public) and by_id(across[-1].public) < there
    assert labels(across[-1].public) == {None}
    assert [silo.train for silo in across] == [silo.train for silo in usual]
    more = silos(replace(HALF, public_set="imdb", public_size=150), folder, 0)
    assert len(more[-1].public) == 150
    assert replace(HALF, public_set="imdb").reads == ("sst2", "imdb") and HALF.reads == ("sst2",)
    with pytest.raises(DataError, match="rte is a pair set"):
        silos(replace(HALF, public_set="rte"), folder, 0)
    with pytest.raises(DataError, match="one set"):
        silos(replace(HALF, sets=("sst2", "imdb")), folder, 0)


def test_private_records_may_be_skewed(folder: Path) -> None:
    skewed = [silos(replace(HALF, alpha=0.05), folder, seed) for seed in range(4)]
    for found in skewed:
        assert [len(silo.train) for silo in found[:-1]] == [14, 13, 13]
    shares = [
        abs(sum(classes(silo.train)) / len(silo.train) - 0.5)
        for found in (*skewed, silos(HALF, folder, 0))
        for silo in found[:-1]
    ]
    assert max(shares[:12]) > 0.4 > max(shares[12:])  # nearly one class at somebody
    plain = Spread(("sst2",), 3, train=80, alpha=0.05)
    assert silos(plain, folder, 0) != silos(replace(plain, alpha=None), folder, 0)


def test_some_parties_may_learn_from_wrong_labels(folder: Path) -> None:
    plain = Spread(("sst2",), 4, alpha=1.0, public=0.5)
    right, wrong = (silos(s, folder, 0) for s in (plain, replace(plain, mislabels=(0.4, 1.0))))
    assert ids(wrong, "train") == ids(right, "train")
    changed = [
        sum(one != other for one, other in zip(a.train, b.train, strict=True))
        for a, b in zip(wrong, right, strict=True)
    ]
    first, second = (len(silo.train) for silo in right[:2])
    assert changed == [round(0.4 * first), second, 0, 0, 0]


def test_a_built_in_corpus_does_for_a_trial() -> None:
    *parties, host = silos(replace(HALF, sets=("built-in ade",)), None, seed=0)
    assert [len(silo.train) for silo in (*parties, host)] == [14, 13, 13, 8]
    assert (len(host.public), len(host.dev), len(host.test)) == (32, 4, 10)
    parts = [by_id(part) for part in (host.public, host.dev, host.test)]
    assert len(set.union(*parts, *private([*parties, host]), by_id(host.train))) == 80 + 4 + 10


def test_what_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="rte is not here") as caught:
        collection.require(["sst2", "rte"], folder)
    assert "--data" in caught.value.fix
    with pytest.raises(DataError, match="no such folder"):
        collection.find(folder / "nowhere")
    assert collection.find(folder) == folder.resolve()


def test_editions_of_a_set_differ_in_size(folder: Path) -> None:
    before = collection.sizes("sst2", folder)
    write(folder / "sst2/dev.jsonl.gz", [{"idx": 0, "text1": "another", "label": 1}])
    assert len(before) == 2 and collection.sizes("sst2", folder) != before


COUNTS = {
    "ade_cls": (16742, 1884, 2270),
    "ade_ner": (3380, 404, 488),
    "ncbi_disease": (5424, 923, 940),
    "psytar_ner": (3850, 550, 1191),
}
TRAIN_AND_TEST = {
    "sst2": (10000, 872),
    "rte": (2490, 277),
    "cola": (8551, 1043),
    "wnli": (635, 71),
    "qnli": (9999, 5463),
}


@needs_data
@pytest.mark.parametrize("name", [*COUNTS, *TRAIN_AND_TEST])
def test_the_real_sets_have_the_records_that_their_readme_counts(name: str) -> None:
    found, about = read(name, DEFAULT), SETS[name]
    sizes = tuple(len(getattr(found, part)) for part in PARTS)
    if name in COUNTS:
        assert sizes == COUNTS[name]
    else:
        train, test = TRAIN_AND_TEST[name]
        assert (sizes[0] + sizes[1], sizes[2]) == (train, test)
        assert 0.08 * train < sizes[1] < 0.12 * train or train < 1000
    settings = TaskSettings(kind=about.kind, labels=about.labels, positive=about.positive)
    assert make_task(settings, found.train).metric in ("f1", "accuracy")


@needs_data
def test_reviews_of_films_serve_as_public_records_of_sentences() -> None:
    *parties, host = silos(Spread(("sst2",), 3, 900, public=0.5, public_set="imdb"), None, 0)
    assert [len(silo.train) for silo in (*parties, host)] == [150, 150, 150, 45]
    assert len(host.public) == 405 and len(read("imdb", DEFAULT).train) == 10000
    assert all("_" in example.id for example in host.public)  # a file's name, not a row's number


def test_a_tier_may_stay_away_with_its_records() -> None:
    tiers = ("weak", "weak", "strong")
    spread = Spread(("built-in ade",), 3, train=60, tiers=tiers)
    whole, less = (silos(s, None, 0) for s in (spread, replace(spread, without="weak")))
    assert [silo.tier for silo in whole] == list(tiers)
    assert [silo.name for silo in less] == [whole[2].name] and less[0].train == whole[2].train
