"""Chooses the subset to aggregate while searching for a poisoning party.

All parties take part until a round is refused. Then public random numbers divide the parties of
that round into two halves. The rounds that follow sum over one half at a time until one of them is
admitted, which clears that half. New halves are drawn from the new state, so that each clears half
of the remaining suspects. A party that remains alone, and was in at least two refused sums, is
excluded until a sum without it is refused as well. The search finds one party; several poisoning
parties end at the limit of the plan.

From one state, sums are opened over all parties that take part and over its two halves, and over
no other subsets. Together they reveal the sums over the halves, and nothing about smaller groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from secure_fl.seeds import seed_for

TWICE = 2  # refused sums that included a party, before it is excluded

Names: TypeAlias = tuple[str, ...]


class SubsetSearch:
    """The state of a search; it follows from the refused rounds, so it is equal at all parties."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.left_out: Names = ()
        self._suspects: Names = ()  # empty: no search is under way
        self._strikes: dict[str, int] = {}  # by suspect, the refused sums that included it
        self._halves: tuple[Names, ...] = ()  # of the parties that take part, from this state
        self._tried = 0  # number of halves that were summed; 2: all parties take part again
        self._first = 0  # votes against the first half

    def among(self, parties: Collection[str]) -> Names:
        """Return the parties whose updates the next sums add."""
        wanted: Collection[str] = set(parties) - set(self.left_out)
        if self._halves:
            both = self._halves[0] + self._halves[1]
            wanted = self._halves[self._tried] if self._tried < len(self._halves) else both
        return tuple(sorted(set(wanted) & set(parties)))

    def admitted(self, round: int, parties: Collection[str]) -> None:
        """Clear the parties of an admitted round, and choose the next subset."""
        among = self.among(parties)
        self._halves, self._tried = (), 0
        self._suspects = tuple(s for s in self._suspects if s not in among and s in parties)
        match self._suspects:
            case ():
                self._strikes = {}
            case (suspect,):  # with fewer strikes it may have been chance: all take part again
                if self._strikes.get(suspect, 0) >= TWICE:
                    self.left_out, self._suspects, self._strikes = (suspect,), (), {}
            case _:
                self._divide(round, self.among(parties))

    def refused(self, round: int, parties: Collection[str], against: int) -> None:
        """Suspect the parties of a refused round, and choose the next subset."""
        among = self.among(parties)
        for party in among:
            self._strikes[party] = self._strikes.get(party, 0) + 1
        if not self._halves:
            self.left_out = ()
            self._suspects = self._suspects or among
            self._divide(round, among)
        elif self._tried == 0:
            self._tried, self._first = 1, against
            self._suspects = tuple(s for s in self._suspects if s in among)
        elif self._tried == 1:  # one refusal was chance, or there are several poisoning parties
            self._tried, more = 2, against - self._first
            self._suspects = () if more == 0 else self._halves[int(more > 0)]
        else:  # repeat the same halves: from this state no others may be opened
            self._tried = 0
            self._suspects = self._suspects or among

    def _divide(self, round: int, among: Names) -> None:
        """Draw two halves that share the suspects; the half with fewer of them comes first."""

        def drawn(party: str) -> tuple[bool, int]:
            return party not in self._suspects, seed_for(self._seed, "guard", round, party)

        def suspected(half: Sequence[str]) -> int:
            return sum(party in self._suspects for party in half)

        order = sorted(among, key=drawn)
        first, second = sorted((order[0::2], order[1::2]), key=suspected)
        self._halves, self._tried = (tuple(first), tuple(second)), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for newcomers; it is equal at all parties."""
        return {
            "left_out": self.left_out,
            "suspects": self._suspects,
            "strikes": dict(sorted(self._strikes.items())),
            "halves": self._halves,
            "tried": self._tried,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.left_out, self._suspects = tuple(state["left_out"]), tuple(state["suspects"])
        self._strikes = dict(state["strikes"])
        self._halves = tuple(tuple(half) for half in state["halves"])
        self._tried, self._first = int(state["tried"]), int(state["first"])
