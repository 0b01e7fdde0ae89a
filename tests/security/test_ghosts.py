"""Who contributes to a partial sum is the coordinator's word; it can invent nobody."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator.sum_steps import SumStep
from secure_fl.errors import CohortError
from secure_fl.party import summing as party_summing
from secure_fl.protocol import messages
from secure_fl.testing.harness import Federated, federate
from tests.support.attacker import NAMES, Lie, lying, summing, told
from tests.support.raising import require

RNG = np.random.default_rng(0)
VALUES = {
    n: {k: RNG.normal(size=800).astype(np.float32) for k in ("first", "second")} for n in NAMES
}
TRUTH = {k: sum(v[k].astype(float) for v in VALUES.values()) for k in ("first", "second")}


def summed(lie: Lie, times: int = 2) -> Federated:
    """The sums of all, twice: how they are clipped follows from the number of contributors."""
    programs = {n: summing(VALUES[n], times, partial=True, carry=True) for n in NAMES}
    lead = lying(told(messages.Owners, lie))
    return federate(programs, mode="he+secagg", lead=lead, catch=True, min_cohort=3, bits=8)


def shares(out: Federated) -> list[dict[str, float]]:
    """How much of the true sums was opened at one party."""
    return [
        {k: float(np.linalg.norm(sums[k]) / np.linalg.norm(TRUTH[k])) for k in TRUTH}
        for sums in out.results["east"]
    ]


def ghosts(count: int, *, only: str = "") -> Lie:
    """Contributors who do not exist, and the lie that somebody lacks all scales."""
    more = tuple(f"ghost-{k}" for k in range(count))

    def lie(_: str, said: messages.Owners) -> messages.Owners:
        owners = {n: (*who, *more) if only in ("", n) else who for n, who in said.owners.items()}
        return structs.replace(said, owners=owners, unscaled=tuple(sorted(owners)))

    return lie


def twice(_: str, said: messages.Owners) -> messages.Owners:
    return structs.replace(said, owners={n: (*who, *who) for n, who in said.owners.items()})


def strange_readers(_: str, said: messages.Owners) -> messages.Owners:
    return structs.replace(said, readers=dict.fromkeys(said.owners, ("ghost",)))


def test_ghosts_would_shrink_chosen_sums_and_nobody_would_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(party_summing, "_check_members", lambda *_: None)
    monkeypatch.setattr(SumStep, "_require_possible_owners", lambda *_: None)
    out = summed(ghosts(20_000, only="second"), times=3)
    assert out.error is None
    assert all(found["first"] > 0.95 for found in shares(out))
    assert all(found["second"] < 0.3 for found in shares(out))


@pytest.mark.parametrize(
    "lie", [ghosts(1), ghosts(20_000), ghosts(5, only="second"), twice, strange_readers]
)
def test_who_is_not_there_contributes_and_reads_nothing(lie: Lie) -> None:
    out = summed(lie)
    first = out.sessions["east"]  # the others are stopped for it
    assert out.results == {} and isinstance(first.error, CohortError) and not first.stopped
    require(first.error, party="east", field="owners")


def test_that_somebody_lacks_scales_changes_no_sum() -> None:
    """Norms are summed again then, and give the scale that they give."""
    out = summed(ghosts(0))
    assert out.error is None and all(f > 0.95 for found in shares(out) for f in found.values())
