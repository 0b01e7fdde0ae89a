"""Gatherings: the coordinator invites members to a plan and agrees on a run id with them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from secure_fl.coordinator.assembly import links_to
from secure_fl.coordinator.machine import Engine
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import CohortError, PlanRefused, SecureFLError, TooFewParties, WireError
from secure_fl.events import EventLog, MembersExcluded, MembersGathered, MembersLost, Refused
from secure_fl.pilot.plan import rules_of_roster, run_id, write_plan
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Link
from secure_fl.protocol.messages import Failed, FromCoordinator, Gather, Gathered, Hello, Invite

ANSWER_SECONDS = 60.0  # for an answer to an invitation or gathering


class GatherAgain(CohortError):  # noqa: N818 - it names a state
    """A member returned or was excluded: all members are gathered again."""

    code = "returned"


class HubEngine(Engine, Protocol):
    """An engine that knows who is connected."""

    def connected(self) -> frozenset[str]:
        """The members that are connected now."""


class AgreedRun(NamedTuple):
    """The result of a gathering: the id of its run, and its members."""

    run: bytes
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gathering:
    """Invitation of members to one plan, and agreement on the run's id."""

    hub: HubEngine
    me: Identity
    roster: Roster
    plan: Plan
    log: EventLog

    def links(self, run: bytes, names: Iterable[str]) -> dict[str, Link]:
        """Make the coordinator's ends of links to these members."""
        return links_to({n: self.roster.member(n).identity for n in names}, self.me, run)

    def gather(self, asked: Iterable[str], missing: Iterable[str] = ()) -> AgreedRun:
        """Invite members; those that accept get all nonces and compute the run's id.

        One member that refuses the plan ends the run: nobody trains on a plan that a site forbids.
        """
        text = write_plan(self.plan)
        links = self.links(os.urandom(16), sorted(asked))
        nonces = self._accepted(links, Invite(text, tuple(sorted(missing))))
        members = tuple(sorted(nonces))
        self._require_enough(members)
        run = run_id(self.roster, text, nonces)
        answers = dict(self._ask({name: links[name] for name in members}, Gather(nonces)))
        failed = {p: answer for p, answer in answers.items() if isinstance(answer, Failed)}
        for party, failure in failed.items():
            self.log.event(Refused(parties=(party,), code=failure.code))
        # A member that most others refuse is excluded before their refusals can end the run.
        refusals = Counter(failure.about for failure in failed.values() if failure.about)
        self._raise_if_refused_by_most(members, refusals)
        for party, answer in answers.items():
            if isinstance(answer, Failed):
                why = f"{answer.code}; with {answer.about}" if answer.about else answer.code
                what, fix = f"this site cannot begin ({why})", "see the log of that site"
                raise PlanRefused(what, fix=fix, party=party)
            if not isinstance(answer, Gathered) or answer.run != run:
                raise WireError("a site computed another run's id", party=party)
        self.log.event(MembersGathered(members=members))
        return AgreedRun(run, members)

    def _raise_if_refused_by_most(
        self, members: Collection[str], refusals: Mapping[str, int]
    ) -> None:
        """Raise GatherAgain if most members refuse to work with one of them."""
        for name, count in refusals.items():
            if name in members and 2 * count > len(members):
                self.log.event(MembersExcluded(parties=(name,)))
                raise GatherAgain("most members take part in no run with this one", party=name)

    def _accepted(self, links: Mapping[str, Link], invitation: Invite) -> dict[str, bytes]:
        """Invite members, and return the nonces of those that accept."""
        nonces: dict[str, bytes] = {}
        for party, message in self._ask(links, invitation):
            if isinstance(message, Failed):
                self.log.event(Refused(parties=(party,), code=message.code))
                raise PlanRefused(f"this site refuses the plan ({message.code})", party=party)
            if isinstance(message, Hello):
                nonces[party] = message.nonce
        return nonces

    def _require_enough(self, members: tuple[str, ...]) -> None:
        """Refuse to begin with too few members, or without the host."""
        try:
            rules = rules_of_roster(self.roster, self.plan, members)
        except CohortError as error:
            raise TooFewParties(error.what, fix=error.fix) from None
        if rules.host is not None and rules.host not in members:
            raise TooFewParties("the host is not connected", fix="wait for it", party=rules.host)

    def _ask(self, links: Mapping[str, Link], message: FromCoordinator) -> list[tuple[str, object]]:
        """Send a message to all, and return the authentic answers."""
        frames = {name: link.pack(message) for name, link in links.items()}
        answers = []
        for party, frame in self.hub.exchange(frames, ANSWER_SECONDS):
            try:
                answers.append((party, links[party].unpack(frame)))
            except SecureFLError as error:  # it counts as no answer
                self.log.event(MembersLost(parties=(party,), code=error.code))
        return answers
