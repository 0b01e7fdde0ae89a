"""Choice of the round after which a run continues: the newest one that reveals no single input.

Two sums of the same inputs over different parties differ by one party's input. Therefore:

- a round with an opened sum is repeated by exactly the parties of that sum;
- a party that was lost between two sums of a round is in the first sum again, and excluded from
  the second again;
- a newcomer, whose inputs are new, joins only after the last round that any party began.

Each party enforces this with its own notes (`runs.party_checkpoints`). The coordinator only finds a
round that all parties will accept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from secure_fl.errors import CohortError
from secure_fl.protocol.frames import statements_of
from secure_fl.protocol.messages import JOINED, MOST_STATEMENTS, Ready, SumId, SurvivorStatement
from secure_fl.thresholds import quorum

Notes: TypeAlias = list[tuple[int, frozenset[str]]]  # of one party and round, in order of sums
_LAST_NUMBER = itemgetter(0)


class Unfinished(CohortError):  # noqa: N818 - it names a state
    """Error of a round that other parties than the present ones began and must finish."""

    def __init__(
        self,
        what: str,
        *,
        able: frozenset[str],
        began: frozenset[str],
        fix: str,
        statements: tuple[SurvivorStatement, ...] = (),
        **where: object,
    ) -> None:
        """`able`: parties that could finish it without the others; `began`: parties of its sums.

        `statements`: the last survivor statement of each member, for all to compare.
        """
        super().__init__(what, fix=fix, **where)
        self.able, self.began, self.statements = able, began, statements


class OpenedSums(NamedTuple):
    """Consecutive sums of one round that were opened over the same parties.

    The first of them follows the entry before (or is the round's first sum), and the last one has
    `last_number`.
    """

    round: int
    last_number: int
    parties: frozenset[str]

    @property
    def last(self) -> SumId:
        """The last of these sums."""
        return self.round, self.last_number


class Continuation(NamedTuple):
    """The chosen round, and what follows from the choice."""

    after: int  # the round whose checkpoints are restored
    newcomers: tuple[str, ...] = ()  # members without a checkpoint of it
    to_repeat: tuple[OpenedSums, ...] = ()  # sums that were opened after it, in order


def continuation(ready: Mapping[str, Ready], host: str | None, threshold: int) -> Continuation:
    """Choose the round after which all continue, the newcomers, and the sums to repeat.

    Options in this order: all repeat a round that all took part in, or newcomers join; some parties
    finish their round first without the others (`Unfinished`); all repeat a round with dropouts.
    """
    chosen = _all_continue(ready, host, threshold)
    if chosen is not None:
        return chosen
    able = _who_can_finish(ready, host, threshold)
    if not able and (chosen := _repeat_with_losses(ready)):
        return chosen
    raise _cannot_continue(ready, quorum(len(ready.keys() - {host}), threshold), able)


def require_evidence(
    ready: Mapping[str, Ready], named: frozenset[str], to_repeat: Sequence[OpenedSums]
) -> None:
    """Raise an error if a member would refuse a sum without a convicted one, which it opened.

    A member omits only those from its notes that it convicted by evidence of its own.
    """
    rounds = {sums.round for sums in to_repeat}
    noted = {
        member: {party for round, _, parties in one.opened if round in rounds for party in parties}
        for member, one in ready.items()
    }
    refusing = sorted(member for member, parties in noted.items() if parties & named)
    if not refusing:
        return
    began = frozenset[str]().union(*noted.values())
    raise Unfinished(
        f"sums to repeat were opened with {', '.join(sorted(began & named))}, which is "
        f"convicted; {', '.join(refusing)} have no evidence of that, and refuse sums without it",
        able=frozenset(),
        began=began,
        fix="start a new run with another seed, without the convicted member",
        round=max(rounds),
    )


def unfinished(
    ready: Mapping[str, Ready], host: str | None, threshold: int
) -> tuple[int, frozenset[str]] | None:
    """Return the round that must be finished first, and the parties that finish it, if any."""
    begun = _newest_begun(ready)
    try:
        chosen = continuation(ready, host, threshold)
    except Unfinished as error:
        return (begun, error.able) if begun and error.able else None
    loses_somebody = any(sums.parties != ready.keys() for sums in chosen.to_repeat)
    return (begun, frozenset(ready)) if loses_somebody else None


def _newest_begun(ready: Mapping[str, Ready]) -> int:
    """Return the newest round with an opened sum; 0: none was begun."""
    return max((round for m in ready.values() for round, *_ in m.opened), default=0)


def _all_continue(
    ready: Mapping[str, Ready], host: str | None, threshold: int
) -> Continuation | None:
    """Repeat the newest round that all took part in, or let newcomers join where none has begun."""
    members, begun = frozenset(ready), _newest_begun(ready)
    repeat = next(
        (
            Continuation(after, (), sums)
            for after in _held_by_all(ready)
            if (sums := sums_to_repeat(ready, after)) is not None
            and all(opened.parties == members for opened in sums)
        ),
        None,
    )
    parties = [m for m in ready if m != host]
    held = Counter(round for m in parties for round in {*ready[m].checkpoints} - {0})
    needed = quorum(len(parties), threshold)
    join = max((r for r, count in held.items() if count >= needed and r >= begun), default=None)
    first = sums_to_repeat(ready, begun)  # sums before round 1: every resume repeats them
    if join is None or first is None or any(opened.parties != members for opened in first):
        return repeat
    if repeat is not None and join - repeat.after <= 1:
        return repeat  # parties are at most one round apart: nobody needs to join
    lacking = sorted(m for m in ready if join not in ready[m].checkpoints)
    return Continuation(join, tuple(lacking), first)


def _repeat_with_losses(ready: Mapping[str, Ready]) -> Continuation | None:
    """Repeat a round with all parties of its first sum; its dropouts drop out again."""
    members = frozenset(ready)
    for after in _held_by_all(ready):
        sums = sums_to_repeat(ready, after)
        if (
            sums
            and all(opened.parties == members for opened in sums if opened.round == 0)
            and sums[0].parties == members
            and all(later.parties <= opened.parties for opened, later in pairwise(sums))
        ):
            return Continuation(after, (), sums)
    return None


def _held_by_all(ready: Mapping[str, Ready]) -> list[int]:
    """Return the rounds that all parties hold and may repeat from, the newest first."""
    kept = [{0, *message.checkpoints} for message in ready.values()]
    joined = (round for m in ready.values() for round, sum, _ in m.opened if sum == JOINED)
    oldest = max(joined, default=0)
    return sorted((round for round in set.intersection(*kept) if round >= oldest), reverse=True)


def sums_to_repeat(ready: Mapping[str, Ready], after: int) -> tuple[OpenedSums, ...] | None:
    """Return the sums opened after this round; None if notes name different parties for one sum.

    After a crash a party may have noted fewer sums of a round than another.
    """
    notes_by_round: dict[int, list[Notes]] = {}
    for message in ready.values():
        mine: dict[int, set[tuple[int, frozenset[str]]]] = {}
        for round, last_number, names in message.opened:
            if last_number != JOINED and (round > after or round == 0):
                mine.setdefault(round, set()).add((last_number, frozenset(names)))
        for round, noted in mine.items():
            notes_by_round.setdefault(round, []).append(sorted(noted, key=_LAST_NUMBER))
    sums: list[OpenedSums] = []
    for round, notes in sorted(notes_by_round.items()):
        for number in sorted({last for noted in notes for last, _ in noted}):
            parties = {names for noted in notes for names in _parties_of_sum(noted, number)}
            if len(parties) > 1:
                return None
            sums.append(OpenedSums(round, number, *parties))
    return tuple(sums)


def _parties_of_sum(notes: Notes, number: int) -> Iterator[frozenset[str]]:
    """Yield the parties of a sum as one party noted them; nothing if its notes end before it."""
    first = at = bisect_left(notes, number, key=_LAST_NUMBER)
    while at < len(notes) and notes[at][0] == notes[first][0]:
        yield notes[at][1]
        at += 1


def _who_can_finish(ready: Mapping[str, Ready], host: str | None, threshold: int) -> frozenset[str]:
    """Return parties that could finish the newest round they began without the others."""
    begun: dict[frozenset[str], int] = {}  # by the parties of a newest round's first sum
    for message in ready.values():
        if noted := [note for note in message.opened if note[1] != JOINED]:
            newest = max(round for round, *_ in noted)
            first = min(note for note in noted if note[0] == newest)
            begun[frozenset(first[2])] = max(newest, begun.get(frozenset(first[2]), 0))
    for parties in sorted(begun, key=lambda who: (-begun[who], sorted(who))):
        if parties < ready.keys():
            few = {m: ready[m] for m in parties}
            if few and (_all_continue(few, host, threshold) or _repeat_with_losses(few)):
                return parties
    return frozenset()


def _cannot_continue(ready: Mapping[str, Ready], needed: int, able: frozenset[str]) -> Unfinished:
    """Build the error that names the opened sums, and the parties that must come back for them."""
    begun = _newest_begun(ready)
    sets = {frozenset(who) for m in ready.values() for round, _, who in m.opened if round == begun}
    over = "; over ".join(", ".join(sorted(who)) for who in sorted(sets, key=sorted))
    what = (
        f"sums of round {begun} were opened over {over}, and fewer than the {needed} parties "
        f"needed hold it; repeated by {', '.join(sorted(ready))}, it would show somebody's input"
    )
    fix = (
        "resume with exactly the parties that began it (all parties of its first sum); after it, "
        "others can join, a few at a time, and some can leave"
    )
    if sums_to_repeat(ready, begun - 1) is None:
        what = (
            f"members noted different parties for one sum of round {begun}, opened over {over}; "
            "repeated, it would show somebody's input. The coordinator "
            "told them different things, at once or before and after a restart, or a member's note "
            "is false"
        )
        fix = (
            "read their logs: a member that finds two contradicting statements names the "
            "coordinator, with evidence. If none does, compare the digests in their files "
            "told.jsonl: two that differ in one run and number convict the coordinator; otherwise "
            "nobody can tell"
        )
    return Unfinished(
        what,
        able=able,
        began=frozenset[str]().union(*sets),
        fix=fix,
        statements=statements_of(message.offer for message in ready.values())[:MOST_STATEMENTS],
        round=begun or None,
    )


class SavedRounds:
    """The newest round that each member reported as saved, over all sessions of a run.

    A member that reports less later has lost its disk, or lies. If it did so in each session, the
    others would repeat their round for ever, so each time counts as a failure
    (`pilot.member_faults`).
    """

    def __init__(self, newest: Mapping[str, int]) -> None:
        self._newest = dict(newest)
        self.lost: set[str] = set()  # members that reported less, and have saved nothing since

    def update(self, newest: Mapping[str, int]) -> list[str]:
        """Store these reports, and return the members that reported more before."""
        less = {party for party, round in newest.items() if round < self._newest.get(party, 0)}
        self.lost -= {party for party, round in newest.items() if round}
        self.lost |= less
        self._newest |= newest
        return sorted(less)

    def back_to(self, round: int, members: Iterable[str]) -> None:
        """Forget later rounds: all members continue after this round."""
        for member in members:
            self._newest[member] = min(round, self._newest.get(member, 0))
