"""Over whom a party let sums be opened, written down before anything was revealed.

A round that is repeated after a crash repeats its inputs. Two sums of them over different parties
differ by somebody's input, so each sum of it is repeated over the same parties or not at all.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from secure_fl.errors import CohortError, RunError
from secure_fl.files import Lines, replace_whole
from secure_fl.protocol.messages import JOINED, MOST_NOTES


class OpenedSumsLog:
    """One party's notes, kept for good: any round may be repeated."""

    def __init__(self, file: Path) -> None:
        self._lines = Lines(file, "over whom a sum is opened")
        self.without = frozenset[str]()  # who was convicted: sums are repeated without their input

    @classmethod
    def kept(cls, beside: Path, elsewhere: Path | None) -> OpenedSumsLog:
        """The notes beside a run's rounds, or elsewhere; who began with the first moves them."""
        if elsewhere is not None and beside.exists() and not elsewhere.exists():
            try:
                elsewhere.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_whole(elsewhere, beside.read_bytes(), mode=0o600)
                beside.unlink()
            except OSError as error:
                raise RunError(
                    f"the notes of opened sums cannot be moved ({error.strerror})",
                    fix="free disk space, then start again; nothing was revealed",
                    file=elsewhere,
                    reason="unwritable",
                ) from error
        return cls(elsewhere or beside)

    def rounds(self, after: int = 0) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Round, number of a sum, over whom: of sums in a row over the same parties, the last.

        With `JOINED` in the place of the number: who held the round when others joined after it.
        Of rounds up to `after`, which nobody repeats, only what came before the first is told.
        """
        found = sorted({(round, number, who) for round, number, who, _ in self._entries()})
        told = (
            one
            for one, next in zip_longest(found, found[1:])
            if next is None or one[1] == JOINED or (one[0], one[2]) != (next[0], next[2])
        )
        return tuple(one for one in told if one[0] > after or one[0] == 0 or one[1] == JOINED)[
            -MOST_NOTES:
        ]

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Note over whom a sum is opened, and of what; a repeated round must open the same sums."""
        entries = self._entries()
        joined = max((after for after, sum, *_ in entries if sum == JOINED), default=0)
        if 0 < round <= joined:
            raise CohortError(
                f"somebody joined after round {joined}; this one is over for good",
                fix="resume after the newest round",
                round=round,
                field="round",
            )
        before = [(who, of) for at, sum, who, of in entries if (at, sum) == (round, number)]
        if not before:
            self._note(round, number, survivors, what)
        elif self._left(before[0][0]) != self._left(survivors):
            raise CohortError(
                "this round's inputs were sent before the crash, and a sum of them was "
                f"opened over {', '.join(before[0][0])}; over other parties, the "
                "difference would show somebody's input",
                fix="resume with exactly those parties",
                round=round,
                field="survivors",
            )
        elif self._honest(before[0][1]) != self._honest(what):
            raise CohortError(
                "this round's inputs were sent before the crash, and now another sum is asked for "
                "than then, or over other contributors; the difference would show somebody's input",
                fix="resume with the same settings; if these are the same, the coordinator is not "
                "to be trusted",
                round=round,
                field="sum",
            )

    def _left(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """These, but for who was convicted: what differs by its input shows nothing of others'."""
        return tuple(name for name in names if name not in self.without)

    def _honest(self, what: str) -> list[tuple[str, ...]]:
        """What was summed of whom, but for who was convicted."""
        return [self._left(tuple(line.split("\t"))) for line in what.split("\n")]

    def let_in(self, after: int, holders: tuple[str, ...]) -> None:
        """Note who held the round when others joined; what came before is never repeated."""
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
