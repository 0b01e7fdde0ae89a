"""After which round a run goes on: the newest that can be repeated, or joined, without harm.

Two sums of the same inputs over different parties differ by somebody's input. So a round of which
a sum was opened may begin again only with exactly those who were in it, and newcomers, whose inputs
are new, may join only after the last round that was begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from secure_fl.errors import CohortError
from secure_fl.thresholds import quorum
from secure_fl.wire import Ready


class Unfinished(CohortError):  # noqa: N818 - it names a state
    """A round was begun by others than those who are here: it is theirs to finish."""

    def __init__(
        self, what: str, *, able: frozenset[str], began: frozenset[str], fix: str, **where: object
    ) -> None:
        """`able`: who could go on, were the others not there; `began`: who was in its sums."""
        super().__init__(what, fix=fix, **where)
        self.able, self.began = able, began


def continuation(
    ready: Mapping[str, Ready], host: str | None, threshold: int
) -> tuple[int, tuple[str, ...]]:
    """The round to go on after, and who has no checkpoint of it."""
    members = set(ready)
    kept = {m: {0, *message.checkpoints} for m, message in ready.items()}
    opened = {(round, frozenset(who)) for m in ready.values() for round, who in m.opened}
    # What comes before the first round is repeated by every resume.
    others = {round for round, who in opened if who != members}
    common = [
        round
        for round in set.intersection(*kept.values())
        if not others or (round >= max(others) and min(others) > 0)
    ]
    parties = [m for m in ready if m != host]
    held = Counter(round for m in parties for round in kept[m] - {0})
    begun = max((round for round, _ in opened), default=0)
    joinable = [
        round
        for round, count in held.items()
        if count >= quorum(len(parties), threshold) and round >= begun and min(others, default=1)
    ]
    repeat, join = max(common, default=None), max(joinable, default=None)
    if repeat is not None and (join is None or join - repeat <= 1):
        return repeat, ()  # parties are one round apart at most: whoever was there is there again
    if join is not None:
        return join, tuple(sorted(m for m in ready if join not in kept[m]))
    began = {frozenset(who) for round, who in opened if round == begun}
    able = (who for who in sorted(began, key=sorted) if who < members)
    raise _stuck(
        begun,
        began,
        members,
        quorum(len(parties), threshold),
        next((who for who in able if _possible(ready, who, host, threshold)), frozenset()),
    )


def unfinished(
    ready: Mapping[str, Ready], host: str | None, threshold: int
) -> tuple[int, frozenset[str]] | None:
    """The round that some of these must finish on their own before the others can join, if any."""
    try:
        continuation(ready, host, threshold)
    except Unfinished as error:
        round = max((round for m in ready.values() for round, _ in m.opened), default=0)
        return (round, error.able) if round and error.able else None
    return None


def _possible(
    ready: Mapping[str, Ready], who: frozenset[str], host: str | None, threshold: int
) -> bool:
    """Whether these could go on if nobody else were there."""
    try:
        continuation({m: ready[m] for m in who}, host, threshold)
    except CohortError:
        return False
    return True


def _stuck(
    begun: int,
    sets: set[frozenset[str]],
    members: set[str],
    needed: int,
    able: frozenset[str],
) -> Unfinished:
    began = frozenset[str]().union(*sets)
    return Unfinished(
        f"sums of round {begun} were opened over {', '.join(sorted(began))}, and fewer than the "
        f"{needed} parties needed hold it; repeated by {', '.join(sorted(members))}, it would show "
        "somebody's input",
        able=able,
        began=began,
        fix="resume with exactly the parties that began it; when it is over, others can join (a "
        "few at a time), and some can leave",
        round=begun or None,
    )
