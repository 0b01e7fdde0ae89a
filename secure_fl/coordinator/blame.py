"""The coordinator's part of the blame protocol: it finds the party that spoiled a sum.

The coordinator cannot check a tag itself. It asks one party after the other for its upload, which
that party has signed, shows each upload to all members, and believes the majority. All honest
members come to the same verdict. `crypto.blame.inquiry` describes their check and what it reveals;
docs/protocol.md 9 lists the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from secure_fl.crypto.blame.evidence import taken_by
from secure_fl.errors import Misconduct, PartyFailed, TamperError, WireError
from secure_fl.protocol.frames import Frame, cut, digest, peek
from secure_fl.protocol.messages import Complaint, Examine, Offer, Segment, SumInput, Total

HIDDEN = "hidden"  # the code of a party that does not show the upload that it sent


class SentSum(NamedTuple):
    """A sum whose total was sent: its uploads' heads, self-mask seeds and keys."""

    heads: Mapping[str, bytes]
    seeds: Mapping[str, bytes]
    inputs: Mapping[str, bytes]  # the digests of the heads that the coordinator committed to
    offers: Mapping[str, Offer]
    number: int
    host: str | None

    def segments(self, party: str) -> Sequence[Segment]:
        """Return the segments of a party's upload."""
        message = peek(self.heads[party]).message
        return message.segments if isinstance(message, SumInput) else ()

    def part_of(self, party: str, key: bytes, upload: bytes) -> bytes:
        """Cut the part of one segment out of a party's upload."""
        sizes = {segment.key: segment.size for segment in self.segments(party)}
        parts = dict(zip(sizes, cut(upload, list(sizes.values())), strict=True))
        return parts.get(key, b"")

    def disputed(self, party: str, complaint: Complaint, total: bytes) -> tuple[bytes, bytes]:
        """Return the segment of a complaint and its part of the total.

        Refuse a complaint about another sum, or with other bytes than were sent: shown with these
        uploads, it would convict the coordinator.
        """
        if party not in self.heads:
            raise WireError("a complaint of a party that was not in the sum", party=party)
        head, segments, place = peek(complaint.total), self.segments(party), complaint.segment
        sent = head.message
        if not isinstance(sent, Total) or sent.sum != self.number:
            raise WireError("a complaint of no total of the last sum", party=party)
        if place >= min(len(segments), len(sent.sizes)):
            raise WireError("a complaint of a part that the total does not have", party=party)
        part, digests = cut(total, sent.sizes)[place], sent.digests or (head.digest,)
        if len(digests) <= place or digest(part) != digests[place]:
            raise WireError("a complaint with another part than was sent", party=party)
        return segments[place].key, part


@dataclass
class Inquest:
    """One inquiry of the coordinator: a complaint, then the uploads of the sum, one by one."""

    sum: SentSum
    plaintiff: str
    complaint: Frame
    coordinator: str  # the name on its card
    begun: bool = False
    waiting: list[str] = field(default_factory=list)  # parties that were not asked yet
    readers: frozenset[str] = frozenset()  # members that the disputed segment is for
    asked: str = ""  # the party that was asked for its upload
    upload: bytes | None = None  # the part that this party showed
    votes: dict[str, str] = field(default_factory=dict)  # by member, the party that it convicts
    silent: list[str] = field(default_factory=list)  # parties that were lost before they answered
    hid: list[str] = field(default_factory=list)  # parties that showed another upload, or none

    def __post_init__(self) -> None:
        complaint = peek(self.complaint.head).message
        assert isinstance(complaint, Complaint)  # noqa: S101 - it was received as one
        of = self.sum
        self.key, self.part = of.disputed(self.plaintiff, complaint, self.complaint.bulk)
        sizes = {p: {s.key: s.size for s in of.segments(p)} for p in of.inputs}
        self.readers = frozenset(party for party, keys in sizes.items() if self.key in keys)
        self.waiting = sorted(party for party, keys in sizes.items() if keys.get(self.key))

    def note(self, party: str, accused: str, upload: bytes) -> None:
        """Count a member's vote; the party that was asked also shows its upload, or hides it."""
        self.votes[party] = accused
        if party != self.asked:
            return
        if digest(upload) == peek(self.sum.heads[party]).digest:
            self.upload = self.sum.part_of(party, self.key, upload)
        else:  # its vote counts
            self.hid.append(party)

    def next(self, members: tuple[str, ...]) -> tuple[Examine, bytes] | None:
        """Return the complaint or the upload to show next; None: all were shown.

        Uploads are asked for only after the complaint: if it is false, the others have begun the
        next sum.
        """
        if not self.begun:
            self.begun = True
            return self._complaint(), self.part
        party, upload, heads = self.asked, self.upload, self.sum.heads
        self.upload = None
        if party and upload is not None:
            shown = Examine(party, heads[party], self.sum.seeds[party])
        else:  # this party was lost, or hides its upload
            self.silent += [party] if party and party not in self.hid else []
            shown, upload = Examine("", b""), b""
        if not party and not self.waiting:
            return None
        shown = structs.replace(shown, show=self._ask_next(members), sum=self.sum.number)
        return (shown, upload) if shown.who or shown.show else None

    def _complaint(self) -> Examine:
        return Examine(
            self.plaintiff,
            self.complaint.head,
            input=self.sum.heads[self.plaintiff],
            sum=self.sum.number,
            inputs=dict(self.sum.inputs),
            taken=taken_by(self.plaintiff, self.sum.offers, self.sum.host),
        )

    def require_no_verdict(self, members: tuple[str, ...]) -> None:
        """Raise the error that names the party whom a majority of these members convicts."""
        readers = self.readers.intersection(members)
        votes = Counter(self.votes[m] for m in readers if self.votes.get(m))
        accused, count = votes.most_common(1)[0] if votes else ("", 0)
        if 2 * count <= len(readers):
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
        """Name the first party that hid its upload; one that was lost comes after these.

        The sites charge the failed sum to this party: it costs nobody else the keys.
        """
        for party in (*self.hid, *others):
            raise PartyFailed(
                "a sum failed, and this party did not show the upload that it had sent, or left "
                "the inquiry",
                fix="resume the run: the round is repeated. After a second time, sites refuse this "
                "party until there is a new roster",
                party=party,
                reason=HIDDEN,
            )

    def _ask_next(self, members: tuple[str, ...]) -> str:
        """Choose the next party, of those that are present, whose upload is wanted."""
        self.silent += [party for party in self.waiting if party not in members]
        self.waiting = [party for party in self.waiting if party in members]
        self.asked = self.waiting.pop(0) if self.waiting else ""
        return self.asked
