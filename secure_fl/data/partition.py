"""Partitions of an experiment's examples over parties, evenly or skewed.

    iid              parties of equal size and, except for chance, of equal mixture
    dirichlet_class  shares of each class over the parties ~ Dir(α)
    dirichlet_client class mixture of each party ~ Dir(α·p), parties of equal size;
                     drawn without replacement (Hsu et al., arXiv 1909.06335, section 3)
    one_corpus_each  every corpus is one party

Every example goes to exactly one party, and with groups (patients) every group. A smaller α gives
more skew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.data.examples import Example, Tagged, Text
from secure_fl.errors import DataError

Corpus: TypeAlias = Sequence[Example]
Parties: TypeAlias = list[tuple[Example, ...]]
How: TypeAlias = Literal["iid", "dirichlet_class", "dirichlet_client"]
Indices: TypeAlias = NDArray[np.intp]

BINS = 10  # of a regression's scores, used as classes


def iid(examples: Corpus, n: int, rng: np.random.Generator, *, minimum: int = 1) -> Parties:
    """Shuffle and cut into parts whose sizes differ by one at most."""
    _check(examples, n, minimum)
    return _gather(examples, np.array_split(rng.permutation(len(examples)), n), minimum)


def dirichlet_class(
    examples: Corpus, n: int, rng: np.random.Generator, *, alpha: float, minimum: int = 1
) -> Parties:
    """Cut each class by its own shares ~ Dir(α): sizes and mixtures of parties both differ."""
    _check(examples, n, minimum, alpha)
    codes = classes(examples)
    owners = np.empty(len(examples), dtype=np.intp)
    for code in range(int(codes.max()) + 1):
        members = rng.permutation(np.flatnonzero(codes == code))
        shares = _dirichlet(np.full(n, alpha), rng)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(members))
        owners[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return _gather(examples, [np.flatnonzero(owners == party) for party in range(n)], minimum)


def dirichlet_client(
    examples: Corpus, n: int, rng: np.random.Generator, *, alpha: float, minimum: int = 1
) -> Parties:
    """Let parties of equal size draw from their own mixture q ~ Dir(α·p), p the global one."""
    _check(examples, n, minimum, alpha)
    codes = classes(examples)
    left = np.bincount(codes)
    pools = [rng.permutation(np.flatnonzero(codes == code)) for code in range(len(left))]
    p = left / len(examples)
    parts = []
    for part in np.array_split(np.arange(len(examples)), n):
        drawn = _draw(left, len(part), _dirichlet(alpha * p, rng), rng)
        left = left - drawn
        pieces = [pool[rest : rest + k] for pool, rest, k in zip(pools, left, drawn, strict=True)]
        parts.append(np.concatenate(pieces))
    return _gather(examples, parts, minimum)


def one_corpus_each(corpora: Sequence[Corpus], n: int, *, minimum: int = 1) -> Parties:
    """Give corpus k to party k."""
    if len(corpora) != n:
        fix = "name one corpus for each party, or choose another partition"
        raise DataError(f"{len(corpora)} corpora for {n} parties", fix=fix, field="partition")
    parties = [tuple(corpus) for corpus in corpora]
    _enforce([len(party) for party in parties], minimum)
    return parties


def partition(
    how: How,
    examples: Corpus,
    n: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    minimum: int = 1,
    by: Callable[[Example], str] | None = None,
) -> Parties:
    """Partition examples by the method that a setting names.

    `by`: the group of an example. All of a group go to the party that its first example goes to.
    """
    if by is not None:
        groups: dict[str, list[Example]] = {}
        for example in examples:
            groups.setdefault(by(example), []).append(example)
        firsts = [group[0] for group in groups.values()]
        shares = partition(how, firsts, n, rng, alpha=alpha, minimum=0)
        parties = [tuple(chain(*(groups[by(first)] for first in share))) for share in shares]
        _enforce([len(party) for party in parties], minimum)
        return parties
    if how == "iid":
        return iid(examples, n, rng, minimum=minimum)
    skewed = dirichlet_class if how == "dirichlet_class" else dirichlet_client
    return skewed(examples, n, rng, alpha=alpha, minimum=minimum)


def classes(examples: Corpus) -> Indices:
    """Number the classes by which examples are balanced, from 0 and without gaps.

    A class is a label, a score's quantile bin, a record's first label of several, or a sentence's
    first entity type (else "O"). Unlabelled examples are one class, and so are all impressions.
    """
    scores = np.array([_score(example) for example in examples])
    scored = ~np.isnan(scores)
    bins = np.zeros(len(examples), dtype=np.intp)
    if scored.any():
        inner = np.unique(np.quantile(scores[scored], np.linspace(0, 1, BINS + 1)[1:-1]))
        bins[scored] = 1 + np.searchsorted(inner, scores[scored], side="right")
    _, names = np.unique([_class(example) for example in examples], return_inverse=True)
    _, codes = np.unique(names * (BINS + 2) + bins, return_inverse=True)
    return np.asarray(codes, dtype=np.intp)


def _score(example: Example) -> float:
    if isinstance(example, Text) and isinstance(example.label, float):
        return example.label
    return float("nan")


def _class(example: Example) -> str:
    if isinstance(example, Text) and isinstance(example.label, str):
        return example.label
    if isinstance(example, Text) and isinstance(example.label, tuple):
        return next(iter(example.label), "")
    if isinstance(example, Tagged) and example.tags is not None:
        return next((tag[1:] for tag in example.tags if tag != "O"), "O")
    return ""


def _dirichlet(concentration: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        drawn = rng.dirichlet(concentration)
    if not np.isfinite(drawn).all():
        what = "is too extreme for a Dirichlet draw in floating point"
        raise DataError(what, fix="set an alpha between 0.001 and 1000000", field="alpha")
    return drawn


def _draw(
    left: NDArray[np.intp], size: int, q: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.intp]:
    # Draws from an exhausted class are repeated from q over the other classes.
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        weights = np.where(counts < left, q, 0.0)
        if weights.sum() < 1e-12:
            weights = (left - counts).astype(float)  # all classes of q are exhausted
        drawn = rng.multinomial(missing, weights / weights.sum())
        counts = np.minimum(left, counts + drawn)
    return counts


def _gather(examples: Corpus, parts: Sequence[Indices], minimum: int) -> Parties:
    _enforce([len(part) for part in parts], minimum)
    return [tuple(examples[k] for k in np.sort(part).tolist()) for part in parts]


def _enforce(sizes: Sequence[int], minimum: int) -> None:
    if (records := sum(sizes)) < len(sizes) * minimum:
        what = f"{records} records are too few for {len(sizes)} parties of {minimum} or more"
        fix = "give more records, or set fewer parties or a smaller minimum"
        raise DataError(what, fix=fix, field="minimum")
    if (least := min(sizes)) < minimum:
        what = f"one of {len(sizes)} parties would have {least} records, the minimum is {minimum}"
        fix = "set a larger alpha, fewer parties or a smaller minimum, or give more examples"
        raise DataError(what, fix=fix, field="minimum")


def _check(examples: Corpus, n: int, minimum: int, alpha: float = 1.0) -> None:
    if n < 1:
        raise DataError(f"is {n}", fix="set one party or more", field="parties")
    if minimum < 0:
        raise DataError(f"is {minimum}", fix="set 0 or more", field="minimum")
    if not (np.isfinite(alpha) and alpha > 0):
        raise DataError(f"is {alpha}", fix="set a finite number above 0", field="alpha")
    if not examples:
        raise DataError("there are no examples for the parties", fix="check the data")
