"""The coordinator's part of the blame protocol: it finds the party that spoiled a sum.

The coordinator cannot check a tag itself. It asks one party after the other for its upload, which
that party has signed, shows each upload to all members, and believes the majority. All honest
members come to the same verdict. `crypto.blame.inquiry` describes their check and what it reveals;
docs/protocol.md, section "An inquiry", lists the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import structs

from secure_fl.errors import Misconduct, PartyFailed, TamperError, WireError
from secure_fl.protocol.frames import Frame, digest, peek
from secure_fl.protocol.messages import Complaint, Examine

HIDDEN = "hidden"  # the code of a party that does not show the upload that it sent


class SentSum(NamedTuple):
    """A sum whose total was sent: the heads of all uploads, and the seeds of their self masks."""

    heads: Mapping[str, bytes]
    seeds: Mapping[str, bytes]

    def sent(self, party: str, complaint: Complaint) -> bool:
        """Return True if the complaint is about this sum, and its sender took part in it.

        Shown with the uploads of another sum, a complaint would convict the coordinator.
        """
        if party not in self.heads:
            return False
        try:
            total, upload = peek(complaint.total).message, peek(self.heads[party]).message
        except (ValueError, msgspec.MsgspecError):
            return False
        return getattr(total, "sum", None) == getattr(upload, "sum", 0)


@dataclass
class Inquest:
    """One inquiry of the coordinator: a complaint, then the uploads of the sum, one by one."""

    sum: SentSum
    plaintiff: str
    complaint: Frame
    coordinator: str  # the name on its card
    begun: bool = False
    waiting: list[str] = field(default_factory=list)  # parties that were not asked yet
    asked: str = ""  # the party that was asked for its upload
    upload: bytes | None = None  # the answer of that party
    votes: dict[str, str] = field(default_factory=dict)  # by member, the party that it convicts
    silent: list[str] = field(default_factory=list)  # parties that were lost before they answered
    hid: list[str] = field(default_factory=list)  # parties that showed another upload, or none

    def __post_init__(self) -> None:
        self.waiting = sorted(self.sum.seeds)

    def note(self, party: str, accused: str, upload: bytes) -> None:
        """Count a member's vote; the party that was asked also shows its upload."""
        self.votes[party] = accused
        if party == self.asked:
            if digest(upload) != peek(self.sum.heads[party]).digest:
                self.hid.append(party)
                raise WireError("a party shows another upload than it sent", party=party)
            self.upload = upload

    def next(self, members: tuple[str, ...]) -> tuple[Examine, bytes] | None:
        """Return the complaint or the upload to show next; None: all were shown."""
        party, upload, heads = self.asked, self.upload, self.sum.heads
        self.upload = None
        if not self.begun:
            self.begun, party, upload = True, self.plaintiff, self.complaint.bulk
            shown = Examine(party, self.complaint.head, input=heads[party])
        elif party and upload is not None:
            shown = Examine(party, heads[party], self.sum.seeds[party])
        else:  # this party was lost, or hides its upload
            self.silent += [party] if party else []
            shown, upload = Examine("", b""), b""
        if not party and not self.waiting:
            return None
        shown = structs.replace(shown, show=self._ask_next(members))
        return (shown, upload) if shown.who or shown.show else None

    def require_no_verdict(self, members: tuple[str, ...]) -> None:
        """Raise the error that names the party whom a majority of these members convicts."""
        votes = Counter(self.votes[m] for m in members if self.votes.get(m))
        accused, count = votes.most_common(1)[0] if votes else ("", 0)
        if 2 * count <= len(members):
            return
        if accused == self.coordinator:
            raise TamperError(
                "the parties find that the total is not the sum of their uploads",
                fix="look for what changes frames here; this coordinator's signature convicts it",
                party=accused,
                reason="wrong-sum",
            )
        raise Misconduct(
            "this party's upload fails its own tag check, or its complaint is unfounded",
            party=accused,
        )

    def require_shown(self, *others: str) -> None:
        """Name the first party that hid its upload; one that was lost comes after these."""
        for party in (*self.hid, *others):
            raise PartyFailed(
                "a sum failed, and this party did not show the upload that it had sent",
                fix="resume the run: the round is repeated; if it happens again, leave it out",
                party=party,
                reason=HIDDEN,
            )

    def _ask_next(self, members: tuple[str, ...]) -> str:
        """Choose the next party, of those that are present, whose upload is wanted."""
        self.silent += [party for party in self.waiting if party not in members]
        self.waiting = [party for party in self.waiting if party in members]
        self.asked = self.waiting.pop(0) if self.waiting else ""
        return self.asked
