"""One party's side of its sums: sealed, perhaps unmasked, checked, opened.

Values are sent on a scale that all parties know. Where somebody does not know it, a sum of scales
comes first, and the values follow in a second one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import DISTRUST, CohortError
from secure_fl.events import EventLog
from secure_fl.party.exchange import Exchange, ask, expected
from secure_fl.party.groups import declared, flat, outline, whole
from secure_fl.party.members import Members
from secure_fl.party.rounds import Checkpoints
from secure_fl.protocol import messages
from secure_fl.protocol.arrays import cut
from secure_fl.protocol.ports import Group, PartySum, Rule

Arrays = dict[str, NDArray[np.float64]]


class Summing:
    """The sums of a run, one after the other."""

    def __init__(
        self, who: Members, sums: PartySum, checkpoints: Checkpoints, recorder: EventLog
    ) -> None:
        self._who, self._sums = who, sums
        self._checkpoints, self._recorder = checkpoints, recorder
        self.survivors: tuple[str, ...] = ()
        self._only: frozenset[str] | None = None  # over whom alone this sum may be opened
        self._scales = False  # whether the last sum was of scales, and its values follow
        self._opened = 0  # sums opened in this round
        self._carried: dict[str, tuple[int, ...]] = {}  # shapes of what this round's sums carried

    def begin_round(self) -> None:
        """Count the round's sums, and know the shapes of what they carry, from here on."""
        self._opened, self._carried = 0, {}

    async def sum(
        self,
        values: Mapping[str, Any],
        read: Mapping[str, Any],
        rule: Rule,
        *,
        partial: bool,
        together: bool,
    ) -> Arrays:
        """See `Cohort.sum`."""
        self._only = frozenset(self.survivors) if together else None
        if together and self._only != frozenset(self._who.here):
            return {}  # somebody left since: all know it, and nobody sends anything
        gives = {name: flat(name, value, self._who.me) for name, value in sorted(values.items())}
        reads = {name: np.zeros(math.prod(np.shape(v)), np.float32) for name, v in read.items()}
        if not partial:
            groups, lacking = whole(self._who, gives, reads, rule.audience), False
        else:
            groups, lacking = await declared(self._who, self._sums, gives, reads, rule, self._next)
        self._who.require_cohort(groups)
        scales = self._sums.unscaled(groups, rule)
        if scales or lacking:
            norms = await self._add(scales, Rule(), scales=True)
            if norms is None:
                return {}
            self._sums.learn(norms)
        opened = await self._add(groups, rule)
        while opened is not None and self._who.is_host and self._scales:
            opened = await self._add(groups, rule)  # the parties summed scales; values follow
        if opened is None:
            return {}
        shapes = {name: np.shape(value) for name, value in {**values, **read}.items()}
        if rule.carry:
            self._carried |= {name: shapes[name] for name in values}
        return {name: vector.reshape(shapes[name]) for name, vector in opened.items()}

    def leftover(self, name: str) -> NDArray[np.float32] | None:
        """See `Cohort.leftover`."""
        shape = self._carried.pop(name, None)
        if shape is None:
            return None
        rest = self._sums.leftover(name)
        return None if rest is None else rest.reshape(shape)

    async def _add(
        self, groups: Sequence[Group], rule: Rule, *, scales: bool = False
    ) -> Arrays | None:
        """One sum; None if it was not to be opened over those who are left."""
        with self._recorder.phase("seal"):
            sealed = self._sums.seal(groups, rule, self._next)
        message = messages.SumInput(rule.audience, sealed.segments, scales, self._next)
        answer, data = await Exchange(message, sealed.data)
        admitted = self._admit(groups, getattr(answer, "survivors", ()))
        if isinstance(answer, messages.Unmask):
            answer, data = await (self._unmask if admitted else self._withhold)(answer)
        total = expected(answer, messages.Total)
        if total.survivors != self.survivors:
            raise CohortError(
                "the coordinator changed its mind about who took part in a sum", fix=DISTRUST
            )
        if not self._who.is_host and total.scales != scales:
            raise CohortError("the coordinator mistakes a sum of values for one of scales")
        self._who.enter(total.members)
        self._scales = total.scales
        if not admitted:
            self._sums.accept(total.offers, total.members)
            return None
        with self._recorder.phase("open"):
            opened = self._sums.open(cut(data, total.sizes), total.survivors)
            self._sums.accept(total.offers, total.members)
        return opened

    @property
    def _next(self) -> messages.SumId:
        """Which sum comes next, as it will be noted: one that is withheld is not counted."""
        return self._recorder.round, self._opened + 1

    async def _unmask(self, lists: messages.Unmask) -> tuple[Any, bytes]:
        """Help to remove the masks of those who are in the sum."""
        with self._recorder.phase("unmask"):
            claim, confirmed = self._sums.confirm(lists), None
        if claim is not None:  # somebody is gone: all must have been told the same
            confirmed, _ = await ask(claim, messages.Confirmed)
        with self._recorder.phase("unmask"):
            reply = self._sums.reveal(lists, confirmed)
        return await Exchange(reply)

    async def _withhold(self, lists: messages.Unmask) -> tuple[Any, bytes]:
        """Reveal nothing: the sum stays masked for good. Keys for the next one are needed still."""
        return await Exchange(messages.UnmaskShares({}, {}, self._sums.offer(lists.survivors)))

    def _admit(self, groups: Sequence[Group], survivors: tuple[str, ...]) -> bool:
        """Let a sum over these survivors be opened, or not, before anything is revealed."""
        self._who.survive(survivors)
        self.survivors = survivors
        if self._only is not None and self._only != frozenset(survivors):
            return False
        self._who.require_cohort(groups)
        self._opened += 1
        what = outline(groups, survivors)
        self._checkpoints.admit(self._recorder.round, self._opened, survivors, what)
        return True
