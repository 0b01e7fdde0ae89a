"""Reading is not contributing: a reader cannot slip into a sum, nor be shown a hospital's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress, SecureSums
from secure_fl.errors import CohortError, Disagreement, SecureFLError, TooFewParties
from secure_fl.protocol import messages
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate
from tests.support.attacker import Wiretap, lying, told

SEALED = ["secagg", "he+secagg"]
NAMES = ("east", "north", "south", "west")


def programs(reader: str = "west") -> dict[str, Program]:
    def program(name: str) -> Program:
        async def run(cohort: Any) -> Any:
            low = {"low": np.full(50, 1.0)}
            own, reads = ({"other": np.ones(1)}, low) if name == reader else (low, {})
            own = {**own, "all": np.ones(1)}
            reads = {**reads, **({} if name == reader else {"other": np.ones(1)})}
            return await cohort.sum(own, partial=True, read=reads, bound=2.0)

        return run

    return {name: program(name) for name in NAMES}


@pytest.mark.parametrize("mode", SEALED)
def test_a_reader_that_contributes_is_refused(
    mode: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hospital that runs another program: it seals into a segment that it only reads."""
    honest = SecureSums.begin

    def begin(self: SecureSums, groups: Any, rule: Any, at: Any) -> SecureSumInProgress:
        if self.context.me != "west":
            return honest(self, groups, rule, at)
        keys = self._keys
        sealed = honest(self, [g._replace(owners=(*g.owners, "west")) for g in groups], rule, at)
        self._keys = keys
        under_way = honest(self, groups, rule, at)  # the digests and owners that the others use
        segments = tuple(
            replace_size(told, made.size)
            for told, made in zip(under_way.upload.segments, sealed.upload.segments, strict=True)
        )
        under_way.upload = under_way.upload._replace(segments=segments, data=sealed.upload.data)
        return under_way

    def replace_size(segment: messages.Segment, size: int) -> messages.Segment:
        return messages.Segment(segment.key, size, segment.slots, segment.owners)

    without = federate(programs(), mode=mode, min_cohort=1).results["west"]
    np.testing.assert_allclose(without["low"], np.full(50, 3.0), atol=1e-3)
    monkeypatch.setattr(SecureSums, "begin", begin)
    out = federate(programs(), mode=mode, min_cohort=1, catch=True)
    assert isinstance(out.error, Disagreement) and out.error.where["party"] == "west"
    assert out.results == {}


@pytest.mark.parametrize("mode", SEALED)
def test_a_coordinator_that_calls_a_reader_a_contributor_is_refused(mode: Protection) -> None:
    def lie(party: str, message: messages.Owners) -> messages.Owners:
        owners = {name: tuple(sorted({*who, "west"})) for name, who in message.owners.items()}
        return structs.replace(message, owners=owners)

    lead = lying(told(messages.Owners, lie))
    out = federate(programs(), mode=mode, min_cohort=1, lead=lead, catch=True)
    assert isinstance(out.sessions["west"].error, CohortError)
    assert "the wrong contributors" in str(out.sessions["west"].error) and out.results == {}
    # Told to the others only, their sums do not fit the reader's, and nothing is opened.
    others = lying(told(messages.Owners, lambda p, m: m if p == "west" else lie(p, m)))
    out = federate(programs(), mode=mode, min_cohort=1, lead=others, catch=True)
    assert isinstance(out.error, SecureFLError) and out.results == {}


@pytest.mark.parametrize("mode", SEALED)
def test_a_reader_is_never_shown_a_sum_below_min_cohort(mode: Protection) -> None:
    """West's own value, read by three: refused before anybody has sent anything."""
    tap = Wiretap()
    out = federate(programs(), mode=mode, min_cohort=2, engine=tap, catch=True)
    assert isinstance(out.sessions["east"].error, TooFewParties) and out.results == {}
    assert tap.of(messages.Declare) and not [h for h in tap.of(messages.SumInput) if h.bulk]

    def lie(party: str, message: messages.Owners) -> messages.Owners:  # the coordinator claims more
        owners = {
            n: ("north", "south", "west") if n == "other" else w for n, w in message.owners.items()
        }
        return structs.replace(message, owners=owners)

    lead = lying(told(messages.Owners, lie, to="east"))
    out = federate(programs(), mode=mode, min_cohort=2, lead=lead, catch=True)
    assert isinstance(out.error, SecureFLError) and "east" not in out.results


@pytest.mark.parametrize("mode", SEALED)
def test_a_reader_sends_nothing_for_what_it_reads(mode: Protection) -> None:
    tap = Wiretap()
    federate(programs(), mode=mode, min_cohort=1, engine=tap)
    (sent,) = tap.of(messages.SumInput, "west")
    by_owners = {s.owners: s.size for s in sent.message.segments}
    assert by_owners["east", "north", "south"] == 0 < by_owners["west",]
    assert len(sent.bulk) == sum(by_owners.values())
