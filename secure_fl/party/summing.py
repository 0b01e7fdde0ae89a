"""A sum, from a party's values to the opened total: the whole story, in the order it happens.

Rows are those of docs/protocol.md, "A sum". Without masks 4 to 6 are left out.

    1  a program calls `Cohort.sum`; the values become flat vectors, in groups    here, `groups`
       that the same parties contribute. Where somebody lacks the scale of a
       vector, norms are summed first: a sum of its own. What is large is then
       summed part by part (`party.parts`): 2 to 9 for each.
    2  `Sums.begin` encodes, tags, masks and seals them, under keys that were     row 1
       exchanged before: a `SumInProgress` (`crypto.sealing.secure_sum`). Its upload
       leaves as `SumInput`.
    3  The coordinator adds each upload as it arrives, and keeps none.            `SumStep.take`
    4  It tells all who is in the sum: `Unmask(survivors, dropped)`. A party      row 2
       refuses sums over too few, or over others than before a crash (`_admit`).
    5  `SumInProgress.settle` checks the lists. If anybody is gone, it signs        row 2b
       them (`Confirm`), and the coordinator shows all the signatures.
    6  `SumInProgress.shares` reveals what removes the masks of this sum, once;     row 2b
       the keys of the next sum travel with it (`UnmaskShares`), row 0 of that.
    7  The coordinator recovers the seeds, and subtracts what is left of the      `RevealStep`
       masks, under the encryption.
    8  It sends the sealed `Total`, with the others' keys for the next sum.       row 3
    9  `SumInProgress.open` decrypts it, checks its tag against the survivors and   here
       decodes it; `Sums.accept` takes the keys.

A message and its answer are one exchange: 2 with 4, 6 with 8, and 5 where somebody is gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from secure_fl.errors import DISTRUST, CohortError, TrainingError
from secure_fl.events import EventLog, Warned
from secure_fl.party.exchange import ask, exchange, unexpected
from secure_fl.party.groups import declare
from secure_fl.party.hooks import RoundHook
from secure_fl.party.members import Members
from secure_fl.party.parts import PART, names, parts_of, pieces, whole
from secure_fl.party.rounds import Checkpoints
from secure_fl.party.sum_request import Arrays, SumRequest
from secure_fl.protocol.frames import cut, digest
from secure_fl.protocol.messages import (
    Audience,
    Confirmed,
    SumId,
    SumInput,
    Total,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import Group, PrivacyLayer, Rule, SumInProgress, Vector


class Summing:
    """The sums of a run, one after the other."""

    def __init__(
        self,
        who: Members,
        layer: PrivacyLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        self._who, self._layer, self._sums = who, layer, layer.sums
        self._checkpoints, self._recorder = checkpoints, recorder
        self._hooks = hooks
        self._asked: tuple[str, ...] = ()  # questions that this sum answers
        self.round = 0  # masks are bound to it: 0 before the first
        self.survivors: tuple[str, ...] = ()
        self._only: frozenset[str] | None = None  # over whom alone this sum may be opened
        self._more = False  # whether sums that belong to the last one follow it
        self._opened = 0  # sums opened in this round
        self._carried: dict[str, tuple[int, ...]] = {}  # shapes of what this round's sums carried

    def begin_round(self, number: int) -> None:
        """Count the round's sums, and know the shapes of what they carry, from here on."""
        self.round, self._opened, self._carried = number, 0, {}

    async def sum(
        self,
        request: SumRequest,
    ) -> Arrays:
        """See `Cohort.sum`."""
        who, values, read, rule = self._who, request.values, request.read, request.rule
        only = self._only = request.only
        self._asked, partial = request.questions, request.partial
        if only is not None and only != frozenset(who.here):
            return {}  # somebody left since: all know it, and nobody sends anything
        if bool(values or read) == (who.is_host and rule.audience == Audience.PARTIES):
            raise CohortError(
                "the host passes {} to a sum for the parties; otherwise values must have names",
                party=who.me,
            )
        gives = _flat(values, who.me)
        reads = _flat({name: np.zeros(np.shape(value)) for name, value in read.items()}, who.me)
        groups: Sequence[Group] = (Group(who.parties, gives),) if gives else ()
        for hook in () if request.ignore_hooks or partial or not gives else self._hooks:
            if (among := hook.contributors(who.parties)) is not None:
                others = tuple(party for party in who.parties if party not in among)
                groups = (Group(tuple(among), gives, others),)
        lacking = False
        if partial:
            at = (self.round, self._opened + 1)
            groups, lacking = await declare(who, self._layer, gives, reads, rule, at)
        elif reads:
            raise CohortError("every party contributes to a whole sum: nobody only reads it")
        who.require_cohort(groups)
        scales = self._sums.unscaled(groups, rule)
        if scales or lacking:
            norms = await self._add(scales, Rule(), more=True)
            if norms is None:
                return {}
            self._sums.learn(norms)
        size = sum(vector.size for group in groups for vector in group.vectors.values())
        first, *rest = parts_of(groups) if size > PART else (groups,)
        opened = await self._add(first, rule, more=bool(rest))
        while opened is not None and who.is_host and self._more:  # the parties know how many
            opened = await self._add(first, rule)
        if opened is None:
            return {}
        if rest:
            opened |= await self._add_others(rest, rule)
        shapes = {name: np.shape(value) for name, value in {**values, **read}.items()}
        if rule.carry:
            self._carried |= {name: shapes[name] for name in values}
        found = whole(opened, shapes) if rest else opened
        return {name: vector.reshape(shapes[name]) for name, vector in found.items()}

    async def _add_others(self, others: Sequence[Sequence[Group]], rule: Rule) -> Arrays:
        """The parts after the first: over the same parties, or not at all."""
        opened: Arrays = {}
        self._only = frozenset(self.survivors)
        while others:
            part, *others = others
            found = None
            if self._only == frozenset(self._who.here):  # else all know it, and nobody sends it
                found = await self._add(part, rule, more=bool(others))
            opened |= self._sums.postpone(part, rule) if found is None else found
        return opened

    def leftover(self, name: str) -> NDArray[np.float32] | None:
        """See `Cohort.leftover`."""
        shape = self._carried.pop(name, None)
        if shape is None:
            return None
        left = {of: self._sums.leftover(of) for of in names(name, math.prod(shape))}
        found = {of: vector for of, vector in left.items() if vector is not None}
        return whole(found, {name: shape})[name].reshape(shape) if found else None

    async def _add(
        self, groups: Sequence[Group], rule: Rule, *, more: bool = False
    ) -> Arrays | None:
        """One sum, steps 2 to 9; None if it was not to be opened over those who are left."""
        at: SumId = (self.round, self._opened + 1)  # one that is withheld is not counted
        with self._recorder.phase("seal"):
            under_way = self._sums.begin(groups, rule, at)
        upload = under_way.upload
        answer, data = await exchange(
            SumInput(rule.audience, upload.segments, more, at, upload.sum), upload.data
        )
        admitted = self._admit(groups, getattr(answer, "survivors", ()))
        if isinstance(answer, Unmask):
            unmask = self._unmask if admitted else self._withhold
            answer, data = await unmask(under_way, answer)
        if not isinstance(answer, Total):
            raise unexpected(answer, Total)
        total = answer
        if total.survivors != self.survivors:
            raise CohortError(
                "the coordinator changed its mind about who took part in a sum", fix=DISTRUST
            )
        if not self._who.is_host and total.more != more:
            raise CohortError("the coordinator mistakes what belongs to a sum for another one")
        self._who.confirm_members(total.members)
        self._more = total.more
        opened: Arrays | None = None
        with self._recorder.phase("open"):
            if admitted:
                opened = under_way.open(cut(data, total.sizes), total.survivors, total.lost)
                if count := len(under_way.unscaled):
                    text = (
                        f"the squared norms of {count} sums add up to less than zero: a hospital "
                        "sent a wrong one. The run continues without them; this site is not at "
                        "fault"
                    )
                    self._recorder.event(Warned(code="impossible norms", text=text))
            self._sums.accept(total.offers, total.members)
        return opened

    async def _unmask(self, under_way: SumInProgress, lists: Unmask) -> tuple[Any, bytes]:
        """Help to remove the masks of those who are in the sum: steps 5 and 6."""
        with self._recorder.phase("unmask"):
            claim, confirmed = under_way.settle(lists), None
        if claim is not None:  # somebody is gone: all must have been told the same
            confirmed, _ = await ask(claim, Confirmed)
        with self._recorder.phase("unmask"):
            shares = under_way.shares(confirmed)
            keys = self._sums.next_keys(lists.survivors)
        return await exchange(structs.replace(shares, offer=keys))

    async def _withhold(self, under_way: SumInProgress, lists: Unmask) -> tuple[Any, bytes]:
        """Reveal nothing: the sum stays masked for good. Keys for the next one are needed still."""
        return await exchange(UnmaskShares({}, {}, self._sums.next_keys(lists.survivors)))

    def _admit(self, groups: Sequence[Group], survivors: tuple[str, ...]) -> bool:
        """Let a sum over these survivors be opened, or not, before anything is revealed: step 4."""
        self._who.keep_only(survivors)
        self.survivors = survivors
        if self._only is not None and self._only != frozenset(survivors):
            return False
        self._who.require_cohort(groups)
        self._opened += 1
        what = _digest(groups, survivors)
        self._checkpoints.admit(self.round, self._opened, survivors, what)
        for hook in self._hooks:
            hook.admit(self._asked, survivors)
        return True


def _flat(values: Mapping[str, Any], me: str) -> dict[str, Vector]:
    """Values as vectors, in pieces; nothing that is not finite ever leaves."""
    flat: dict[str, Vector] = {}
    for name, value in sorted(values.items()):
        vector = np.ascontiguousarray(np.asarray(value, dtype=np.float32)).reshape(-1)
        if not np.isfinite(vector).all():
            raise TrainingError(
                f"{name} holds NaN or infinity, so nothing was sent",
                fix="lower the learning rate, set max_grad_norm, or look at this party's data",
                party=me,
            )
        flat |= pieces(name, vector) if vector.size > PART else {name: vector}
    return flat


def _digest(groups: Sequence[Group], survivors: Sequence[str]) -> str:
    """What is summed and over whom, the same when a round is repeated: a line for each group."""
    alive, by_owners = set(survivors), dict[tuple[str, ...], list[str]]()
    for group in groups:
        owners = tuple(sorted(alive.intersection(group.owners)))
        names = (f"{name} {vector.size}" for name, vector in group.vectors.items())
        by_owners.setdefault(owners, []).extend(names)
    return "\n".join(
        sorted(
            "\t".join((digest("\n".join(sorted(names)).encode()).hex(), *owners))
            for owners, names in by_owners.items()
        )
    )
