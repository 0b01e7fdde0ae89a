"""Who leaves between the sums of an exchange of factors is not missed, and not revealed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine
from tests.support.exchanging import (
    NAMES,
    SLOW,
    Sum,
    basis,
    drawn,
    exchanged,
    of_rank,
    summed,
    tensor,
)

AT = (4, 5, 8, 10, 12, 15)  # ranks, Y and B, of two rounds


@pytest.mark.parametrize(
    "exchange", [e if e in AT else pytest.param(e, marks=SLOW) for e in range(1, 19)]
)
def test_who_leaves_is_not_missed(exchange: int) -> None:
    """Lost at any exchange: every mean is that of some parties, whole, or waits for the next."""
    names = (*NAMES, "hub")
    A = basis(drawn(0, 40, 3)) @ basis(drawn(1, 24, 3)).T  # of rank three: met exactly
    sizes = dict(zip(names, (1.0, 2.0, 3.0, 4.0, 50.0), strict=True))
    updates = {n: [{"w": tensor(s * A), "b": tensor(np.full(12, s))}] * 2 for n, s in sizes.items()}
    logs = exchanged(
        updates,
        T=0.9,
        mode="he+secagg",
        bits=24,
        threshold=3,
        engine=lambda sessions: LossyEngine(sessions, lose={"hub": exchange}),
    )
    everyone, rest = (sum(sizes[n] for n in group) / len(group) for group in (names, NAMES))
    assert set(logs) >= set(NAMES)
    waits = 0.0
    for t in range(2):
        means = [logs[n].mean[t] for n in NAMES]
        assert all(torch.equal(m[k], means[0][k]) for m in means for k in m)
        factored, whole = float(torch.sum(means[0]["w"] * tensor(A)) / 3), means[0]["b"].mean()
        assert min(abs(whole - everyone), abs(whole - rest)) < 1e-3
        if factored == 0:  # between both sums: what the others have left of it, they send later
            assert not waits
            waits = rest
        else:
            assert min(abs(factored - waits - everyone), abs(factored - waits - rest)) < 1e-3
            waits = 0.0


@pytest.mark.parametrize("mode", ["he+secagg", pytest.param("secagg", marks=SLOW)])
@pytest.mark.parametrize("exchange", range(2, 11))
def test_no_value_of_who_leaves_is_in_two_sums_of_others(
    exchange: int, mode: Protection, door: list[Sum]
) -> None:
    """Lost between the sums of ranks, of Y, of B: their difference must not be the leaver's."""
    names = (*NAMES, "hub")
    updates = {m: [{"w": tensor(of_rank(i, 40, 24, i + 2))}] for i, m in enumerate(names)}
    exchanged(
        updates,
        T=0.9,
        mode=mode,
        weights=dict.fromkeys(names, 3.0),
        threshold=3,
        engine=lambda sessions: LossyEngine(sessions, lose={"hub": exchange}),
    )
    over = {}  # names of a sum -> how many are in it
    for part in (s for s in door if s.party == "east" and s.opened):
        count = part.opened["parties" if "parties" in part.opened else "records"]
        over[frozenset(part.opened)] = float(count) / (1 if "parties" in part.opened else 3)
    ranks, Y, B = ({"parties", "w|rank"}, {"records", "w"}, {"records", "w|B"})
    assert over.keys() >= {frozenset(ranks), frozenset(Y)} and set(over.values()) <= {4.0, 5.0}
    assert not ranks & (Y | B)  # so they may be over others
    assert over.get(frozenset(B), over[frozenset(Y)]) == over[frozenset(Y)]


def test_one_may_leave_between_the_sums_of_ranks_and_of_values(door: list[Sum]) -> None:
    """The width is that of five, the mean is that of four."""
    names = (*NAMES, "hub")
    ranks = dict(zip(names, (2, 2, 3, 3, 12), strict=True))
    updates = {m: [{"w": tensor(of_rank(k, 60, 40, k))}] for m, k in ranks.items()}
    found = set()
    for exchange in range(2, 7):
        door.clear()
        logs = exchanged(
            updates,
            T=0.999,
            mode="secagg",
            bits=24,
            threshold=3,
            engine=lambda sessions, at=exchange: LossyEngine(sessions, lose={"hub": at}),
        )
        first, second = [s.opened for s in door if s.party == "east"][:2]
        counts = (float(first["parties"]), float(second["records"]))
        found.add(counts)
        if counts == (5.0, 4.0):
            assert logs["east"].width[0]["w"] == 9  # of (2 + 2 + 3 + 3 + 12) / 5
            A = summed([updates[n][0] for n in NAMES])["w"] / 4
            np.testing.assert_allclose(logs["east"].mean[0]["w"], A, atol=1e-4)
    assert (5.0, 4.0) in found
