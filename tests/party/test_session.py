"""The exchanges of a sum, and the end of a party's program."""

from __future__ import annotations

from typing import Any

import numpy as np

from secure_fl.errors import TooFewParties
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Broadcast, Declare, SumInput, Total
from secure_fl.testing.harness import LossyEngine, federate
from tests.support.attacker import NAMES, Wiretap, summing

VALUES = {"x": np.ones(20, np.float32)}


def test_a_declaration_names_the_sum_that_follows_and_other_sums_have_none() -> None:
    for options in ({"partial": True}, {}):
        tap = Wiretap()
        programs = dict.fromkeys(NAMES, summing(VALUES, 2, bound=2.0, **options))
        federate(programs, mode="secagg", min_cohort=3, engine=tap)
        for name in NAMES:
            sums = [heard.message.at for heard in tap.of(SumInput, name)]
            declared = [heard.message.at for heard in tap.of(Declare, name)]
            assert sums == [(0, 1), (0, 2)]
            assert declared == (sums if options else [])


def test_a_bound_has_one_form_for_all_number_types() -> None:
    """Its text is in the digest of the sum, and parties with other digests would be at odds."""
    kinds = (2, 2.0, np.float32(2), np.int64(2))
    programs = {n: summing(VALUES, bound=kind) for n, kind in zip(NAMES, kinds, strict=True)}
    out = federate(programs, mode="secagg", min_cohort=3)
    assert set(out.results) == set(NAMES)


def test_a_program_that_the_coordinator_stops_is_closed_and_no_member_is_named() -> None:
    """A stop because of missing parties names nobody: each error then names its own party."""
    closed: list[str] = []

    async def program(cohort: Cohort) -> Any:
        try:
            for _ in range(3):
                await cohort.sum(VALUES, bound=2.0)
        finally:
            closed.append(cohort.me)

    lose = {"south": 3, "west": 3}
    out = federate(
        dict.fromkeys(NAMES, program),
        mode="secagg",
        min_cohort=3,
        engine=lambda sessions: LossyEngine(sessions, lose),
        catch=True,
    )
    assert isinstance(out.error, TooFewParties)
    stopped = sorted(name for name, session in out.sessions.items() if session.stopped)
    assert sorted(closed) == stopped == sorted(set(NAMES) - set(lose))
    for name in stopped:
        error = out.sessions[name].error
        assert error is not None and error.where["party"] == name


def test_the_log_says_whom_a_message_is_for() -> None:
    async def program(cohort: Cohort) -> Any:
        await cohort.broadcast(VALUES if cohort.is_host else None)
        await cohort.sum({} if cohort.is_host else VALUES, bound=2.0)

    out = federate(dict.fromkeys((*NAMES, "hub"), program), host="hub", mode="secagg")
    crossings = [event for event in out.events if event["event"] == "crossing"]
    for kind in (Broadcast, Total, SumInput):
        assert {c["audience"] for c in crossings if c["kind"] == kind.__name__} == {"parties"}
    others = {c["audience"] for c in crossings if c["kind"] in ("Ready", "Begin", "Unmask", "Done")}
    assert others == {"coordinator"}
