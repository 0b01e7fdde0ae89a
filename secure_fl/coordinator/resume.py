"""The coordinator chooses after which round a run goes on: the newest that harms nobody.

Two sums of the same inputs over different parties differ by somebody's input. So:

- a round of which a sum was opened is repeated by exactly the parties that were in it;
- a party that was lost between two sums of a round is in the first again, and left out of the
  second again;
- a newcomer, whose inputs are new, joins only after the last round that anybody began.

The parties' own notes (`party.opened_sums`) enforce this; here the run is only made to end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from secure_fl.errors import CohortError
from secure_fl.protocol.messages import JOINED, MOST_TOLD, Ready, SumId, Told
from secure_fl.protocol.survivor_log import of_offers
from secure_fl.thresholds import quorum

Notes: TypeAlias = list[tuple[int, frozenset[str]]]  # one party's of one round, in order of sums
_LAST_NUMBER = itemgetter(0)


class Unfinished(CohortError):  # noqa: N818 - it names a state
    """A round was begun by others than those who are here: it is theirs to finish."""

    def __init__(
        self,
        what: str,
        *,
        able: frozenset[str],
        began: frozenset[str],
        fix: str,
        told: tuple[Told, ...] = (),
        **where: object,
    ) -> None:
        """`able`: who could finish it without the others; `began`: who was in its sums.

        `told`: what members were told last of who was in sums, for all to compare.
        """
        super().__init__(what, fix=fix, **where)
        self.able, self.began, self.told = able, began, told


class OpenedSums(NamedTuple):
    """Consecutive sums of one round that were opened over the same parties.

    They begin after the entry before (or with the round's first sum), and end with `last_number`.
    """

    round: int
    last_number: int
    parties: frozenset[str]

    @property
    def last(self) -> SumId:
        """The last of these sums."""
        return self.round, self.last_number


class Continuation(NamedTuple):
    """How a run goes on."""

    after: int  # the round whose checkpoints are restored
    newcomers: tuple[str, ...] = ()  # members that have no checkpoint of it
    to_repeat: tuple[OpenedSums, ...] = ()  # sums that were opened after it, in their order


def continuation(ready: Mapping[str, Ready], host: str | None, threshold: int) -> Continuation:
    """Choose the round to go on after, who joins there, and who must be in which sum again.

    In this order: all repeat a round that all were in, or let newcomers join; some of them finish
    their round first, without the others (`Unfinished`); all repeat a round that lost somebody.
    """
    chosen = _all_go_on(ready, host, threshold)
    if chosen is not None:
        return chosen
    able = _who_can_finish(ready, host, threshold)
    if not able and (chosen := _repeat_with_losses(ready)):
        return chosen
    raise _nobody_can_go_on(ready, quorum(len(ready.keys() - {host}), threshold), able)


def unfinished(
    ready: Mapping[str, Ready], host: str | None, threshold: int
) -> tuple[int, frozenset[str]] | None:
    """The round that some, or all, of these must finish before everybody can go on, if any."""
    begun = _newest_begun(ready)
    try:
        chosen = continuation(ready, host, threshold)
    except Unfinished as error:
        return (begun, error.able) if begun and error.able else None
    loses_somebody = any(sums.parties != ready.keys() for sums in chosen.to_repeat)
    return (begun, frozenset(ready)) if loses_somebody else None


def _newest_begun(ready: Mapping[str, Ready]) -> int:
    """The newest round of which anybody opened a sum; 0: none was begun."""
    return max((round for m in ready.values() for round, *_ in m.opened), default=0)


def _all_go_on(ready: Mapping[str, Ready], host: str | None, threshold: int) -> Continuation | None:
    """Let all repeat the newest round whose sums all were in, or some join where none has begun."""
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
    first = sums_to_repeat(ready, begun)  # what comes before round 1: every resume repeats it
    if join is None or first is None or any(opened.parties != members for opened in first):
        return repeat
    if repeat is not None and join - repeat.after <= 1:
        return repeat  # parties are one round apart at most: whoever was there is there again
    lacking = sorted(m for m in ready if join not in ready[m].checkpoints)
    return Continuation(join, tuple(lacking), first)


def _repeat_with_losses(ready: Mapping[str, Ready]) -> Continuation | None:
    """Let all who were in a round's first sum repeat it; whoever was lost in it is lost again."""
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
    """The rounds that everybody holds and may repeat from, the newest first."""
    kept = [{0, *message.checkpoints} for message in ready.values()]
    joined = (round for m in ready.values() for round, sum, _ in m.opened if sum == JOINED)
    oldest = max(joined, default=0)
    return sorted((round for round in set.intersection(*kept) if round >= oldest), reverse=True)


def sums_to_repeat(ready: Mapping[str, Ready], after: int) -> tuple[OpenedSums, ...] | None:
    """The sums that were opened after this round; None if notes name different parties for one.

    A party may have noted fewer of a round's sums than another: a crash came between.
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
    """Over whom one party notes that a sum was opened: nothing if its notes end before it."""
    first = at = bisect_left(notes, number, key=_LAST_NUMBER)
    while at < len(notes) and notes[at][0] == notes[first][0]:
        yield notes[at][1]
        at += 1


def _who_can_finish(ready: Mapping[str, Ready], host: str | None, threshold: int) -> frozenset[str]:
    """Some of those present who, without the others, could finish the newest round they began."""
    begun: dict[frozenset[str], int] = {}  # who was in the first sum of a party's newest round
    for message in ready.values():
        if noted := [note for note in message.opened if note[1] != JOINED]:
            newest = max(round for round, *_ in noted)
            first = min(note for note in noted if note[0] == newest)
            begun[frozenset(first[2])] = max(newest, begun.get(frozenset(first[2]), 0))
    for parties in sorted(begun, key=lambda who: (-begun[who], sorted(who))):
        if parties < ready.keys():
            few = {m: ready[m] for m in parties}
            if few and (_all_go_on(few, host, threshold) or _repeat_with_losses(few)):
                return parties
    return frozenset()


def _nobody_can_go_on(ready: Mapping[str, Ready], needed: int, able: frozenset[str]) -> Unfinished:
    """The error that says which sums stand in the way, and who must come back for them."""
    begun = _newest_begun(ready)
    sets = {frozenset(who) for m in ready.values() for round, _, who in m.opened if round == begun}
    over = "; over ".join(", ".join(sorted(who)) for who in sorted(sets, key=sorted))
    what = (
        f"sums of round {begun} were opened over {over}, and fewer than the {needed} parties "
        f"needed hold it; repeated by {', '.join(sorted(ready))}, it would show somebody's input"
    )
    fix = (
        "resume with exactly the parties that began it, all who were in its first sum; when it "
        "is over, others can join (a few at a time), and some can leave"
    )
    if sums_to_repeat(ready, begun - 1) is None:
        what = (
            f"members say of one sum of round {begun} that it was opened over {over}; repeated, it "
            "would show somebody's input. The coordinator told them different things, "
            "at once or before and after it began anew, or one says what it was not told"
        )
        fix = (
            "read their logs: who learns that two stories were told names the coordinator, with "
            "evidence. If nobody does, compare the digests in their files told.jsonl: where two "
            "differ in one run and number, it was the coordinator, and else nobody can tell"
        )
    return Unfinished(
        what,
        able=able,
        began=frozenset[str]().union(*sets),
        fix=fix,
        told=of_offers(message.offer for message in ready.values())[:MOST_TOLD],
        round=begun or None,
    )


class Saved:
    """The newest round that each member said it has, over all gatherings of a run.

    Who says less later has lost it, or lies; if it does so at each gathering, all others would
    repeat their round for ever. A disk may be lost, so it counts as a failure (`pilot.toll`).
    """

    def __init__(self, newest: Mapping[str, int]) -> None:
        self._newest = dict(newest)
        self.lost: set[str] = set()  # who lacks what it had, and has saved nothing since

    def said(self, newest: Mapping[str, int]) -> list[str]:
        """Note what these say now, and return who said more before."""
        less = {party for party, round in newest.items() if round < self._newest.get(party, 0)}
        self.lost -= {party for party, round in newest.items() if round}
        self.lost |= less
        self._newest |= newest
        return sorted(less)

    def back_to(self, round: int, members: Iterable[str]) -> None:
        """All go on after this round: what is later is repeated, and let go of."""
        for member in members:
            self._newest[member] = min(round, self._newest.get(member, 0))
