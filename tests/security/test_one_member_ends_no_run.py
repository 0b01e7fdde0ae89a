"""A member that breaks the protocol is left out or named; it cannot end a run without a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.crypto.keys.identity import commit
from secure_fl.crypto.sealing import step_keys
from secure_fl.errors import (
    PartyFailed,
    PeerKeysError,
    RunError,
    SecureFLError,
    UnusableKeys,
)
from secure_fl.events import Crossing, EventLog
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.frames import digest
from secure_fl.protocol.messages import Confirm, Examine, Segment, Share, SumInput, UnmaskShares
from secure_fl.testing.harness import Federated, LossyEngine, federate

NAMES = ("east", "liar", "north", "south", "west")
LIAR = "liar"
VALUES = {"x": np.ones(50, np.float32)}
Change = Callable[[Any, bytes], tuple[Any, bytes]]


async def program(cohort: Cohort) -> Any:
    await cohort.sum(VALUES, bound=2.0)
    shared = await cohort.share({"y": np.ones(3, np.float32)})
    return sorted(shared), await cohort.sum(VALUES, bound=2.0)


def run(kind: type, change: Change, **options: Any) -> Federated:
    given = {"mode": "secagg", "min_cohort": 3, "catch": True, **options}
    members = given.pop("members", NAMES)
    return federate(dict.fromkeys(members, program), faults={LIAR: {kind: change}}, **given)


def require_only_liar_lost(out: Federated) -> None:
    assert out.error is None, out.error
    lost = {name for event in out.events if event["event"] == "lost" for name in event["parties"]}
    assert lost == {LIAR}
    for name in set(NAMES) - {LIAR}:
        np.testing.assert_allclose(out.results[name][1]["x"], 4.0, atol=1e-2)


def more(*owners: str, empty: bool) -> Change:
    """Add a part with these owners, of the same content, or one that is only read."""

    def changed(message: SumInput, bulk: bytes) -> tuple[SumInput, bytes]:
        (first,) = message.segments
        if empty:
            other = Segment(bytes(32), 0, first.slots, owners)
            return structs.replace(message, segments=(first, other)), bulk
        first = structs.replace(first, digest=digest(bulk))
        other = structs.replace(first, key=bytes(32), owners=owners, salts=())
        return structs.replace(message, segments=(first, other)), 2 * bulk

    return changed


@pytest.mark.parametrize("owners", [(LIAR,), ("ghost",), (LIAR, "ghost", "other")])
@pytest.mark.parametrize("empty", [False, True])
def test_a_part_with_impossible_owners_loses_its_author(
    owners: tuple[str, ...], empty: bool
) -> None:
    require_only_liar_lost(run(SumInput, more(*owners, empty=empty)))


def test_a_part_that_its_other_owners_omit_names_who_lists_it() -> None:
    out = run(SumInput, more(LIAR, "north", empty=False), min_cohort=2)
    assert isinstance(out.error, UnusableKeys)
    assert set(out.error.members) == {LIAR, "north"}  # of two that differ, nobody knows who lies


@pytest.mark.parametrize("members", [("east", LIAR, "west"), ("alpha", "beta", LIAR)])
def test_who_alone_withholds_shares_is_named(members: tuple[str, ...]) -> None:
    def withhold(message: UnmaskShares, bulk: bytes) -> tuple[UnmaskShares, bytes]:
        return structs.replace(message, seeds={}, keys={}), bulk

    out = run(UnmaskShares, withhold, members=members)
    assert isinstance(out.error, UnusableKeys) and out.error.members == (LIAR,)


def test_an_empty_shared_value_loses_its_sender() -> None:
    require_only_liar_lost(run(Share, lambda message, bulk: (message, b"")))


def test_a_shared_value_that_does_not_open_names_its_sender() -> None:
    out = run(Share, lambda message, bulk: (message, b"zz"))
    assert isinstance(out.error, PartyFailed) and out.error.party == LIAR
    error = out.sessions["east"].error  # so it accuses the sender; of all members most decide
    assert isinstance(error, PeerKeysError) and error.party == LIAR


def test_a_wrong_signature_of_the_survivors_names_its_sender() -> None:
    engine = lambda sessions: LossyEngine(sessions, {"zeta": 2})  # noqa: E731
    wrong: Change = lambda message, bulk: (Confirm(bytes(64)), bulk)  # noqa: E731
    out = run(Confirm, wrong, members=(*NAMES, "zeta"), engine=engine)
    assert isinstance(out.error, PartyFailed) and out.error.party == LIAR
    error = out.sessions["east"].error  # so it accuses the sender; of all members most decide
    assert isinstance(error, PeerKeysError) and error.party == LIAR


def test_who_deals_shares_of_another_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(secret: bytes, *about: Any) -> bytes:
        lies = about[1:] == (2, LIAR)  # the seed of its self mask in the second sum
        return commit(bytes(16) if lies else secret, *about)

    monkeypatch.setattr(step_keys, "commit", other)
    out = run(Confirm, lambda message, bulk: (message, bulk))
    assert isinstance(out.error, UnusableKeys) and out.error.members == (LIAR,)


class AskingAgain:
    """An engine that asks a party again if it did not answer, as that of a pilot does."""

    def __init__(self, sessions: Any) -> None:
        self.sessions = sessions

    def exchange(self, frames: Any, deadline: float) -> Any:
        for party, frame in frames.items():
            for _ in range(3):
                try:
                    yield party, self.sessions[party].step(frame)
                    break
                except SecureFLError:
                    continue


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_log_that_cannot_be_written_ends_in_an_answer(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    written, failed = EventLog.event, list[Crossing]()

    def full(log: EventLog, event: Any) -> None:
        here = isinstance(event, Crossing) and log.party == LIAR and event.direction == direction
        if here and event.kind in ("Unmask", "UnmaskShares") and not failed:
            failed.append(event)
            raise RunError("no space is left", fix="make room", reason="unwritable")
        written(log, event)

    monkeypatch.setattr(EventLog, "event", full)
    out = federate(
        dict.fromkeys(NAMES, program), mode="secagg", min_cohort=3, catch=True, engine=AskingAgain
    )
    assert failed
    assert isinstance(out.error, PartyFailed) and out.error.party == LIAR
    assert isinstance(out.sessions[LIAR].error, RunError)


def test_an_unmask_that_was_refused_commits_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the coordinator could commit itself to uploads after all shares are known."""
    from secure_fl.party.session import Session
    from secure_fl.protocol.messages import Unmask

    heads: dict[str, list[bytes]] = {}
    advance = Session._advance

    def refused(session: Session, message: Any, data: bytes) -> Any:
        heads.setdefault(session.party, []).append(session._lists)
        if isinstance(message, Unmask) and message.sum == 2:
            raise SecureFLError("refused")
        return advance(session, message, data)

    monkeypatch.setattr(Session, "_advance", refused)
    out = run(Examine, lambda message, bulk: (message, bulk))
    assert out.error is not None
    for name in NAMES:
        assert out.sessions[name]._lists == heads[name][-1] != b""
