"""Whose moves a round sums while the parties look for the one whose moves they refuse.

Everybody takes part until a round is refused. Then public coins part all who were in it into two
halves, and the rounds that follow sum over one half at a time, until one is admitted: that half is
cleared. Halves are drawn anew from the new state, so that each clears half of those who are left.
Who is left at last, and was in every refused sum, at least two of them, is left out: until a sum
without it is refused, too. It is one party that is looked for; several end in the plan's limit.

From one state, sums are opened over all who take part and over its two halves, and over no others:
together they tell the sums over the halves, and nothing about fewer parties.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from secure_fl.seeds import seed_for

TWICE = 2  # refused sums that all had one party in them, before it is left out

Names = tuple[str, ...]


class Search:
    """The state of a search, equal at all parties: it follows from what was refused."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.left_out: Names = ()
        self._suspects: Names = ()  # empty: nobody is looked for
        self._strikes: dict[str, int] = {}  # refused sums that a suspect was in
        self._halves: tuple[Names, ...] = ()  # of all who take part, from this state on
        self._tried = 0  # of the halves; 2: all of them take part again
        self._first = 0  # votes against the first half

    def among(self, parties: Collection[str]) -> Names:
        """Whose moves the next sums are over."""
        wanted: Collection[str] = set(parties) - set(self.left_out)
        if self._halves:
            both = self._halves[0] + self._halves[1]
            wanted = self._halves[self._tried] if self._tried < len(self._halves) else both
        return tuple(sorted(set(wanted) & set(parties)))

    def admitted(self, round: int, parties: Collection[str]) -> None:
        """A round was admitted: whose moves were in it did nothing wrong."""
        among = self.among(parties)
        self._halves, self._tried = (), 0
        self._suspects = tuple(s for s in self._suspects if s not in among and s in parties)
        match self._suspects:
            case ():
                self._strikes = {}
            case (one,):  # with fewer strikes all take part again: it may have been chance
                if self._strikes.get(one, 0) >= TWICE:
                    self.left_out, self._suspects, self._strikes = (one,), (), {}
            case _:
                self._part(round, self.among(parties))

    def refused(self, round: int, parties: Collection[str], against: int) -> None:
        """A round was refused: look for the reason among those whose moves were in it."""
        among = self.among(parties)
        for party in among:
            self._strikes[party] = self._strikes.get(party, 0) + 1
        if not self._halves:
            self.left_out = ()
            self._suspects = self._suspects or among
            self._part(round, among)
        elif self._tried == 0:
            self._tried, self._first = 1, against
            self._suspects = tuple(s for s in self._suspects if s in among)
        elif self._tried == 1:  # chance refused one of them, or there are several
            self._tried, more = 2, against - self._first
            self._suspects = () if more == 0 else self._halves[int(more > 0)]
        else:  # and all of them once more: from this state there are no other halves
            self._tried = 0
            self._suspects = self._suspects or among

    def _part(self, round: int, among: Names) -> None:
        """Draw two halves that share the suspects; the one with fewer of them comes first."""

        def drawn(party: str) -> tuple[bool, int]:
            return party not in self._suspects, seed_for(self._seed, "guard", round, party)

        def suspected(half: Sequence[str]) -> int:
            return sum(party in self._suspects for party in half)

        order = sorted(among, key=drawn)
        first, second = sorted((order[0::2], order[1::2]), key=suspected)
        self._halves, self._tried = (tuple(first), tuple(second)), 0

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints, and for who joins late: it is equal at all."""
        return {
            "left_out": self.left_out,
            "suspects": self._suspects,
            "strikes": dict(sorted(self._strikes.items())),
            "halves": self._halves,
            "tried": self._tried,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.left_out, self._suspects = tuple(state["left_out"]), tuple(state["suspects"])
        self._strikes = dict(state["strikes"])
        self._halves = tuple(tuple(half) for half in state["halves"])
        self._tried, self._first = int(state["tried"]), int(state["first"])
