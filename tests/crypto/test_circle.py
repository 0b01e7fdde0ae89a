"""Who masks with whom: enough shares survive the losses that the documentation names."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

import pytest

from secure_fl.crypto import masking
from secure_fl.crypto.circle import Circle
from secure_fl.thresholds import default_threshold


def circle(n: int, run: str, index: int = 1) -> Circle:
    names = [f"p{i:04d}" for i in range(n)]
    numbers = {name: i for i, name in enumerate(names, 1)}
    return Circle.of(names, None, numbers, default_threshold(n), run, index)


def opens(neighbours: Mapping[str, Collection[str]], lost: Collection[str]) -> bool:
    """Whether every party's secrets can be recovered from who is left."""
    for party, near in neighbours.items():
        left = sum(holder not in lost for holder in (party, *near))
        if left < default_threshold(len(near) + 1):
            return False
    return True


def share_that_opens(graphs: Sequence[Mapping[str, Collection[str]]], loss: float) -> float:
    draw = random.Random(0)
    found = [opens(g, set(draw.sample(sorted(g), int(len(g) * loss)))) for g in graphs]
    return sum(found) / len(found)


@pytest.mark.parametrize(("n", "loss"), [(40, 0.2), (100, 0.15), (300, 0.15), (1000, 0.15)])
def test_sums_open_although_parties_are_lost(n: int, loss: float) -> None:
    graphs = [circle(n, f"run {k}").neighbours for k in range(20 if n < 1000 else 5)]
    assert share_that_opens(graphs, loss) == 1.0


def test_a_third_as_many_neighbours_would_not_do() -> None:
    """Why it is six times log n: the simulation can fail."""
    n, graphs = 100, []
    for k in range(20):
        graph = masking.neighbours(range(1, n + 1), k.to_bytes(8, "big"), 14)
        graphs.append({f"{a:03d}": [f"{b:03d}" for b in near] for a, near in graph.items()})
    assert share_that_opens(graphs, 0.15) < 0.7


def test_every_run_and_every_sum_has_a_graph_of_its_own() -> None:
    first = dict(circle(100, "one").neighbours)
    assert first == dict(circle(100, "one").neighbours)
    assert first != dict(circle(100, "two").neighbours)
    assert first != dict(circle(100, "one", 2).neighbours)
