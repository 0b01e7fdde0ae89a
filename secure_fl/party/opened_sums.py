"""A party's record of the members over which sums were opened, written before they are revealed.

A round that is repeated after a crash repeats its inputs. Two sums of them over different parties
differ by the input of one party, so each sum is repeated over the same parties or not at all.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from secure_fl.errors import CohortError, RunError
from secure_fl.files import Lines, replace_whole
from secure_fl.protocol.messages import JOINED, MOST_NOTES


class OpenedSumsLog:
    """The record of one party; it is never deleted, since any round may be repeated."""

    def __init__(self, file: Path) -> None:
        self._lines = Lines(file, "over whom a sum is opened")
        self.without = frozenset[str]()  # convicted members: sums are repeated without their input

    @classmethod
    def kept(cls, beside: Path, elsewhere: Path | None) -> OpenedSumsLog:
        """Open the record in the run's folder, or at another place, to which it is then moved."""
        if elsewhere is not None and beside.exists() and not elsewhere.exists():
            try:
                elsewhere.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_whole(elsewhere, beside.read_bytes(), mode=0o600)
                beside.unlink()
            except OSError as error:
                raise RunError(
                    f"the record of opened sums cannot be moved ({error.strerror})",
                    fix="free disk space, then start again; nothing was revealed",
                    file=elsewhere,
                    reason="unwritable",
                ) from error
        return cls(elsewhere or beside)

    def rounds(self, after: int = 0) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Return round, number of a sum and members, for the last of equal entries in a row.

        With `JOINED` as the number, the members are the holders of the round when others joined.
        Rounds up to `after` are not repeated, so only their `JOINED` entries and round 0 remain.
        """
        sums = sorted({(round, number, members) for round, number, members, _ in self._entries()})
        last = [
            (round, number, members)
            for (round, number, members), next in zip_longest(sums, sums[1:])
            if next is None or number == JOINED or (round, members) != (next[0], next[2])
        ]
        needed = [sum for sum in last if sum[0] > after or sum[0] == 0 or sum[1] == JOINED]
        return tuple(needed[-MOST_NOTES:])

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Record a sum before it is opened; a repeated round must open the same sums."""
        entries = self._entries()
        joined = max((after for after, sum, *_ in entries if sum == JOINED), default=0)
        if 0 < round <= joined:
            raise CohortError(
                f"a party joined after round {joined}, so this round cannot be repeated",
                fix="resume after the newest round",
                round=round,
                field="round",
            )
        before = [entry[2:] for entry in entries if entry[:2] == (round, number)]
        if not before:
            self._note(round, number, survivors, what)
        elif self._left(before[0][0]) != self._left(survivors):
            raise CohortError(
                "this round's inputs were sent before the crash, and a sum of them was "
                f"opened over {', '.join(before[0][0])}; over other parties, the "
                "difference would reveal the input of one of them",
                fix="resume with exactly those parties",
                round=round,
                field="survivors",
            )
        elif self._honest(before[0][1]) != self._honest(what):
            raise CohortError(
                "this round's inputs were sent before the crash, and this sum is of other values "
                "or of other contributors; the difference would reveal the input of one of them",
                fix="resume with the same settings; if they are the same, do not trust the "
                "coordinator",
                round=round,
                field="sum",
            )

    def _left(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names without convicted members, whose inputs reveal nothing about others."""
        return tuple(name for name in names if name not in self.without)

    def _honest(self, what: str) -> list[tuple[str, ...]]:
        """Return the contributors of each group, without convicted members."""
        return [self._left(tuple(line.split("\t"))) for line in what.split("\n")]

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Record the holders of a round after which others join; refuse it after a later sum."""
        if later := [round for round, *_ in self.rounds() if round > after]:
            raise CohortError(
                f"sums of round {later[0]} were opened before, so nobody can join after {after}",
                fix="finish that round with exactly the parties that began it",
                round=after,
            )
        self._note(after, JOINED, holders)

    def _note(self, round: int, number: int, survivors: tuple[str, ...], what: str = "") -> None:
        self._lines.append({"round": round, "sum": number, "survivors": survivors, "what": what})

    def _entries(self) -> list[tuple[int, int, tuple[str, ...], str]]:
        return [
            (line["round"], line["sum"], tuple(line["survivors"]), line["what"])
            for line in self._lines
        ]
