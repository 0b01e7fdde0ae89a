"""The interface of optional features that act around the rounds of a run at one party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from secure_fl.party.members import Members
from secure_fl.party.rounds import Stateful
from secure_fl.party.sum_request import RoundSums
from secure_fl.protocol.ports import Transcript

States: TypeAlias = Mapping[str, Stateful]


class RoundHook:
    """Base class of hooks; every method does nothing, and a hook overrides those that it needs.

    All parties of a run have the same hooks in the same order, except hooks that form no sums.
    Methods are called in this order: `watch` once, then for each round `begin`, `contributors` and
    `admit` for each of its sums, and `end`; `close` after the last round; `report` at the end.
    """

    @property
    def undone(self) -> int:
        """Number of rounds that were undone and will be repeated."""
        return 0

    @property
    def stops(self) -> bool:
        """True if the run should end before the next round."""
        return False

    def watch(self, keep: States, shared: States, transcript: Transcript) -> tuple[States, States]:
        """Receive the program's states; return the hook's own states for the checkpoints.

        Both pairs hold this party's own states first, and then those that all parties share.
        """
        return {}, {}

    def begin(self) -> None:
        """Prepare for the round that begins now."""

    async def end(self, round: int, sums: RoundSums, members: Members) -> None:
        """Process a round that has ended and is not yet saved."""

    def close(self) -> None:
        """Finish after the last round, before the program delivers its model."""

    def contributors(self, parties: Sequence[str]) -> Sequence[str] | None:
        """Select the parties whose values a sum adds; None selects all of them."""
        return None

    def admit(self, questions: Sequence[str], survivors: Sequence[str]) -> None:
        """Record the members of a sum before anything of it is revealed; raise to refuse it."""

    def report(self) -> Mapping[str, Any]:
        """Return this hook's sections of result.json, by name."""
        return {}
