"""Nobody collects all signatures under a roster: who has another one has no part in a sum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member
from secure_fl.errors import CohortError, WireError
from secure_fl.pilot import gathering, hospital, plan
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.gathering import AgreedRun, Gathering
from secure_fl.pilot.plan import write_plan
from secure_fl.protocol.frames import Bulk, Frame, Link, Received
from secure_fl.protocol.messages import FromCoordinator, FromParty, Gather, Gathered, Invite
from tests.support.local_pilot import LocalPilot, local_pilot
from tests.support.raising import raises

T = TypeVar("T")


def told_another(folder: Path) -> LocalPilot:
    """The third hospital was sent a roster with a stranger on it, and has approved that."""
    made = local_pilot(folder)
    honest, stranger = made.roster, Identity.generate("mallory").public
    longer = (*honest.members, Member("mallory", "party", None, stranger))
    made.roster = replace(honest, members=longer, threshold=honest.t)
    made.kill("hospital-3")
    made.start("hospital-3")
    made.roster = honest
    return made


class TwoFaced(Link):
    """Passes for a link of the one run, and speaks to its site under the id that this one has."""

    own = b""

    def pack(self, message: FromParty | FromCoordinator, bulk: Bulk | None = None) -> Frame:
        return self._as_the_site_knows_it(lambda: Link.pack(self, message, bulk))

    def accept(self, received: Received) -> Any:
        return self._as_the_site_knows_it(lambda: Link.accept(self, received))

    def _as_the_site_knows_it(self, act: Callable[[], T]) -> T:
        self.run, shown = self.own or self.run, self.run
        try:
            return act()
        finally:
            self.run = shown


@dataclass(frozen=True, slots=True)
class Liar(Gathering):
    """A coordinator that sees two ids, and leads all sites as if they had the same."""

    runs: dict[str, bytes] = field(default_factory=dict)

    def links(self, run: bytes, names: Iterable[str]) -> dict[str, Link]:
        found: dict[str, Link] = {}
        for name, link in Gathering.links(self, run, names).items():
            found[name] = two = TwoFaced(run, link.me, link.peer, asks=True)
            two.own = self.runs.get(name, run)
        return found

    def gather(self, asked: Iterable[str], missing: Iterable[str] = ()) -> AgreedRun:
        before = dict(self.runs)
        self.runs.clear()
        call = self.links(os.urandom(16), sorted(asked))
        nonces = self._accepted(call, Invite(write_plan(self.plan)))
        for party, message in self._ask(call, Gather(nonces)):
            if not isinstance(message, Gathered):
                self.runs.update(before)
                raise CohortError("a site takes no further part", party=party)
            self.runs[party] = message.run
        return AgreedRun(self.runs["hospital-1"], tuple(sorted(nonces)))


def led_by_a_liar(made: LocalPilot) -> tuple[RunLeader, Liar]:
    lead = made.lead(patience=2.0)
    of = lead.gathering
    lead.gathering = liar = Liar(of.hub, of.me, of.roster, of.plan, of.log)
    return lead, liar


def test_without_the_roster_in_a_run_s_id_both_would_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(roster: Any, text: str, nonces: Any) -> bytes:
        return plan.run_id(made.roster, text, nonces)

    made = told_another(tmp_path)
    monkeypatch.setattr(gathering, "run_id", careless)
    monkeypatch.setattr(hospital, "run_id", careless)
    led_by_a_liar(made)[0].run()
    assert all(process.done for process in made.processes.values())


def test_a_site_with_another_roster_has_another_run(tmp_path: Path) -> None:
    made = told_another(tmp_path)
    with raises(WireError, "another run's id", party="hospital-3"):
        made.lead().run()
    opened = [file.read_text() for file in tmp_path.rglob("opened/*/*.jsonl")]
    assert not made.seen("round_started") and not any(opened)
    made.close()


def test_a_coordinator_that_ignores_it_has_no_sum_of_both(tmp_path: Path) -> None:
    """What sites sign for one id is nothing under the other, however it is carried."""
    made = told_another(tmp_path)
    lead, liar = led_by_a_liar(made)
    with raises(CohortError):
        lead.run()
    assert liar.runs["hospital-1"] == liar.runs["hospital-2"] != liar.runs["hospital-3"]
    assert not any(file.read_text() for file in tmp_path.rglob("opened.jsonl"))
    made.close()
