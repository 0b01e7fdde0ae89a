"""Who masks with whom in one sum, and how many shares recover a secret there. Public."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from secure_fl.crypto import masking
from secure_fl.crypto.primitives import digest_of
from secure_fl.thresholds import default_threshold


@dataclass(frozen=True, slots=True)
class _Named(Mapping[str, tuple[str, ...]]):
    """A graph of numbers read by names: a party looks up itself, and need not name everybody."""

    numbers: Mapping[str, int]  # of the graph's members
    names: Mapping[int, str]
    graph: masking.Graph
    everybody: frozenset[str]

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return tuple(self.names[number] for number in self.graph[self.numbers[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.values())

    def __len__(self) -> int:
        return len(self.names)

    def fewest(self, among: Collection[str]) -> tuple[str, int]:
        """Who of these has the fewest peers among them, and how many."""
        number, peers = self.graph.fewest([self.numbers[name] for name in among])
        return self.names[number], peers


@dataclass(frozen=True, slots=True)
class _Everybody(Mapping[str, tuple[str, ...]]):
    """The complete graph: a party looks up itself, and the others' lists are not made."""

    parties: tuple[str, ...]

    @property
    def everybody(self) -> frozenset[str]:
        """The parties as a set."""
        return frozenset(self.parties)

    def __getitem__(self, name: str) -> tuple[str, ...]:
        if name not in self.parties:
            raise KeyError(name)
        return tuple(other for other in self.parties if other != name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)

    def fewest(self, among: Collection[str]) -> tuple[str, int]:
        """Everybody masks with everybody."""
        return min(among), len(among) - 1


# What follows is public, and equal at all parties: those of one process share it.


@lru_cache(maxsize=4)
def numbered(members: tuple[str, ...]) -> Mapping[str, int]:
    """The members of a run, numbered from 1 in this order."""
    return MappingProxyType({name: number for number, name in enumerate(members, 1)})


@lru_cache(maxsize=8)
def parties_of(members: tuple[str, ...], host: str | None) -> frozenset[str]:
    """Who of the members masks: all but the host."""
    return frozenset(members) - {host}


@lru_cache(maxsize=4)
def _drawn(parties: tuple[str, ...], numbers: tuple[int, ...], seed: bytes) -> _Named:
    graph = masking.neighbours(sorted(numbers), seed)
    pairs = list(zip(parties, numbers, strict=True))
    names = {number: name for name, number in pairs}
    return _Named(dict(pairs), names, graph, frozenset(parties))


def forget() -> None:
    """Share nothing that was made so far (for who measures what a party alone would spend)."""
    for shared in (numbered, parties_of, _drawn):
        shared.cache_clear()


@dataclass(frozen=True, slots=True)
class Circle:
    """Who masks with whom in one sum, and how many shares recover a secret there."""

    numbers: Mapping[str, int]  # every member of the run, numbered from 1 in order of names
    neighbours: _Named | _Everybody
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
        seed = digest_of(b"secure-fl circle", f"{run} {index}".encode())
        graph = _drawn(parties, tuple(numbers[p] for p in parties), seed)
        return cls(numbers, graph, None, threshold)

    def shares_needed(self, party: str) -> int:
        """How many shares recover a secret of this party (its neighbours and itself hold them)."""
        if self.threshold is not None:
            return self.threshold
        return default_threshold(len(self.neighbours[party]) + 1)
