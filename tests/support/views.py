"""A checker of views: what a coordinator and colluding parties can work out of a run's messages.

The shipped party and coordinator code runs over a symbolic ring. A vector has a column for each
input and each key stream. The expansion of keys is replaced: a stream is 1 in its own column, and 0
elsewhere. An input is the lowest value everywhere, and one step more in its own column, which the
shipped encoder turns into 0 and 1. So the shipped arithmetic makes of each upload a linear form of
inputs and streams. The last slot, with the tag, keeps real streams.

The view of a coalition has all uploads, of which totals are sums, and these streams:

- all streams of keys that the whole cohort has, even if nobody colludes
- self masks of seeds of which colluders and messages have a threshold of shares
- all pair masks of a party in a sum, with everybody, if they have such a seed of its mask key

All seeds of colluders count as known, and shares are recognised in messages by their bytes.

Elimination mod t decides which combinations of honest inputs this view determines (`leak`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from secure_fl.crypto.sealing import masking, tags
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame, cut, peek

WIDTH = 192  # columns
T = COHORT.modulus
SINGLE = ("pair", "self", "host")  # purposes of streams that not all members can derive
Form = dict[int, int]  # coefficients by column; inputs come before streams
Owner = tuple[str, str]  # a party, and the run and number of a masked sum


@dataclass
class Stream:
    """A key stream: its column, its secret, and the parties that share a pair's."""

    column: int
    secret: bytes
    purpose: str
    ends: set[Owner] = field(default_factory=set)


class Dealt(NamedTuple):
    """A seed of one party and sum, and its shares by the number of their holder."""

    owner: Owner
    secret: bytes
    threshold: int
    shares: dict[int, bytes]


class Recording:
    """Inputs, streams, shares and messages of runs over the symbolic ring."""

    def __init__(self, keys: Mapping[str, PartyKeys], groups: int) -> None:
        """`groups`: how many inputs each party has."""
        self.names, self.inputs = sorted(keys), groups * len(keys)
        self._tag_key = keys[self.names[0]].tag_key
        self.streams: dict[bytes, Stream] = {}  # by key
        self.statements: dict[str, bytes] = {}  # the last survivor lists that each party settled
        self.forms: list[Form] = []  # of all uploads
        self.misfit = ""  # an upload whose tag is not a function of its values
        self._deals: list[Dealt] = []
        self._dealing: list[Dealt] = []  # of the offer that is being made
        self._shares: set[bytes] = set()  # all that parties revealed
        self._purposes: dict[bytes, str] = {}  # by the info of a stream's derivation
        self._key_seeds: set[bytes] = set()  # from which a key is derived, and no stream
        self._agreed: dict[int, set[frozenset[str]]] = {}  # by group, sets that parties opened
        self.sent: dict[str, tuple[messages.Segment, ...]] = {}  # last upload
        self._groups: dict[str, list[int]] = {}  # inputs in it
        self._lists: dict[str, frozenset[str]] = {}  # last survivors that each party heard
        self._totals: dict[str, dict[bytes, bytes]] = {name: {} for name in keys}  # by segment
        self._knew: dict[tuple[str, int], dict[bytes, bytes]] = {}  # these, when an input was sent

    # --- observers of the shipped code: they get the result, and the arguments --------------------

    def info(self, made: bytes, stream: StreamId, purpose: str) -> None:
        self._purposes[made] = purpose

    def derived(self, key: bytes, secret: bytes, info: bytes) -> None:
        purpose = self._purposes.get(info, "")
        if not purpose:
            self._key_seeds.add(secret)
        elif not purpose.startswith("tag"):
            column = self.inputs + len(self.streams)
            self.streams.setdefault(key, Stream(column, secret, purpose))

    def paired(
        self, keys: tuple[list[bytes], list[bytes]], member: int, pairs: Any, stream: StreamId
    ) -> None:
        higher, lower = (sorted(p for p in pairs if (p < member) == low) for low in (False, True))
        for peer, key in zip((*higher, *lower), (*keys[0], *keys[1]), strict=True):
            for end in (member, peer):
                self.streams[key].ends.add((self.names[end - 1], f"{stream.run} {stream.sum}"))

    def expanded(self, rows: Slots, keys: Sequence[bytes], *_rest: int) -> None:
        for row, key in zip(rows, keys, strict=True):
            if key in self.streams:
                assert len(self.streams) + self.inputs <= WIDTH
                row[:WIDTH] = 0
                row[self.streams[key].column] = 1

    def dealt(self, shares: dict[int, bytes], secret: bytes, threshold: int, *_rest: Any) -> None:
        self._dealing.append(Dealt(("", ""), secret, threshold, shares))

    def offered(self, _offer: messages.Offer, keys: StepKeys, *_rest: Any) -> None:
        owner = keys.me, f"{keys.run} {keys.index}"
        self._deals += [deal._replace(owner=owner) for deal in self._dealing]
        self._dealing.clear()

    def settled(self, statement: bytes, keys: StepKeys, *_rest: Any) -> None:
        self.statements[keys.me] = statement

    # --- messages ---------------------------------------------------------------------------------

    def step(self, party: str, step: Callable[[Frame], Frame], frame: Frame) -> Frame:
        """Let a party answer a frame, and read both."""
        message = peek(frame.head).message
        if isinstance(message, messages.Unmask):
            self._lists[party] = frozenset(message.survivors)
        elif isinstance(message, messages.Total):
            parts = cut(frame.bulk, message.sizes)
            segments = self.sent.get(party, ())
            self._totals[party] |= {s.key: p for s, p in zip(segments, parts, strict=False)}
        answer = step(frame)
        envelope = peek(answer.head)
        said, run = envelope.message, envelope.run.hex()
        if isinstance(said, messages.SumInput):
            self._upload(party, run, said, answer.bulk)
        elif isinstance(said, messages.UnmaskShares) and (said.seeds or said.keys):
            self._shares |= {*said.seeds.values(), *said.keys.values()}
            for group, segment in zip(self._groups[party], self.sent[party], strict=True):
                agreed = self._lists[party].intersection(segment.owners or self.names)
                self._agreed.setdefault(group, set()).add(agreed)
        return answer

    def _upload(self, party: str, run: str, said: messages.SumInput, bulk: bytes) -> None:
        parts = cut(bulk, [segment.size for segment in said.segments])
        self.sent[party], self._groups[party] = said.segments, []
        for segment, part in zip(said.segments, parts, strict=True):
            slots = to_slots(part, WIDTH + 1)
            form = _form(slots)
            (column,) = (c for c in form if c < self.inputs)  # its own input and no other one
            self._groups[party].append(column // len(self.names))
            self._knew[party, self._groups[party][-1]] = dict(self._totals[party])
            self.forms.append(form)
            stream = StreamId(run, segment.key.hex(), said.sum)
            if not self._fits(party, form, slots, segment, stream):
                self.misfit = f"the tag of {party} is not a function of its masked values"

    def _fits(
        self, party: str, form: Form, slots: Slots, segment: messages.Segment, stream: StreamId
    ) -> bool:
        """Return True if an upload's tag, without its self mask, follows from its other slots."""
        number = {name: place for place, name in enumerate(self.names, 1)}
        for key, own in self.streams.items():
            if own.purpose == "self" and own.column in form:
                slots = (slots + (np.uint64(T) - masking.uniform(key, slots.size, T))) % T
        salts = {number[peer]: salt.digest for salt in segment.salts for peer in salt.peers}
        tag = tags.make(self._tag_key, slots[:-1], [number[party]], T, stream)
        tag += tags.bonds(self._tag_key, number[party], salts, T, stream)
        return tag % T == int(slots[-1])

    # --- the decision -----------------------------------------------------------------------------

    def leak(self, colluders: Collection[str], least: int, learned: Mapping[int, Form]) -> str:
        """Return what of the learned is more than the permitted sums, or "".

        A permitted sum is over `least` honest parties or more, which received the same totals, and
        there is one sum of the inputs of one group.
        """
        names, sums = self.names, 0
        for group, sets in self._agreed.items():
            seen = [
                honest
                for honest in {agreed.difference(colluders) for agreed in sets}
                if not _rest({group * len(names) + names.index(p): 1 for p in honest}, learned)
            ]
            if len(seen) > 1:
                return f"two sums of the same inputs, over {' and '.join(map(_listed, seen))}"
            if seen and (len(seen[0]) < least or self._deceived(group, seen[0])):
                return f"a sum over {_listed(seen[0])}, which is too few, or after unequal totals"
            sums += len(seen)
        if sums < len(learned):
            some = max(learned.values(), key=len)
            shown = (f"{names[c % len(names)]}'s input {c // len(names)}" for c in sorted(some))
            return f"a combination of {', '.join(shown)}"
        return self.misfit

    def learned(self, colluders: Collection[str]) -> dict[int, Form]:
        """Return a basis of the combinations of honest inputs that a coalition can compute."""
        known = self._known(colluders)
        known |= {c for c in range(self.inputs) if self.names[c % len(self.names)] in colluders}
        basis: dict[int, Form] = {}
        for form in self.forms:
            row = _rest({c: v for c, v in form.items() if c not in known}, basis)
            if row:
                inverse = pow(row[max(row)], -1, T)
                basis[max(row)] = {c: v * inverse % T for c, v in row.items()}
        return {column: row for column, row in basis.items() if column < self.inputs}

    def _known(self, colluders: Collection[str]) -> set[int]:
        """Return the columns of all streams that a coalition can derive."""
        held = {number for number, name in enumerate(self.names, 1) if name in colluders}
        secrets, keys = set[bytes](), set[Owner]()
        for owner, secret, threshold, shares in self._deals:
            got = [h for h, share in shares.items() if h in held or share in self._shares]
            if owner[0] in colluders or len(got) >= threshold:
                secrets.add(secret)
                keys |= {owner} if secret in self._key_seeds else set()
        return {
            stream.column
            for stream in self.streams.values()
            if stream.purpose not in SINGLE
            or stream.secret in secrets
            or not stream.ends.isdisjoint(keys)
        }

    def _deceived(self, group: int, parties: Collection[str]) -> bool:
        """Return True if two of these received different totals of a sum before their inputs."""
        totals: dict[bytes, bytes] = {}
        knew = (self._knew[party, group] for party in parties)
        return any(
            totals.setdefault(key, part) != part for one in knew for key, part in one.items()
        )


@contextmanager
def symbolic(recording: Recording) -> Iterator[Recording]:
    """Let the shipped code compute over the symbolic ring."""
    observed = (
        (StreamId, "info", recording.info),
        (masking, "_derived", recording.derived),
        (masking, "pair_keys", recording.paired),
        (masking, "_rows", recording.expanded),
        (masking, "share_secret", recording.dealt),
        (StepKeys, "offer", recording.offered),
        (StepKeys, "settle", recording.settled),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in observed]
    try:
        for owner, name, note in observed:
            setattr(owner, name, _observed(getattr(owner, name), note))
        yield recording
    finally:
        for owner, name, shipped in before:
            setattr(owner, name, shipped)


def _observed(shipped: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        made = shipped(*arguments)
        note(made, *arguments)
        return made

    return call


def _form(slots: Slots) -> Form:
    return {int(c): int(slots[c]) for c in np.flatnonzero(slots[:WIDTH])}


def _rest(row: Form, basis: Mapping[int, Form]) -> Form:
    """Eliminate from a row what a basis has, from the last column on: streams before inputs."""
    row = dict(row)
    while row and (pivot := basis.get(max(row))):
        times = row[max(row)]
        for column, value in pivot.items():
            row[column] = (row.get(column, 0) - times * value) % T
            if not row[column]:
                del row[column]
    return row


def _listed(parties: Collection[str]) -> str:
    return ", ".join(sorted(parties))
