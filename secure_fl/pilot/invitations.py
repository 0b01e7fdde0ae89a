"""The coordinator invites members to a plan, and tells those who accept about each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from secure_fl.coordinator.assembly import links_to
from secure_fl.coordinator.machine import Engine
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import CohortError, PlanRefused, SecureFLError, TooFewParties, WireError
from secure_fl.events import EventLog, MembersGathered, MembersLost, Refused
from secure_fl.pilot.plan import write_plan
from secure_fl.pilot.run_id import rules_of_roster, run_id
from secure_fl.policy.questions import Proposal
from secure_fl.protocol.frames import Link
from secure_fl.protocol.messages import Failed, FromCoordinator, Gather, Gathered, Hello, Invite

LOBBY = 60.0  # seconds for an answer to an invitation, or to a gathering


class HubEngine(Engine, Protocol):
    """An engine that knows who is connected."""

    def connected(self) -> frozenset[str]:
        """The members that could be reached now."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """How one coordinator gathers members for one plan, as often as it must."""

    hub: HubEngine
    me: Identity
    roster: Roster
    plan: Proposal
    log: EventLog

    def links(self, run: bytes, names: Iterable[str]) -> dict[str, Link]:
        """The coordinator's ends of links to these members."""
        return links_to({n: self.roster.member(n).identity for n in names}, self.me, run)

    def gather(
        self, asked: Iterable[str], missing: Iterable[str] = ()
    ) -> tuple[bytes, tuple[str, ...]]:
        """Invite them; those who accept get each other's nonces, and all compute the run's id."""
        text = write_plan(self.plan)
        links = self.links(os.urandom(16), sorted(asked))
        nonces = self._accepted(links, Invite(text, tuple(sorted(missing))))
        members = tuple(sorted(nonces))
        self._require(members)
        run = run_id(self.roster, text, nonces)
        gathered = {name: links[name] for name in members}
        for party, message in self._ask(gathered, Gather(nonces)):
            if isinstance(message, Failed):
                self.log.event(Refused(parties=(party,), code=message.code))
                what, fix = f"this site cannot begin ({message.code})", "its own log says why"
                raise PlanRefused(what, fix=fix, party=party)
            if not isinstance(message, Gathered) or message.run != run:
                raise WireError("a site computed another run's id", party=party)
        self.log.event(MembersGathered(members=members))
        return run, members

    def _accepted(self, links: Mapping[str, Link], invitation: Invite) -> dict[str, bytes]:
        """Who accepts the plan, each with a nonce of its own."""
        nonces: dict[str, bytes] = {}
        for party, message in self._ask(links, invitation):
            if isinstance(message, Failed):
                self.log.event(Refused(parties=(party,), code=message.code))
                raise PlanRefused(f"this site refuses the plan ({message.code})", party=party)
            if isinstance(message, Hello):
                nonces[party] = message.nonce
        return nonces

    def _require(self, members: tuple[str, ...]) -> None:
        """Refuse to begin with too few, or without the host."""
        try:
            rules = rules_of_roster(self.roster, self.plan, members)
        except CohortError as error:
            raise TooFewParties(error.what, fix=error.fix) from None
        if rules.host is not None and rules.host not in members:
            raise TooFewParties("the host is not there", fix="wait for it", party=rules.host)

    def _ask(self, links: Mapping[str, Link], message: FromCoordinator) -> list[tuple[str, object]]:
        """Tell all the same; what is not genuine counts as no answer."""
        frames = {name: link.pack(message) for name, link in links.items()}
        answers = []
        for party, frame in self.hub.exchange(frames, LOBBY):
            try:
                answers.append((party, links[party].unpack(frame)))
            except SecureFLError as error:
                self.log.event(MembersLost(parties=(party,), code=error.code))
        return answers
