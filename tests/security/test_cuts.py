"""The printed bound is exact: every lie about dropouts that parties could be told, by search.

A coordinator tells each honest party a list of who is gone. A party reveals self seeds of who is
there and mask keys of who is gone; if anybody is gone, only once t parties have signed its list.
A sum over some honest parties is read where all their self seeds are known, and for each pair of
one of them and another honest party a mask key of either. What each story lets be read by itself
is a sum over t parties or more, so over t - c honest ones: less than that is a break.

Everybody masks with everybody. Where each masks with some (graphs that this product had), cuts of
the graph are weaker than the bound by one; in a complete graph there is nothing else to cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from secure_fl.thresholds import collusion_bound

SIZES = [(n, t) for n in range(3, 8) for t in range(n // 2 + 1, n + 1)]
Few = frozenset[int]


def subsets(some: Few, most: int) -> Iterator[Few]:
    return (frozenset(one) for k in range(most + 1) for one in combinations(sorted(some), k))


def known(n: int, t: int, honest: Few, stories: tuple[tuple[Few, Few], ...]) -> tuple[Few, Few]:
    """Whose self seeds, and whose mask keys, come together: of (who is told, who is gone)."""
    colluders = n - len(honest)
    heard = [
        (told - gone, gone)
        for told, gone in stories
        if not gone or len(told - gone) + colluders >= t  # colluders sign everything
    ]
    seeds = {v for v in honest if colluders + sum(len(w) for w, g in heard if v not in g) >= t}
    keys = {v for v in honest if colluders + sum(len(w) for w, g in heard if v in g) >= t}
    return frozenset(seeds), frozenset(keys)


def read(honest: Few, seeds: Few, keys: Few) -> int:
    """The fewest honest parties whose sum is read; 0: none is."""
    if seeds & keys:
        return 1
    if not seeds:
        return 0
    # Nobody's key: whoever shares an unknown mask with one of them has to be among them.
    return len(honest - keys) if honest - keys <= seeds else 0


def least(n: int, t: int, c: int) -> int:
    """The fewest honest parties of whom a sum is read, over all lies to all of them."""
    honest = frozenset(range(n - c))
    found = []
    for gone, other in combinations(list(subsets(honest, n - t)), 2):
        for told in subsets(honest, len(honest)):
            seeds, keys = known(n, t, honest, ((told, gone), (honest - told, other)))
            found.append(read(honest, seeds, keys))
    return min((size for size in found if size), default=n)


@pytest.mark.parametrize(("n", "t"), SIZES)
def test_within_the_bound_nobody_reads_a_sum_over_fewer_than_may_be(n: int, t: int) -> None:
    bound = collusion_bound(n, t)
    for c in range(bound.lying + 1):
        assert least(n, t, c) >= t - c


@pytest.mark.parametrize(("n", "t"), [(n, t) for n, t in SIZES if collusion_bound(n, t).lying >= 0])
def test_one_colluder_more_reads_somebody(n: int, t: int) -> None:
    bound = collusion_bound(n, t)
    more = bound.lying + 1
    if bound.lying < bound.honest:  # a lie is what does it
        assert least(n, t, more) == 1
    else:  # t know all secrets, or all others the sum less their own
        assert more >= t or n - more == 1
