"""Built-in corpora: seeded generators of hospital-like, non-IID, synthetic text.

Nothing is downloaded and no text is stored. Small grammars write the notes, and each hospital has
its own departments, drugs, wordings and label priors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count
from random import Random
from typing import Literal, TypeAlias
from zlib import crc32

from secure_fl.corpora import ade, codes, entities, news, pairs
from secure_fl.corpora.grammar import Rules, Voice, rng, voice, words
from secure_fl.data.examples import Example, Impression, Tagged
from secure_fl.data.rows import of_patient
from secure_fl.data.splits import PARTS, Splits
from secure_fl.errors import DataError, nearest

__all__ = ["NAMES", "lexicon", "make", "public", "with_patients"]


_Draw: TypeAlias = Callable[[Voice, Random, str], Example]


@dataclass(frozen=True, slots=True)
class _Corpus:
    """A grammar, its functions that draw examples, and the default size and shift."""

    rules: Rules
    draw: _Draw
    size: int  # training examples of a hospital
    shift: float
    shared: _Draw | None = None  # with the joint label set of all hospitals; None: `draw`


_CORPORA: Mapping[str, _Corpus] = {
    "ade": _Corpus(ade.RULES, ade.draw, 400, 0.5),
    "pairs": _Corpus(pairs.RULES, pairs.draw_pair, 500, 0.5),
    "similarity": _Corpus(pairs.RULES, pairs.draw_score, 500, 0.5),
    "codes": _Corpus(codes.RULES, codes.draw, 400, 0.5),
    "ner": _Corpus(entities.RULES, entities.draw_own, 400, 0.5, entities.draw),
    "news": _Corpus(news.RULES, news.draw, 300, 0.5),
    "summaries": _Corpus(ade.SUMMARY_RULES, ade.draw_summary, 400, 0.5),
}
NAMES: tuple[str, ...] = tuple(_CORPORA)
_PUBLIC = 4  # one text in 4 can only be public, the others only a hospital's
_PATIENCE = 200  # draws per example before a grammar counts as exhausted


def make(
    name: str,
    *,
    parties: int,
    seed: int,
    size: int | Sequence[int] | None = None,
    shift: float | None = None,
    labels: Literal["own", "shared"] = "own",
) -> list[Splits]:
    """Write the corpus of each hospital.

    Args:
        name: one of `NAMES`.
        parties: how many hospitals.
        seed: the same seed writes the same text everywhere.
        size: training examples, one number or one for each; dev has a quarter, test a half of it.
        shift: from 0 (equal hospitals) to 1 (each has its own favourites and label prior).
        labels: in `ner`, tag each hospital's own label set or the joint one; texts are equal.

    """
    corpus = _corpus(name)
    shift = corpus.shift if shift is None else shift
    sizes = _sizes(corpus.size if size is None else size, parties)
    if not 0 <= shift <= 1:
        raise DataError(f"shift is {shift}", fix="give a shift from 0 to 1", corpus=name)
    if labels not in ("own", "shared"):
        raise DataError(f"labels is {labels!r}", fix='give "own" or "shared"', corpus=name)
    draw = corpus.shared if corpus.shared and labels == "shared" else corpus.draw
    splits = []
    for party, records in enumerate(sizes):
        by = voice(corpus.rules, seed=seed, party=party, parties=parties, shift=shift)
        counts = {"train": records, "dev": max(1, records // 4), "test": max(1, records // 2)}
        drawn = _draw(name, draw, by, rng(name, seed, party), counts, f"h{party + 1}")
        splits.append(Splits(**drawn))
    return splits


def public(name: str, *, seed: int, size: int) -> tuple[Example, ...]:
    """Write a neutral set in no hospital's voice, for distillation or as a common test.

    None of its texts occurs in a hospital's corpus, whatever the seeds.
    """
    if size < 1:
        raise DataError(f"a public set of {size}", fix="ask for one example or more", corpus=name)
    corpus = _corpus(name)
    by = voice(corpus.rules, seed=seed, party=0, parties=1, shift=0.0)
    source, counts = rng(name, seed, "public"), {"public": size}
    return _draw(name, corpus.shared or corpus.draw, by, source, counts, "")["public"]


def with_patients(splits: Splits) -> Splits:
    """Write each id as PATIENT/NOTE; a patient has one to three notes, all in one split."""
    return Splits(*(_of_patients(getattr(splits, part)) for part in PARTS))


def _of_patients(examples: Sequence[Example]) -> tuple[Example, ...]:
    notes = chain.from_iterable([n] * (1 + n % 3) for n in count(1))  # the patient of each note
    return tuple(
        replace(example, id=of_patient(f"{example.id.rpartition('-')[0]}-p{n:05d}", example.id))
        for example, n in zip(examples, notes, strict=False)  # notes never ends
    )


@cache
def lexicon() -> tuple[str, ...]:
    """Every lower-case word and punctuation mark that any corpus can contain."""
    return tuple(sorted(set().union(*(words(corpus.rules) for corpus in _CORPORA.values()))))


def _corpus(name: str) -> _Corpus:
    if name in _CORPORA:
        return _CORPORA[name]
    raise DataError(f"there is no built-in corpus {name!r}", fix=nearest(name, NAMES))


def _sizes(size: int | Sequence[int], parties: int) -> list[int]:
    sizes = [size] * parties if isinstance(size, int) else list(size)
    if parties < 1 or len(sizes) != parties or min(sizes) < 1:
        raise DataError(
            f"{parties} parties of sizes {sizes}",
            fix="give one positive size, or one for each party",
        )
    return sizes


def _draw(
    name: str, draw: _Draw, by: Voice, source: Random, counts: Mapping[str, int], owner: str
) -> dict[str, tuple[Example, ...]]:
    """Draw distinct examples for each split; no text is in two splits."""
    seen, drawn = set[str](), dict[str, tuple[Example, ...]]()
    for split, wanted in counts.items():
        part: list[Example] = []
        tries = _PATIENCE * (wanted + 10)
        while len(part) < wanted:
            ident = "-".join(filter(None, (name, owner, split, f"{len(part) + 1:05d}")))
            example = draw(by, source, ident)
            text = _text(example)
            if text not in seen and (crc32(text.encode()) % _PUBLIC == 0) == (not owner):
                seen.add(text)
                part.append(example)
            if (tries := tries - 1) == 0:
                raise DataError(
                    f"the grammar has too few texts for {wanted} examples",
                    fix="ask for fewer", corpus=name, split=split,
                )  # fmt: skip
        drawn[split] = tuple(part)
    return drawn


def _text(example: Example) -> str:
    if isinstance(example, Tagged):
        return " ".join(example.tokens)
    if isinstance(example, Impression):
        return " | ".join((*example.history, "?", *example.candidates))
    return example.text if example.pair is None else f"{example.text} | {example.pair}"
