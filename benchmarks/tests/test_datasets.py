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
HALF = Spread(("sst2",), 3, train=80, dev=4, test=10, public=0.5, labelled=0.2)


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
    tagged = {"tokens": ["no", "rash"], "tags": ["O", "B-ADE"]}
    for name in ("ncbi_disease", "psytar_ner"):
        for part in PARTS:
            write(tmp_path / name / f"{part}.jsonl.gz", [tagged | {"idx": k} for k in range(8)])
    return tmp_path


def ids(found: Iterable[Any], part: str) -> list[str]:
    return [example.id for silo in found for example in getattr(silo, part)]


def by_id(examples: Iterable[Any]) -> set[str]:
    return {example.id for example in examples}


def labels(examples: Iterable[Any]) -> set[Any]:
    return {example.label for example in examples}


def test_a_column_names_the_part_of_a_row(folder: Path) -> None:
    found = read("ade_cls", folder)
    assert [len(getattr(found, part)) for part in PARTS] == [30, 10, 10]
    assert all(int(example.id) % 10 < 6 for example in found.train)
    assert all(int(example.id) % 10 > 7 for example in found.test)


def test_without_public_test_records_the_dev_file_is_the_test(folder: Path) -> None:
    found = read("sst2", folder)
    assert {example.id for example in found.test} == {str(k) for k in range(1000, 1020)}
    assert len(found.train) + len(found.dev) == 100 and 2 <= len(found.dev) <= 25
    assert not {e.id for e in found.train} & {e.id for e in found.dev}


def test_parties_share_nothing_and_get_as_many(folder: Path) -> None:
    found = silos(Spread(("sst2",), 4, train=42, dev=4, test=10), folder, seed=0)
    for part, size in (("train", 42), ("dev", 4), ("test", 10)):
        dealt = ids(found, part)
        assert len(dealt) == len(set(dealt)) == size
    sizes = [len(silo.train) for silo in found]
    assert max(sizes) - min(sizes) == 1


def test_a_seed_changes_the_training_records_only(folder: Path) -> None:
    spread = Spread(("sst2",), 2, train=30, dev=3, test=10)
    first, same, other = (silos(spread, folder, seed) for seed in (0, 0, 1))
    assert first == same
    assert set(ids(first, "train")) != set(ids(other, "train"))
    assert set(ids(first, "test")) == set(ids(other, "test"))
    assert set(ids(first, "dev")) == set(ids(other, "dev"))
    train, rng = read("sst2", folder).train, np.random.default_rng(seed_for(0, "spread", "sst2"))
    some = [train[k] for k in sorted(rng.permutation(len(train))[:30])]
    assert [silo.train for silo in first] == iid(some, 2, rng)


def test_several_sets_are_one_for_each_party_with_its_tier(folder: Path) -> None:
    spread = Spread(("psytar_ner", "ncbi_disease"), 2, train=5, tiers=("strong", "weak"))
    found = silos(spread, folder, seed=0)
    assert [(s.name, s.tier) for s in found] == [("psytar_ner", "strong"), ("ncbi_disease", "weak")]
    assert [(len(s.train), len(s.dev), len(s.test)) for s in found] == [(5, 8, 8)] * 2


def test_half_becomes_public_and_the_host_keeps_a_share_with_labels(folder: Path) -> None:
    *parties, host = found = silos(HALF, folder, seed=0)
    assert [silo.role for silo in found] == ["party"] * 3 + ["host"]
    assert [len(silo.train) for silo in found] == [14, 13, 13, 8]  # 40 over 3; a fifth of 40
    assert all(silo.public == host.public and len(silo.public) == 32 for silo in found)
    parts = [by_id(part) for part in (*(p.train for p in parties), host.train, host.public)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == HALF.train
    assert labels(host.public) == {None} and labels(host.train) == {"0", "1"}
    assert (len(host.dev), len(host.test)) == (4, 10)
    assert not any(silo.dev or silo.test for silo in parties)
    first, *others = silos(replace(HALF, hosted=False), folder, 0)
    assert first.test == host.test and not any(silo.test for silo in others)


def test_private_records_may_be_skewed(folder: Path) -> None:
    skewed = [silos(replace(HALF, alpha=0.05), folder, seed) for seed in range(4)]
    shares = [
        abs(sum(classes(silo.train)) / len(silo.train) - 0.5)
        for found in (*skewed, silos(HALF, folder, 0))
        for silo in found[:-1]
    ]
    assert max(shares[:12]) > 0.4 > max(shares[12:])


def label(example: Any) -> int:
    return int(example.label)


def test_tests_may_have_the_mixture_of_their_party(folder: Path) -> None:
    skewed = Spread(("sst2",), 2, alpha=0.05, own_tests=True)
    found = silos(skewed, folder, 0)
    shares = [[sum(map(label, part)) / len(part) for part in (s.train, s.test)] for s in found]
    assert max(abs(train - 0.5) for train, _ in shares) > 0.3
    assert all(abs(train - test) < 0.3 for train, test in shares)
    assert sum(len(getattr(silo, part)) for silo in found for part in PARTS) == 120


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


def test_missing_data_are_named(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        collection.require(["sst2", "qnli"], folder)
    assert "qnli" in str(caught.value) and "--data" in caught.value.fix
    with pytest.raises(DataError):
        collection.find(folder / "nowhere")
    assert collection.find(folder) == folder.resolve()


COUNTS = {
    "ade_cls": (16742, 1884, 2270),
    "ade_ner": (3380, 404, 488),
    "ncbi_disease": (5424, 923, 940),
    "psytar_ner": (3850, 550, 1191),
    "sst2": (10000, 872),
    "qnli": (9999, 5463),
}


@needs_data
@pytest.mark.parametrize("name", list(COUNTS))
def test_the_real_sets_have_the_records_that_their_readme_counts(name: str) -> None:
    found, about = read(name, DEFAULT), SETS[name]
    train, dev, test = (len(getattr(found, part)) for part in PARTS)
    if len(COUNTS[name]) == 3:
        assert (train, dev, test) == COUNTS[name]
    else:
        assert (train + dev, test) == COUNTS[name] and 0.08 * train < dev < 0.12 * train
    settings = TaskSettings(kind=about.kind, labels=about.labels, positive=about.positive)
    assert make_task(settings, found.train).metric in ("f1", "accuracy")
