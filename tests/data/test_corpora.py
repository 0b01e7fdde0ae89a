"""The built-in corpora: the same text everywhere, honest splits, hospitals that differ."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import pytest

from secure_fl import corpora
from secure_fl.corpora import entities, grammar
from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.splits import Splits, digest_of_text, texts_of
from secure_fl.errors import DataError
from tests.support.raising import raises

DIGESTS = {  # of repr, which spells every float and string exactly
    "ade": "eb2346cd27ef",
    "pairs": "4c7275684612",
    "similarity": "e82266a33170",
    "codes": "ed80b0432850",
    "ner": "245448661231",
    "news": "b057087b68ae",
    "summaries": "019bde2f7126",
}

PRINT_DIGESTS = """
from tests.data.test_corpora import digest
from secure_fl.corpora import NAMES
print(*(digest(name) for name in NAMES))
"""


def digest(name: str) -> str:
    parts = (corpora.make(name, parties=3, seed=7, size=40), corpora.public(name, seed=7, size=40))
    return sha256(repr(parts).encode()).hexdigest()[:12]


def everything(splits: Splits) -> tuple[Example, ...]:
    return (*splits.train, *splits.dev, *splits.test)


def share(splits: Splits, label: str) -> float:
    notes = everything(splits)
    return sum(isinstance(note, Text) and note.label == label for note in notes) / len(notes)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_writes_the_same_text_in_every_process(hash_seed: str) -> None:
    command = [sys.executable, "-c", PRINT_DIGESTS]
    root = Path(__file__).parents[2]
    env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    ran = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    assert dict(zip(corpora.NAMES, ran.stdout.split(), strict=True)) == DIGESTS


@pytest.mark.parametrize("name", corpora.NAMES)
def test_another_seed_and_another_hospital_write_other_text(name: str) -> None:
    one, two = corpora.make(name, parties=2, seed=1, size=20)
    other, _ = corpora.make(name, parties=2, seed=2, size=20)
    assert one.train != two.train
    assert one.train != other.train


@pytest.mark.parametrize("name", corpora.NAMES)
def test_splits_have_their_sizes_ids_and_no_text_in_common(name: str) -> None:
    first, second = corpora.make(name, parties=2, seed=0, size=(200, 120))
    assert [len(part) for part in (first.train, first.dev, first.test)] == [200, 50, 100]
    assert [len(part) for part in (second.train, second.dev, second.test)] == [120, 30, 60]
    public = corpora.public(name, seed=0, size=150)
    assert len(public) == 150
    for a, b in combinations((first.train, first.dev, first.test, public), 2):
        assert not {digest_of_text(e) for e in a} & {digest_of_text(e) for e in b}
    assert not {digest_of_text(e) for e in everything(second)} & {digest_of_text(e) for e in public}
    ids = [e.id for e in (*everything(first), *everything(second), *public)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("name", "label"), [("ade", "ade"), ("pairs", "same")])
def test_label_priors_differ_only_when_shifted(name: str, label: str) -> None:
    def spread(shift: float) -> float:
        hospitals = corpora.make(name, parties=3, seed=3, size=2000, shift=shift)
        shares = [share(splits, label) for splits in hospitals]
        return max(shares) - min(shares)

    assert spread(0.0) < 0.05  # 3,500 notes each: three standard deviations of a difference
    assert spread(1.0) > 0.15


def test_hospitals_write_differently_only_when_shifted() -> None:
    def distance(shift: float) -> float:
        hospitals = corpora.make("ade", parties=2, seed=3, size=2000, shift=shift)
        words = ([w for e in s.train for w in grammar.tokens(texts_of(e)[0])] for s in hospitals)
        a, b = map(Counter, words)
        return sum(abs(a[w] / a.total() - b[w] / b.total()) for w in {*a, *b})

    assert distance(0.0) * 2 < distance(0.4) < distance(1.0)


@pytest.mark.parametrize("name", corpora.NAMES)
def test_the_lexicon_covers_every_word(name: str) -> None:
    known = set(corpora.lexicon())
    assert list(corpora.lexicon()) == sorted(known) and {".", ","} <= known
    notes = [e for s in corpora.make(name, parties=3, seed=5, size=300) for e in everything(s)]
    notes += corpora.public(name, seed=5, size=300)
    written = {w for e in notes for text in texts_of(e) for w in grammar.tokens(text.lower())}
    assert written <= known


def test_tags_are_iob2_of_each_hospitals_own_labels() -> None:
    hospitals = corpora.make("ner", parties=4, seed=0, size=200)
    for splits, own in zip(hospitals, entities.OWN, strict=False):
        assert _labels(everything(splits)) == set(own)
    shared = corpora.make("ner", parties=4, seed=0, size=200, labels="shared")
    for splits, same in zip(hospitals, shared, strict=True):
        assert _labels(everything(same)) == set(entities.LABELS)
        assert [digest_of_text(e) for e in splits.train] == [digest_of_text(e) for e in same.train]
    assert _labels(corpora.public("ner", seed=0, size=200)) == set(entities.LABELS)


def _labels(notes: tuple[Example, ...]) -> set[str]:
    found = set()
    for note in notes:
        assert isinstance(note, Tagged) and note.tags is not None
        assert len(note.tags) == len(note.tokens)
        before = "O"
        for tag in note.tags:
            assert not tag.startswith("I-") or before in (tag, f"B-{tag[2:]}")
            found |= {tag[2:]} - {""}
            before = tag
    return found


def test_scores_lie_between_0_and_5_and_pages_have_clicks_and_skips() -> None:
    (pairs,) = corpora.make("similarity", parties=1, seed=0, size=200)
    scores = [e.label for e in pairs.train if isinstance(e, Text) and isinstance(e.label, float)]
    assert len(scores) == 200
    assert 0 <= min(scores) < 1 < 4 < max(scores) <= 5
    (pages,) = corpora.make("news", parties=1, seed=0, size=100)
    for page in pages.train:
        assert isinstance(page, Impression)
        assert len(page.clicks) == len(page.candidates)
        assert any(page.clicks) and not all(page.clicks)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match="similarity"):
        corpora.make("similarty", parties=2, seed=0)
    with raises(DataError, "ade, pairs"):
        corpora.public("zzz", seed=0, size=1)


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"size": (10, 10)}, {"parties": 0}, {"shift": 1.5}, {"labels": "mine"}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    arguments: dict[str, object] = {"parties": 3, "seed": 0, "size": 10} | wrong
    with pytest.raises(DataError):
        corpora.make("ade", **arguments)  # type: ignore[arg-type]


def test_more_than_the_grammar_can_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"note.ade": ("a", "b"), "note.no-ade": ("c", "d"), "department": ("e",)}
    corpus = corpora._Corpus(few, corpora._CORPORA["ade"].draw, 10, 0.0)
    monkeypatch.setitem(corpora._CORPORA, "ade", corpus)
    with raises(DataError, corpus="ade", split="train"):
        corpora.make("ade", parties=1, seed=0)
