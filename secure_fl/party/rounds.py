"""A round as a party program sees it, and the interfaces of what a party keeps of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from secure_fl.protocol.messages import SurvivorStatement


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run: its number from 1, and the number of all rounds."""

    number: int
    total: int
    undone: int = 0  # earlier rounds that were undone, and are repeated

    @property
    def progress(self) -> float:
        """The share of the run that is over when this round ends, in (0, 1]."""
        return (self.number - self.undone) / self.total

    def at(self, step: int, steps: int) -> float:
        """Return the share of the run that is over in the middle of a step, counted from 0."""
        return (self.number - self.undone - 1 + (step + 0.5) / steps) / self.total


class Stateful(Protocol):
    """Anything whose state a checkpoint can keep: modules, optimisers, our own servers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore the state."""


class SavedRounds(Protocol):
    """The states of a party after its rounds."""

    def available(self) -> tuple[int, ...]:
        """Return the rounds that can be restored."""

    def save(self, round: int, keep: Mapping[str, Stateful], sums: Mapping[str, Any]) -> None:
        """Write one round, atomically."""

    def restore(self, round: int, keep: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load one round into `keep`, and return the state of the sums."""

    def roll_back(self, round: int) -> None:
        """Drop all later rounds: if they are repeated, they belong to another session."""

    def export(self, shared: Mapping[str, Stateful], sums: Mapping[str, Any]) -> bytes:
        """Encode the state for newcomers; equal states give equal bytes."""

    def adopt(self, data: bytes, shared: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load the state that another party exported, and return the state of the sums."""


class OpenedSums(Protocol):
    """A durable record of the members over which sums were opened."""

    def opened(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Return round, number of the last sum over the same members, and their names."""

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Record a sum before it is opened, or refuse it.

        A round that is repeated after a crash repeats its inputs. If its sums were opened over
        other members than before, the difference would reveal the input of one party. `what` is a
        digest of the sum's names and of their contributors.
        """

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Record the holders of a round after which newcomers join, or refuse the newcomers.

        The inputs of a newcomer are new: no earlier round may be opened again with them.
        """


class EvidenceLog(Protocol):
    """A durable record of signed statements, and of the evidence against members."""

    def convict(self, party: str, evidence: bytes) -> None:
        """Keep the evidence against a member, or against the coordinator."""

    def keep_statement(self, statement: SurvivorStatement) -> None:
        """Keep a list of survivors that the coordinator signed."""

    def statements(self) -> Sequence[SurvivorStatement]:
        """Return all of these lists, the last one at the end."""


class Checkpoints(SavedRounds, OpenedSums, EvidenceLog, Protocol):
    """All records of one party about the rounds of a run."""
