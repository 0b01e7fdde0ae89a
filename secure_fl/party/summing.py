"""A sum, from a party's values to the opened total, in the order of its steps.

docs/protocol.md 4.6 lists the messages. Without masks, steps 3 and 4 are omitted.

    1  A program calls `Cohort.sum`. The values become flat vectors, in groups that the same parties
       contribute. If a party lacks the scale of a vector, norms are summed first. A large sum is
       then split (`parts_of`): each part takes steps 2 to 5.
    2  `SumLayer.begin` encodes, tags, masks and seals the vectors, under keys that were exchanged
       before. The upload leaves as `SumInput`; the coordinator adds it (`SumStep`), and keeps none.
    3  `Unmask` names the survivors. A party refuses sums over too few, or over other parties than
       before a crash (`_admit`). `SumInProgress.settle` checks the lists, and signs them if a party
       has dropped out (`Confirm`); the coordinator forwards all signatures.
    4  `SumInProgress.shares` reveals the seeds that remove the masks of this sum, once. The keys of
       the next sum travel with them (`UnmaskShares`). The coordinator subtracts the remaining masks
       under the encryption (`RevealStep`), and sends the `Total`, with the others' keys.
    5  `SumInProgress.open` decrypts it, checks its tag against the survivors and decodes it;
       `SumLayer.accept` takes the keys.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from secure_fl.errors import DISTRUST, CohortError, TrainingError
from secure_fl.events import EventLog, Warned
from secure_fl.party.context import (
    DIGESTS,
    Arrays,
    Checkpoints,
    Members,
    SumRequest,
    ask,
    exchange,
    unexpected,
)
from secure_fl.party.hooks import RoundHook
from secure_fl.protocol.frames import cut, digest
from secure_fl.protocol.messages import (
    Audience,
    Confirmed,
    Declare,
    Name,
    Owners,
    SumId,
    SumInput,
    Total,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import Group, Noise, PrivacyLayer, Rule, SumInProgress, Vector

Real = TypeVar("Real", np.float32, np.float64)
COUNTS = 8  # longest vector that holds counts, and no weights of a model
PART = 3 << 22  # values: 22 MB sealed at 8 bits; 170 MB at the coordinator, while it is added
IMPOSSIBLE_NORMS = (
    "the squared norms of {} sums add up to less than zero: a hospital sent a wrong one. The run "
    "continues without them; this site is not at fault"
)


CLIPPED = (
    "{} vectors, such as {}, are many times larger than in the last sum: over half of their values "
    "was clipped, and is added to the next sum"
)


class Opened(NamedTuple):
    """The outcome of one sum on the wire."""

    values: Arrays | None  # None: it was not to be opened over the survivors
    more: bool  # True if further parts of the same request follow


class Summing:
    """The sums of a run at one party, one after the other."""

    def __init__(
        self,
        members: Members,
        layer: PrivacyLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        self._members, self._layer, self._sums = members, layer, layer.sums
        self._scales = layer.transcript.scales
        self._checkpoints, self._recorder, self._hooks = checkpoints, recorder, hooks
        self.round = 0  # masks are bound to it: 0 before the first
        self.survivors: tuple[str, ...] = ()
        self._opened = 0  # sums opened in this round
        self._carried: dict[str, tuple[int, ...]] = {}  # shapes of the carried values of this round

    def begin_round(self, number: int) -> None:
        """Start to count the sums of this round, and to record the shapes of carried values."""
        self.round, self._opened, self._carried = number, 0, {}

    async def sum(self, request: SumRequest) -> Arrays:
        """Answer one request, as `Cohort.sum` describes it."""
        if request.only is not None and request.only != frozenset(self._members.here):
            return {}  # a member has left since: all know it, and nobody sends anything
        groups, lacking = await self._groups_of(request)
        self._members.require_cohort(groups)
        unscaled = self._scales.unknown(groups, request.rule)
        if (unscaled or lacking) and not await self._learn_scales(unscaled, request):
            return {}
        size = sum(vector.size for group in groups for vector in group.vectors.values())
        parts = parts_of(groups) if size > PART else [groups]
        vectors = await self._add_parts(parts, request)
        if clipped := self._scales.clipped():
            text = CLIPPED.format(len(clipped), clipped[0])
            self._recorder.event(Warned(code="clipped", text=text))
        given = {**request.values, **request.read}
        shapes = {name: np.shape(value) for name, value in given.items()}
        if vectors is None:
            return {}
        if request.rule.carry:
            self._carried |= {name: shapes[name] for name in request.values}
        vectors = join_pieces(vectors, shapes) if len(parts) > 1 else vectors
        return {name: vector.reshape(shapes[name]) for name, vector in vectors.items()}

    def leftover(self, name: str) -> NDArray[np.float32] | None:
        """See `Cohort.leftover`."""
        shape = self._carried.pop(name, None)
        if shape is None:
            return None
        taken = ((n, self._scales.leftover(n)) for n in piece_names(name, math.prod(shape)))
        left: dict[str, NDArray[Any]] = {n: vector for n, vector in taken if vector is not None}
        return join_pieces(left, {name: shape})[name].reshape(shape) if left else None

    async def _groups_of(self, request: SumRequest) -> tuple[Sequence[Group], bool]:
        """Return the vectors of a request by contributors; and true if a party lacks scales."""
        members, rule = self._members, request.rule
        named = bool(request.values or request.read)
        if named == (members.is_host and rule.audience == Audience.PARTIES):
            raise CohortError(
                "the host passes {} to a sum for the parties; otherwise values must have names",
                party=members.me,
            )
        gives = _flat(request.values, members.me, rule.noise)
        zeros = {name: np.zeros(np.shape(value)) for name, value in request.read.items()}
        reads = _flat(zeros, members.me, rule.noise)
        if request.partial:
            return await self._declare(gives, reads, rule)
        if reads:
            raise CohortError("only a partial sum can be read without contributing to it")
        if not gives:
            return (), False
        owners: Sequence[str] = members.parties
        for hook in () if request.ignore_hooks else self._hooks:
            selected = hook.contributors(members.parties)
            owners = owners if selected is None else selected
        others = tuple(party for party in members.parties if party not in owners)
        return (Group(tuple(owners), gives, others),), False

    async def _declare(
        self, gives: Mapping[str, Vector], reads: Mapping[str, Vector], rule: Rule
    ) -> tuple[tuple[Group, ...], bool]:
        """Declare the names of a partial sum; return groups with equal contributors and readers.

        docs/protocol.md 4.13.
        """
        members, scales = self._members, self._scales
        if set(gives) & set(reads) or (reads and rule.audience == Audience.HOST):
            raise CohortError("a party contributes a name or reads it, and nobody reads a host sum")
        vectors = dict(sorted({**gives, **reads}.items()))
        unscaled = [
            name for name, v in vectors.items() if scales.unknown((Group((), {name: v}),), rule)
        ]
        at = (self.round, self._opened + 1)
        answer, _ = await ask(Declare(tuple(gives), tuple(reads), tuple(unscaled), at), Owners)
        self._layer.transcript.saw(answer.plain(), b"owners", host=True)
        _check_members(members, answer)
        for name in {*vectors, *answer.owners, *answer.readers}:
            owners, readers = answer.owners.get(name, ()), answer.readers.get(name, ())
            contributes = name in gives and not members.is_host
            reads_it = name in reads and bool(owners)
            if (members.me in owners) != contributes or (members.me in readers) != reads_it:
                raise CohortError(
                    f"the coordinator gives {name!r} the wrong contributors", fix=DISTRUST
                )
        alike: dict[tuple[tuple[Name, ...], ...], dict[str, Vector]] = {}
        for name, vector in vectors.items():
            owners, readers = answer.owners.get(name, ()), answer.readers.get(name, ())
            if owners or name in gives:  # a name without contributors has no sum to read
                alike.setdefault((owners, readers), {})[name] = vector
        scales.forget(answer.unscaled)  # a scale that one party lacks is summed again by all
        ordered = sorted(alike.items())
        groups = tuple(Group(owners, part, readers) for (owners, readers), part in ordered)
        return groups, bool(answer.unscaled) and not members.is_host

    async def _learn_scales(self, unscaled: Sequence[Group], request: SumRequest) -> bool:
        """Sum the norms of vectors without a scale; return False if they were not to be opened.

        Norms beyond the exact range, and norms of a few of its units, take a second sum. Only all
        members of the first can begin it, and in a partial sum not all see that it is necessary:
        there a norm beyond the range is an error.
        """
        scales, request = self._scales, replace(request, rule=Rule())
        sent = scales.capped(unscaled, partial=request.partial)
        norms, _ = await self._add(sent, request, more=True)
        others: Arrays | None = {}
        if norms and not request.partial and (again := scales.beyond(unscaled, norms)):
            others, _ = await self._add(again, request, more=True)
        if norms is None or others is None:
            return False
        scales.learn(norms, others)
        return True

    async def _add_parts(
        self, parts: Sequence[Sequence[Group]], request: SumRequest
    ) -> Arrays | None:
        """Sum the parts over the same parties, or not at all; None if the first was not opened."""
        members, (first, *others) = self._members, parts
        vectors, more = await self._add(first, request, more=bool(others))
        unseen = members.is_host and request.rule.audience == Audience.PARTIES
        while vectors is not None and unseen and more:  # all others know their parts
            vectors, more = await self._add(first, request)
        if vectors is None:
            return None
        request = replace(request, only=frozenset(self.survivors))
        for number, part in enumerate(others, 1):
            values = None
            if request.only == frozenset(members.here):  # else all know it, and send nothing
                values, _ = await self._add(part, request, more=number < len(others))
            if values is None:
                values = self._scales.postpone(members.me, part, request.rule)
            vectors |= values
        return vectors

    async def _add(
        self, groups: Sequence[Group], request: SumRequest, *, more: bool = False
    ) -> Opened:
        """Form one sum on the wire, steps 2 to 9."""
        at: SumId = (self.round, self._opened + 1)  # a sum that is not opened is not counted
        rule = request.rule
        with self._recorder.phase("seal"):
            under_way = self._sums.begin(groups, rule, at)
        sent = under_way.upload
        message = SumInput(
            rule.audience, sent.segments, more, at, sent.sum, sent.bound, sent.taken, {**sent.links}
        )
        answer, data = await exchange(message, sent.data)
        survivors = getattr(answer, "survivors", ())
        admitted = self._admit(groups, survivors, request)
        if isinstance(answer, Unmask):
            unmask = self._unmask if admitted else self._withhold
            answer, data = await unmask(under_way, answer)
        if not isinstance(answer, Total):
            raise unexpected(answer, Total)
        self._check_total(answer, survivors, more, sent.sum)
        with self._recorder.phase("open"):
            values: Arrays | None = None
            if admitted:
                values = under_way.open(cut(data, answer.sizes), answer.survivors, answer.lost)
                if count := len(under_way.unscaled):
                    text = IMPOSSIBLE_NORMS.format(count)
                    self._recorder.event(Warned(code="impossible norms", text=text))
            self._sums.accept(answer.offers, answer.members)
        return Opened(values, answer.more)

    def _check_total(
        self, total: Total, survivors: tuple[str, ...], more: bool, number: int
    ) -> None:
        """Refuse the total of another sum, or over other parties than were announced."""
        if total.sum != number:
            raise CohortError("the coordinator sent the total of another sum", fix=DISTRUST)
        if total.survivors != survivors:
            raise CohortError(
                "the coordinator changed its mind about who took part in a sum", fix=DISTRUST
            )
        if not self._members.is_host and total.more != more:
            raise CohortError("the coordinator mistakes what belongs to a sum for another one")
        self._members.confirm_members(total.members)

    async def _unmask(self, under_way: SumInProgress, lists: Unmask) -> tuple[Any, bytes]:
        """Help to remove the masks of the members of the sum: steps 5 and 6."""
        with self._recorder.phase("unmask"):
            claim, confirmed = under_way.settle(lists), None
        if claim is not None:  # a party has dropped out: all must have received the same lists
            confirmed, _ = await ask(claim, Confirmed)
        with self._recorder.phase("unmask"):
            shares = under_way.shares(confirmed)
            keys = self._sums.next_keys(lists.survivors)
        return await exchange(structs.replace(shares, offer=keys))

    async def _withhold(self, under_way: SumInProgress, lists: Unmask) -> tuple[Any, bytes]:
        """Send only the keys of the next sum: this one stays masked for good."""
        return await exchange(UnmaskShares({}, {}, self._sums.next_keys(lists.survivors)))

    def _admit(
        self, groups: Sequence[Group], survivors: tuple[str, ...], request: SumRequest
    ) -> bool:
        """Decide if a sum over these survivors may be opened, before it is revealed: step 4."""
        self._members.keep_only(survivors)
        if request.only is not None and request.only != frozenset(survivors):
            return False
        self.survivors = survivors  # of opened sums only: later ones may have to be over the same
        self._members.require_cohort(groups)
        self._opened += 1
        what = _digest(groups, survivors)
        self._checkpoints.admit(self.round, self._opened, survivors, what)
        self._recorder.differences.saw(self.round, _contributors(what))
        for hook in self._hooks:
            hook.admit(request.questions, survivors)
        return True


def _check_members(members: Members, answer: Owners) -> None:
    """Refuse unknown or repeated contributors or readers: scales depend on their number."""
    for table, known in (
        (answer.owners, set(members.parties)),
        (answer.readers, set(members.here)),
    ):
        for name, parties in table.items():
            if not known.issuperset(parties) or len(set(parties)) < len(parties):
                raise CohortError(
                    f"the coordinator names contributors or readers of {name[:80]!r} who are not "
                    "in this run, or names them twice",
                    fix=DISTRUST,
                    party=members.me,
                    field="owners",
                )


def _flat(values: Mapping[str, Any], me: str, noise: Noise | None) -> dict[str, Vector]:
    """Flatten values into vectors, in pieces; refuse values that are not finite.

    Integers that carry their noise remain integers, and few integers keep all their digits.
    """
    flat: dict[str, Vector] = {}
    for name, value in sorted(values.items()):
        given = np.asarray(value)
        few = noise is None and given.dtype.kind in "iu" and given.size <= COUNTS
        kind: Any = np.int64 if noise is not None and noise.prepaid else np.float32
        vector = np.ascontiguousarray(given, np.float64 if few else kind).reshape(-1)
        if not np.isfinite(vector).all():
            raise TrainingError(
                f"{name} holds NaN or infinity, so nothing was sent",
                fix="lower the learning rate, set max_grad_norm, or check this party's data",
                party=me,
            )
        flat |= pieces(name, vector) if vector.size > PART else {name: vector}
    return flat


def _contributors(what: str) -> dict[str, list[str]]:
    """Read the contributors of a digest by names."""
    lines = (line.split("\t") for line in what.splitlines())
    return {names: owners for names, *owners in lines}


def _digest(groups: Sequence[Group], survivors: Sequence[str]) -> str:
    """Digest the names of a sum, a line for each set of contributors.

    It is the same when a round is repeated. The digests of a line's names are added, so that lines
    can be merged: without a convicted member, two sets may be equal (`OpenedSumsLog`).
    """
    alive, by_owners = set(survivors), Counter[tuple[str, ...]]()
    for group in groups:
        owners = tuple(sorted(alive.intersection(group.owners)))
        for name, vector in group.vectors.items():
            by_owners[owners] += int.from_bytes(digest(f"{name} {vector.size}".encode()), "big")
    lines = ("\t".join((f"{names % DIGESTS:064x}", *who)) for who, names in by_owners.items())
    return "\n".join(sorted(lines))


# --- a large sum as several small ones, so that no process holds more than one sealed part -------
# docs/protocol.md 4.14


def piece_names(name: str, size: int) -> list[str]:
    """Return the names of the pieces of a vector; its own name if it is not cut."""
    count = -(-size // PART)
    return [name] if count < 2 else [f"{name}#{number}" for number in range(count)]


def pieces(name: str, vector: Vector) -> dict[str, Vector]:
    """Cut a vector that is longer than a part, without copying it."""
    labels = piece_names(name, vector.size)
    return {label: vector[at * PART : (at + 1) * PART] for at, label in enumerate(labels)}


def parts_of(groups: Sequence[Group]) -> list[list[Group]]:
    """Distribute the vectors of groups over parts that are no longer than `PART`.

    Counts come first, because the divisors of the other vectors must be in the first part.
    """
    counts = [_only(group, lambda vector: vector.size <= COUNTS) for group in groups]
    others = [_only(group, lambda vector: vector.size > COUNTS) for group in groups]
    parts: list[list[Group]] = [[]]
    room = PART
    for group in (*counts, *others):
        taken: dict[str, Vector] = {}
        parts[-1].append(group._replace(vectors=taken))
        for name, vector in group.vectors.items():
            if vector.size > room and room < PART:
                taken, room = {}, PART
                parts.append([group._replace(vectors=taken)])
            taken[name] = vector
            room -= vector.size
    return [[group for group in part if group.vectors] for part in parts]


def _only(group: Group, wanted: Callable[[Vector], bool]) -> Group:
    return group._replace(vectors={n: v for n, v in group.vectors.items() if wanted(v)})


def join_pieces(
    vectors: dict[str, NDArray[Real]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Real]]:
    """Join pieces to vectors: a missing piece is zero, a vector without pieces is missing.

    Pieces are removed from `vectors` as they are joined, since two large models may not fit into
    memory.
    """
    joined: dict[str, NDArray[Real]] = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        labels = piece_names(name, size)
        if labels == [name] and name in vectors:
            joined[name] = vectors.pop(name)
            continue
        for at, label in enumerate(labels):
            if (piece := vectors.pop(label, None)) is not None:
                if name not in joined:
                    joined[name] = np.zeros(size, piece.dtype)
                joined[name][at * PART : (at + 1) * PART] = piece
    return joined
