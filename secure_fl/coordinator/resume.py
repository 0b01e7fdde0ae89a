"""After which round a run goes on: the newest that can be repeated, or joined, without harm.

Two sums of the same inputs over different parties differ by somebody's input. So a round of which
a sum was opened may begin again only with exactly those who were in it, and newcomers, whose inputs
are new, may join only after the last round that was begun. Who was lost between two sums of a round
is in the first of them again, and is left out of the second again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from secure_fl.errors import CohortError
from secure_fl.protocol.messages import JOINED, Ready
from secure_fl.thresholds import quorum

Notes: TypeAlias = list[tuple[int, frozenset[str]]]  # of one party and one round, in their order
_UPTO = itemgetter(0)


class Unfinished(CohortError):  # noqa: N818 - it names a state
    """A round was begun by others than those who are here: it is theirs to finish."""

    def __init__(
        self, what: str, *, able: frozenset[str], began: frozenset[str], fix: str, **where: object
    ) -> None:
        """`able`: who could go on, were the others not there; `began`: who was in its sums."""
        super().__init__(what, fix=fix, **where)
        self.able, self.began = able, began


class OpenedSums(NamedTuple):
    """Over whom sums of a round were opened: up to this number, from the entry before on."""

    round: int
    upto: int
    who: frozenset[str]


class Continuation(NamedTuple):
    """How a run goes on."""

    after: int  # this round
    newcomers: tuple[str, ...] = ()  # who has no checkpoint of it
    again: tuple[OpenedSums, ...] = ()  # the sums that are repeated, in their order


def continuation(ready: Mapping[str, Ready], host: str | None, threshold: int) -> Continuation:
    """The round to go on after, who joins there, and who must be in which sum again."""
    found = _with_all(ready, host, threshold)
    if found is not None:
        return found
    able = _able(ready, host, threshold)
    if not able and (found := _leaving_out(ready)):
        return found
    raise _stuck(ready, quorum(len(ready.keys() - {host}), threshold), able)


def unfinished(
    ready: Mapping[str, Ready], host: str | None, threshold: int
) -> tuple[int, frozenset[str]] | None:
    """The round that some, or all, of these must finish before everybody can go on, if any."""
    begun = max((round for m in ready.values() for round, *_ in m.opened), default=0)
    try:
        found = continuation(ready, host, threshold)
    except Unfinished as error:
        return (begun, error.able) if begun and error.able else None
    leaves = any(sums.who != ready.keys() for sums in found.again)
    return (begun, frozenset(ready)) if leaves else None


def _with_all(ready: Mapping[str, Ready], host: str | None, threshold: int) -> Continuation | None:
    """Repeat what all were in, or let some join where nothing has begun."""
    members = frozenset(ready)
    begun = max((round for m in ready.values() for round, *_ in m.opened), default=0)
    repeat = next(
        (
            Continuation(after, (), again)
            for after in _common(ready)
            if (again := repeated(ready, after)) is not None
            and all(sums.who == members for sums in again)
        ),
        None,
    )
    parties = [m for m in ready if m != host]
    held = Counter(round for m in parties for round in {*ready[m].checkpoints} - {0})
    needed = quorum(len(parties), threshold)
    join = max((r for r, count in held.items() if count >= needed and r >= begun), default=None)
    first = repeated(ready, begun)  # what comes before the first round: every resume repeats it
    if join is None or first is None or any(sums.who != members for sums in first):
        return repeat
    if repeat is not None and join - repeat.after <= 1:
        return repeat  # parties are one round apart at most: whoever was there is there again
    lacking = sorted(m for m in ready if join not in ready[m].checkpoints)
    return Continuation(join, tuple(lacking), first)


def _leaving_out(ready: Mapping[str, Ready]) -> Continuation | None:
    """Repeat a round with all who were in its first sum, and leave out again who was lost in it."""
    members = frozenset(ready)
    for after in _common(ready):
        again = repeated(ready, after)
        if (
            again
            and all(sums.who == members for sums in again if sums.round == 0)
            and again[0].who == members
            and all(later.who <= sums.who for sums, later in pairwise(again))
        ):
            return Continuation(after, (), again)
    return None


def _common(ready: Mapping[str, Ready]) -> list[int]:
    """The rounds that everybody holds and may repeat from, the newest first."""
    kept = [{0, *message.checkpoints} for message in ready.values()]
    joined = (round for m in ready.values() for round, sum, _ in m.opened if sum == JOINED)
    oldest = max(joined, default=0)
    return sorted((round for round in set.intersection(*kept) if round >= oldest), reverse=True)


def repeated(ready: Mapping[str, Ready], after: int) -> tuple[OpenedSums, ...] | None:
    """The sums that are opened again after this round; None: one was, over different parties.

    Some may have noted fewer of a round's sums than others: a crash came between.
    """
    told: dict[int, list[Notes]] = {}
    for message in ready.values():
        mine: dict[int, set[tuple[int, frozenset[str]]]] = {}
        for round, upto, who in message.opened:
            if upto != JOINED and (round > after or round == 0):
                mine.setdefault(round, set()).add((upto, frozenset(who)))
        for round, sums in mine.items():
            told.setdefault(round, []).append(sorted(sums, key=_UPTO))
    found: list[OpenedSums] = []
    for round, notes in sorted(told.items()):
        for number in sorted({upto for sums in notes for upto, _ in sums}):
            over = {who for sums in notes for who in _over(sums, number)}
            if len(over) > 1:
                return None
            found.append(OpenedSums(round, number, *over))
    return tuple(found)


def _over(notes: Notes, number: int) -> Iterator[frozenset[str]]:
    """Over whom one party says that a sum was opened: nothing, if it has noted fewer."""
    first = at = bisect_left(notes, number, key=_UPTO)
    while at < len(notes) and notes[at][0] == notes[first][0]:
        yield notes[at][1]
        at += 1


def _able(ready: Mapping[str, Ready], host: str | None, threshold: int) -> frozenset[str]:
    """Who could go on if nobody else were there: of those who began the newest round, if any."""
    told = {(round, frozenset(who)) for m in ready.values() for round, _, who in m.opened}
    for _, who in sorted(told, key=lambda one: (-one[0], sorted(one[1]))):
        if who < ready.keys():
            few = {m: ready[m] for m in who}
            if few and (_with_all(few, host, threshold) or _leaving_out(few)):
                return who
    return frozenset()


def _stuck(ready: Mapping[str, Ready], needed: int, able: frozenset[str]) -> Unfinished:
    begun = max((round for m in ready.values() for round, *_ in m.opened), default=0)
    sets = {frozenset(who) for m in ready.values() for round, _, who in m.opened if round == begun}
    over = "; over ".join(", ".join(sorted(who)) for who in sorted(sets, key=sorted))
    return Unfinished(
        f"sums of round {begun} were opened over {over}, and fewer than the {needed} parties "
        f"needed hold it; repeated by {', '.join(sorted(ready))}, it would show somebody's input",
        able=able,
        began=frozenset[str]().union(*sets),
        fix="resume with exactly the parties that began it, all who were in its first sum; when it "
        "is over, others can join (a few at a time), and some can leave",
        round=begun or None,
    )
