"""P3: the coordinator and c parties learn only the sum of the honest ones; one more, and they do.

Every (n, t, c) up to n = 8, with the attack carried out on the real keys of a real step.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from secure_fl.crypto.sealing import masking
from secure_fl.errors import CohortError, TooFewParties
from secure_fl.protocol import messages
from secure_fl.testing.harness import federate
from secure_fl.thresholds import collusion_bound, default_threshold
from tests.support.attacker import Wiretap, lying, summing, told
from tests.support.collusion import MaskedStep

SMALL = [(n, t) for n in range(3, 9) for t in range(n // 2 + 1, n + 1)]


def check(step: MaskedStep, found: dict[str, masking.Slots]) -> set[str]:
    """What was computed is what was put in: the attack is real."""
    for party, slots in found.items():
        np.testing.assert_array_equal(slots, step.inputs[party])
    return set(found)


def honest_coordinator(n: int, t: int, c: int) -> set[str]:
    step = MaskedStep(n, t)
    colluders = step.names[:c]
    reveals = step.tell({p: () for p in step.names[c:]}, colluders)
    return check(step, step.exposed(colluders, reveals))


@pytest.mark.parametrize(("n", "t"), SMALL)
def test_an_honest_coordinator_and_colluders(n: int, t: int) -> None:
    bound = collusion_bound(n, t).honest
    for c in range(bound + 1):
        assert honest_coordinator(n, t, c) == set()
    assert honest_coordinator(n, t, bound + 1)  # just beyond


def two_stories(n: int, t: int, c: int, some: int) -> set[str]:
    """`some` honest parties hear that the last one is gone, the others that nobody is."""
    step = MaskedStep(n, t)
    colluders, honest, victim = step.names[:c], step.names[c:], step.names[-1]
    lists = {p: (victim,) if i < some else () for i, p in enumerate(honest)}
    reveals = step.tell(lists, colluders)
    return check(step, step.exposed(colluders, reveals))


@pytest.mark.parametrize(("n", "t"), SMALL)
def test_a_coordinator_that_lies_about_dropouts(n: int, t: int) -> None:
    bound = collusion_bound(n, t).lying
    for c in range(bound + 1):
        for some in range(n - c):
            assert two_stories(n, t, c, some) == set()
    if t < n:  # just beyond: both secrets of the victim come together
        c = bound + 1
        assert names_of_last(n) in two_stories(n, t, c, t - c)


def names_of_last(n: int) -> str:
    return f"p{n - 1:02d}"


@pytest.mark.parametrize(("n", "t"), SMALL)
def test_no_assignment_of_lists_separates_anybody(n: int, t: int) -> None:
    rng = random.Random(n * 100 + t)
    c = collusion_bound(n, t).lying
    for _ in range(6):
        step = MaskedStep(n, t)
        colluders, honest = step.names[:c], step.names[c:]
        stories = [rng.sample(honest, rng.randint(0, n - t)) for _ in range(2)]
        lists = {p: rng.choice(stories) for p in honest}
        assert step.exposed(colluders, step.tell(lists, colluders)) == {}


def partial_view(n: int, t: int, c: int, quorum: int | None) -> set[str]:
    """The victim is shown t parties only; then its honest neighbours are called gone.

    The others, who know of everybody, hand out the victim's self seed and the neighbours' keys.
    """
    names = MaskedStep(n, t).names
    colluders, victim = names[:c], names[-1]
    near = names[c : t - 1]  # honest, and in the victim's view
    step = MaskedStep(n, t, views={victim: (*colluders, *near, victim)}, quorum=quorum)
    lists = {p: [q for q in near if q != p] for p in names[c:-1]}
    return check(step, step.exposed(colluders, step.tell(lists, colluders)))


def test_different_views_and_lists_need_the_confirmation() -> None:
    """7 parties, threshold 5, 2 colluders: within the bound, and lost without signed lists."""
    assert collusion_bound(7, 5).lying == 2
    assert names_of_last(7) in partial_view(7, 5, 2, quorum=1)
    assert partial_view(7, 5, 2, quorum=None) == set()


def test_a_lying_coordinator_cannot_make_the_sum_smaller_than_the_threshold() -> None:
    """10 parties, nobody colludes: without confirmation 4 keys come out, and a sum over 6."""
    rows = [(p, {(p + k) % 10 for k in (1, 2, 3)}) for p in range(10)]

    def revealed(quorum: int | None) -> int:
        step = MaskedStep(10, 7, quorum=quorum)
        lists = {step.names[p]: sorted(step.names[q] for q in gone) for p, gone in rows}
        return len([r for r in step.tell(lists).values() if r.keys])

    assert revealed(quorum=1) == 10
    assert revealed(quorum=None) == 0


@pytest.mark.parametrize("n", [33, 40, 100, 128])
def test_the_bound_is_the_same_function_for_large_cohorts(n: int) -> None:
    t = default_threshold(n)
    bound = collusion_bound(n, t)
    assert bound.honest == t - 1 and bound.lying == 2 * t - n - 1


def test_forty_parties_hold_against_as_many_colluders_as_the_bound_says() -> None:
    n, t = 40, default_threshold(40)
    bound = collusion_bound(n, t)
    assert honest_coordinator(n, t, bound.honest) == set()
    assert names_of_last(n) in honest_coordinator(n, t, bound.honest + 1)


def test_all_others_cannot_be_called_gone_to_some_only() -> None:
    """Alone, a coordinator of 40 tells each party that all but it and the victim are gone."""
    n, t = 40, default_threshold(40)

    def attacked(quorum: int | None) -> set[str]:
        step = MaskedStep(n, t, quorum=quorum)
        victim = step.names[-1]
        lists = {p: [q for q in step.names if q not in (p, victim)] for p in step.names}
        return check(step, step.exposed((), step.tell(lists)))

    assert names_of_last(n) in attacked(quorum=1)
    assert attacked(quorum=None) == set()


@pytest.mark.parametrize(("colluders", "sent"), [(("p0",), False), (("p0", "p1"), True)])
def test_names_of_a_subset_are_protected_against_min_cohort_less_two(
    colluders: tuple[str, ...], sent: bool
) -> None:
    """Who contributes a name is said by the coordinator, and colluders may say they do.

    So the bound of a partial sum is min_cohort - 2, whatever the threshold: one more, and the
    victim masks with nobody else.
    """

    def lie(party: str, owners: Any) -> Any:
        return messages.Owners({"x": (*colluders, "p6")})

    tap = Wiretap()
    programs = {f"p{k}": summing({"x": np.ones(20)}, partial=True, bound=2.0) for k in range(7)}
    lead = lying(told(messages.Owners, lie, "p6"))
    out = federate(programs, mode="secagg", min_cohort=3, engine=tap, lead=lead, catch=True)
    owners = [h.message.segments[0].owners for h in tap.of(messages.SumInput, "p6")]
    assert owners == ([(*colluders, "p6")] if sent else [])
    assert isinstance(out.sessions["p6"].error, CohortError if sent else TooFewParties)
