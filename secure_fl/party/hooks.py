"""The interface of optional features that act around the rounds of a run at one party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from secure_fl.party.context import Members, RoundSums
from secure_fl.party.rounds import Stateful
from secure_fl.protocol.ports import TranscriptLayer

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

    @property
    def delivers(self) -> int | None:
        """The round of the state that `close` restored; None: the state after the last round."""
        return None

    def watch(
        self, keep: States, shared: States, transcript: TranscriptLayer
    ) -> tuple[States, States]:
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


class Snapshot:
    """A copy of states at one moment, to restore them later."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._copies: dict[str, Any] = {}

    def take(self) -> None:
        """Copy the states as they are now."""
        self._copies = {name: deepcopy(state.state_dict()) for name, state in self._states.items()}

    def restore(self) -> None:
        """Restore the last copy, if there is one."""
        for name, copy in self._copies.items():
            self._states[name].load_state_dict(deepcopy(copy))  # some keep the dict that they load

    def state_dict(self) -> dict[str, Any]:
        """Return the copy for checkpoints."""
        return dict(self._copies)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the copy that `state_dict` returned."""
        self._copies = dict(state)
