"""The rounds of a run, as a party program iterates over them, and what a checkpoint can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from secure_fl.protocol.messages import SurvivorStatement


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run: its number from 1, and how many there will be."""

    number: int
    total: int
    undone: int = 0  # of the rounds before, and made up for

    @property
    def progress(self) -> float:
        """The share of the run that is over when this round ends, in (0, 1]."""
        return (self.number - self.undone) / self.total

    def at(self, step: int, steps: int) -> float:
        """The share of the run that is over amid a step (from 0) of so many in this round."""
        return (self.number - self.undone - 1 + (step + 0.5) / steps) / self.total


class Stateful(Protocol):
    """Anything whose state a checkpoint can keep: modules, optimisers, our own servers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Take the state back."""


class Checkpoints(Protocol):
    """Where a party keeps its rounds; `runs.py` implements it on disk."""

    def available(self) -> tuple[int, ...]:
        """Rounds that could be restored."""

    def opened(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Over whom sums were opened: round, number of the last sum over these, their names."""

    def let_in(self, after: int, holders: tuple[str, ...]) -> None:
        """Note, durably, that others join these after a round, or refuse.

        A newcomer's inputs are new: no round that was begun before may be opened again with them.
        """

    def save(self, round: int, keep: Mapping[str, Stateful], sums: Mapping[str, Any]) -> None:
        """Write one round, atomically."""

    def restore(self, round: int, keep: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load one round into `keep` and return the state of the sums."""

    def roll_back(self, round: int) -> None:
        """Let go of all later rounds: repeated, they are of another session than the others'."""

    def export(self, shared: Mapping[str, Stateful], sums: Mapping[str, Any]) -> bytes:
        """The state that newcomers are given: the same bytes wherever it is the same."""

    def adopt(self, data: bytes, shared: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load what another party exported, and return the state of the sums in it."""

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Note, durably, over whom a sum of a round is opened, and of what, or refuse.

        A round that is repeated after a crash repeats its inputs. Opened over other parties than
        the first time, the two sums would differ by somebody's input. `what` is a digest of its
        names and of who contributes them.
        """

    def convict(self, party: str, evidence: bytes) -> None:
        """Keep what convicts a member, or the coordinator: its input counts for nothing."""

    def heard(self, told: SurvivorStatement) -> None:
        """Keep what the coordinator signed of who is in a sum."""

    def told(self) -> Sequence[SurvivorStatement]:
        """All of that, the last at the end."""
