"""Who masks with whom in one sum, and how many shares recover a secret there. Public."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from secure_fl.crypto import masking
from secure_fl.crypto.primitives import digest_of
from secure_fl.thresholds import default_threshold


@dataclass(frozen=True, slots=True)
class _Named(Mapping[str, tuple[str, ...]]):
    """A graph of numbers read by names: a party looks up itself, and need not name everybody."""

    numbers: Mapping[str, int]
    names: Mapping[int, str]  # of the graph's members
    graph: Mapping[int, tuple[int, ...]]

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return tuple(self.names[number] for number in self.graph[self.numbers[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.values())

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class _Everybody(Mapping[str, tuple[str, ...]]):
    """The complete graph: a party looks up itself, and the others' lists are not made."""

    parties: tuple[str, ...]

    def __getitem__(self, name: str) -> tuple[str, ...]:
        if name not in self.parties:
            raise KeyError(name)
        return tuple(other for other in self.parties if other != name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)


@dataclass(frozen=True, slots=True)
class Circle:
    """Who masks with whom in one sum, and how many shares recover a secret there."""

    numbers: Mapping[str, int]  # every member of the run, numbered from 1 in order of names
    neighbours: Mapping[str, tuple[str, ...]]
    threshold: int | None  # of shares; None: by the size of each neighbourhood
    quorum: int  # of parties: a sum over fewer is never unmasked

    @classmethod
    def of(
        cls,
        members: Sequence[str],
        host: str | None,
        numbers: Mapping[str, int],
        threshold: int,
        run: str,
        index: int,
    ) -> Circle:
        """The graph for the members of this sum: everybody up to 32, k-regular beyond."""
        parties = tuple(sorted(m for m in members if m != host))
        if len(parties) <= masking.COMPLETE:
            return cls(numbers, _Everybody(parties), threshold, threshold)
        names = {numbers[p]: p for p in parties}
        graph = masking.neighbours(
            sorted(names), digest_of(b"secure-fl circle", f"{run} {index}".encode())
        )
        return cls(numbers, _Named(numbers, names, graph), None, threshold)

    def shares_needed(self, party: str) -> int:
        """How many shares recover a secret of this party (its neighbours and itself hold them)."""
        if self.threshold is not None:
            return self.threshold
        return default_threshold(len(self.neighbours[party]) + 1)
