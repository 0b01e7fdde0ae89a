"""Splits stay put, files come back unchanged, and descriptions show what to worry about."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure_fl.data.examples import Example, Impression, Tagged, Text
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
    with raises(DataError, "1", split="dev"):
        split(MANY[:1], dev=0.001, test=0, seed=0)
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
