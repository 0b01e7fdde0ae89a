"""Who spoiled a sum: the coordinator shows members what was sent, and hears whom that convicts.

It cannot check a tag itself. So it asks one party after the other for its upload, which that party
has signed, shows each to all, and believes a majority: whoever looks comes to the same verdict.
`crypto.blame.inquiry` says what members look at, and what that reveals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from msgspec import structs

from secure_fl.coordinator.sum_steps import Reply, Sent, Step, StepContext
from secure_fl.errors import CohortError, Misconduct, PartyFailed, TamperError, WireError
from secure_fl.protocol.frames import Bulk, Frame, digest, peek
from secure_fl.protocol.messages import Examine, Finding, FromParty

HIDDEN = "hidden"  # the code of a party that does not show what it sent


@dataclass
class Inquest:
    """One inquiry: a complaint, and the uploads that it is about, one after the other."""

    sum: Sent
    plaintiff: str
    complaint: Frame
    coordinator: str  # the name on its own card
    waiting: list[str] = field(default_factory=list)  # whose uploads were not shown yet
    votes: dict[str, str] = field(default_factory=dict)  # by member: whom it finds convicted
    silent: list[str] = field(default_factory=list)  # who was lost before it showed its upload
    hid: list[str] = field(default_factory=list)  # who showed another one, or none
    asked: str = ""
    upload: bytes | None = None  # of whom was asked
    begun: bool = False

    def __post_init__(self) -> None:
        self.waiting = sorted(self.sum.selves)

    def next(self, members: tuple[str, ...]) -> Reply | None:
        """Show the complaint, or the upload that came, and ask for another; None: that was all."""
        party, upload, heads = self.asked, self.upload, self.sum.heads
        self.upload = None
        if not self.begun:
            self.begun, party, upload = True, self.plaintiff, self.complaint.bulk
            shown = Examine(party, self.complaint.head, input=heads[party])
        elif party and upload is not None:
            shown = Examine(party, heads[party], self.sum.selves[party])
        else:  # it was lost, or hides what it signed
            self.silent += [party] if party else []
            shown, upload = Examine("", b""), b""
        if not party and not self.waiting:
            return None
        shown = structs.replace(shown, show=self._next(members))
        if not shown.who and not shown.show:
            return None
        bulk = Bulk.of(upload)
        return Reply(dict.fromkeys(members, shown), dict.fromkeys(members, bulk), inquest=self)

    def convicted(self, members: tuple[str, ...]) -> str:
        """Whom most of those who are left find convicted."""
        votes = Counter(self.votes[m] for m in members if self.votes.get(m))
        accused, count = votes.most_common(1)[0] if votes else ("", 0)
        return accused if 2 * count > len(members) else ""

    def require_shown(self, *others: str) -> None:
        """Say who hid what it had sent, and sooner that than that others were lost."""
        for party in (*self.hid, *others):
            raise PartyFailed(
                "a sum failed, and this party did not show what it had sent",
                fix="resume the run: the round is repeated; if it comes again, leave it out",
                party=party,
                reason=HIDDEN,
            )

    def _next(self, members: tuple[str, ...]) -> str:
        """Whose upload is wanted next, of those who are here."""
        self.silent += [party for party in self.waiting if party not in members]
        self.waiting = [party for party in self.waiting if party in members]
        self.asked = self.waiting.pop(0) if self.waiting else ""
        return self.asked


class FindingStep(Step):
    """Collects what members find, and the upload that was asked for."""

    takes = Finding

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        if context.inquest is None:
            raise CohortError("findings arrived although nothing was shown")
        self.inquest: Inquest = context.inquest

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, Finding)  # noqa: S101
        self.inquest.votes[party] = message.against
        if party == self.inquest.asked:
            if digest(bulk) != peek(self.inquest.sum.heads[party]).digest:
                self.inquest.hid.append(party)
                raise WireError("a party shows another upload than it sent", party=party)
            self.inquest.upload = bulk

    def reply(self, members: tuple[str, ...]) -> Reply:
        inquest = self.inquest
        accused = inquest.convicted(members)
        if accused == inquest.coordinator:
            raise TamperError(
                "the parties find that the total is not the sum of what they sent",
                fix="look for what changes frames here; this coordinator's signature convicts it",
                party=accused,
                reason="wrong-sum",
            )
        if accused:
            raise Misconduct(
                "the parties find that what it sent does not fit its own tag, or that the total "
                "which it complained of does",
                party=accused,
            )
        if (reply := inquest.next(members)) is not None:
            return reply
        inquest.require_shown(*inquest.silent)
        raise TamperError(
            "a sum failed, and what was shown convicts nobody",
            fix="parties were told different things before, or lied about it: compare their logs",
            reason="wrong-sum",
        )
