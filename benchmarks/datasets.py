"""The data sets of the papers' tables, spread over the parties of a run.

With public records the spread is that of FedID's paper: a part of the training records becomes
public without labels, and a host keeps a share of it with labels. Scores are those of the host's
model, or of the shared model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.collection import DEFAULT, PARTS, SETS, SUFFIX, read
from secure_fl import corpora
from secure_fl.config.data import HOST
from secure_fl.data.examples import Example, Tagged, Text, without_labels
from secure_fl.data.partition import dirichlet_client, iid, one_corpus_each
from secure_fl.data.silo import Silo
from secure_fl.data.splits import Splits, load, split
from secure_fl.errors import DataError
from secure_fl.seeds import seed_for
from secure_fl.settings import Kind


@dataclass(frozen=True, slots=True)
class Spread:
    """The records of a run's parties.

    One set is dealt evenly; of several sets, each party has one. Sizes are for each set. The
    training records are drawn by the run's seed, the others are the same for every seed.
    """

    sets: tuple[str, ...]
    parties: int
    train: int | None = None  # None: all
    even: bool = False  # draw as many training records of each class, as far as there are
    dev: int | None = None
    test: int | None = None
    tiers: tuple[str, ...] = ()  # of the parties, in their order
    alpha: float | None = None  # of each party's class mixture; None: all parties alike
    public: float = 0.0  # share of the training records that becomes public; 0.5 in the paper
    labelled: float = 0.1  # share of the public records that the host keeps, with labels
    hosted: bool = True  # False: the first party is measured on the host's records
    own_tests: bool = False  # each party's dev and test records are a fifth of its own share each
    each_tier: bool = False  # the dev and test records are dealt once to the parties of each tier
    mislabels: tuple[float, ...] = ()  # share of wrong training labels, at the first parties
    texts: str = ""  # file of another source, whose texts are public at all parties
    texts_kept: int = 600


def silos(spread: Spread, folder: Path | None, seed: int) -> list[Silo]:
    """Deal records to all parties."""
    if spread.texts:
        public = public_texts(spread.texts, folder or DEFAULT, spread.texts_kept)
        without = silos(replace(spread, texts=""), folder, seed)
        return [replace(silo, public=public) for silo in without]
    about = SETS[spread.sets[0]]
    if spread.public:
        return _hosted(spread, folder or DEFAULT, seed)
    if about.corpus:
        return _named(spread, _built_in(about.corpus, spread, seed))
    rng = np.random.default_rng(seed_for(seed, "spread", *spread.sets))
    found = [_cut(read(name, folder or DEFAULT), spread, rng) for name in spread.sets]
    parts = {part: [getattr(splits, part) for splits in found] for part in PARTS}
    if spread.own_tests:
        shares = _deal([e for part in PARTS for e in parts[part][0]], spread, rng)
        return _named(spread, [split(own, dev=0.2, test=0.2, seed=seed) for own in shares])
    if len(spread.sets) > 1:
        dealt = [one_corpus_each(parts[part], spread.parties) for part in PARTS]
    else:
        train, *measured = (parts[part][0] for part in PARTS)
        dealt = [_deal(train, spread, rng), *(_tested(part, spread, rng) for part in measured)]
    return _named(spread, [Splits(*three) for three in zip(*dealt, strict=True)])


def public_texts(path: str, folder: Path, count: int) -> tuple[Text, ...]:
    """Read the first sentence of each record of a file, without its label."""
    kind: Kind = "ner" if path.startswith("ncbi") else "classification"
    return tuple(
        Text(e.id, " ".join(e.tokens) if isinstance(e, Tagged) else e.text.partition(". ")[0])
        for e in load(folder / f"{path}{SUFFIX}", kind)[:count]
        if isinstance(e, Tagged | Text)
    )


def _hosted(spread: Spread, folder: Path, seed: int) -> list[Silo]:
    """Separate public from private records, and deal the private ones."""
    name, *others = spread.sets
    about = SETS[name]
    if others:
        raise DataError("public records are cut from one set", fix="name one", field="sets")
    rng = np.random.default_rng(seed_for(seed, "spread", name))
    found = _neutral(about.corpus, spread, seed) if about.corpus else read(name, folder)
    splits = _cut(found, spread, rng)
    train = splits.train
    order = rng.permutation(len(train)).tolist()
    public = round(spread.public * len(train))
    own = round(spread.labelled * public)
    labelled, unlabelled, private = order[:own], order[own:public], order[public:]
    dealt = _deal([train[k] for k in sorted(private)], spread, rng)
    dealt = _mislabelled(dealt, spread.mislabels, about.labels or (), seed)
    kept = tuple(train[k] for k in sorted(labelled))
    shared = without_labels([train[k] for k in sorted(unlabelled)])
    return _members(spread, dealt, replace(splits, train=kept), shared)


def _members(
    spread: Spread, dealt: Sequence[Sequence[Example]], host: Splits, public: tuple[Example, ...]
) -> list[Silo]:
    """Give the host's dev and test records to the host, or to the first party."""
    parts = [Splits(tuple(train)) for train in dealt]
    if not spread.hosted:
        parts[0] = replace(host, train=parts[0].train)
    members = [replace(silo, public=public) for silo in _named(spread, parts)]
    if not spread.hosted:
        return members
    return [*members, Silo(HOST, host.train, host.dev, host.test, role="host", public=public)]


def _deal(
    train: Sequence[Example], spread: Spread, rng: np.random.Generator
) -> list[tuple[Example, ...]]:
    if spread.alpha is None:
        return iid(train, spread.parties, rng)
    return dirichlet_client(train, spread.parties, rng, alpha=spread.alpha)


def _mislabelled(
    dealt: Sequence[tuple[Example, ...]], shares: Sequence[float], labels: Sequence[str], seed: int
) -> list[tuple[Example, ...]]:
    """Give a share of the first parties' records the next class's label."""
    found = list(dealt)
    for k, share in enumerate(shares):
        rng = np.random.default_rng(seed_for(seed, "mislabels", str(k)))
        wrong = set(rng.permutation(len(found[k]))[: round(share * len(found[k]))].tolist())
        found[k] = tuple(
            _wronged(example, labels) if at in wrong else example
            for at, example in enumerate(found[k])
        )
    return found


def _wronged(example: Example, labels: Sequence[str]) -> Example:
    if not isinstance(example, Text):
        return example
    return replace(example, label=labels[(labels.index(str(example.label)) + 1) % len(labels)])


def _tested(
    part: Sequence[Example], spread: Spread, rng: np.random.Generator
) -> list[tuple[Example, ...]]:
    """Deal dev or test records: once, or once to the parties of each tier."""
    if not spread.each_tier:
        return iid(part, spread.parties, rng)
    dealt = {tier: iter(iid(part, n, rng)) for tier, n in Counter(spread.tiers).items()}
    return [next(dealt[tier]) for tier in spread.tiers]


def _built_in(corpus: str, spread: Spread, seed: int) -> list[Splits]:
    size = None if spread.train is None else max(1, spread.train // spread.parties)
    return corpora.make(corpus, parties=spread.parties, seed=seed, size=size)


def _neutral(corpus: str, spread: Spread, seed: int) -> Splits:
    """Generate records without a hospital's style, so that private and public ones are alike."""
    sizes = (spread.train or 1200, spread.dev or 100, spread.test or 200)
    drawn = corpora.public(corpus, seed=seed, size=sum(sizes))
    first, second = sizes[0], sizes[0] + sizes[1]
    return Splits(drawn[:first], drawn[first:second], drawn[second:])


def _cut(splits: Splits, spread: Spread, rng: np.random.Generator) -> Splits:
    same = np.random.default_rng(0)
    draw = _even if spread.even else _some
    return Splits(
        draw(splits.train, spread.train, rng),
        _some(splits.dev, spread.dev, same),
        _some(splits.test, spread.test, same),
    )


def _some(
    examples: Sequence[Example], count: int | None, rng: np.random.Generator
) -> tuple[Example, ...]:
    if count is None or count >= len(examples):
        return tuple(examples)
    return tuple(examples[k] for k in np.sort(rng.permutation(len(examples))[:count]).tolist())


def _even(
    examples: Sequence[Example], count: int | None, rng: np.random.Generator
) -> tuple[Example, ...]:
    """Draw as many records from every class; FedKD's paper repeats rare positives instead."""
    classes: dict[str, list[Example]] = {}
    for example in examples:
        classes.setdefault(str(getattr(example, "label", None)), []).append(example)
    smallest = min(map(len, classes.values()))
    each = smallest if count is None else min(smallest, count // len(classes))
    return tuple(e for _, some in sorted(classes.items()) for e in _some(some, each, rng))


def _named(spread: Spread, parts: Sequence[Splits]) -> list[Silo]:
    """Name parties, after their set if each has one of its own."""
    several = len(spread.sets) > 1
    names = spread.sets if several else [f"hospital-{k + 1:02d}" for k in range(len(parts))]
    tiers: Sequence[str | None] = spread.tiers or [None] * len(parts)
    return [
        Silo(name, three.train, three.dev, three.test, tier=tier)
        for name, three, tier in zip(names, parts, tiers, strict=True)
    ]
