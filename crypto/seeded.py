"""Sums of seeded ciphertexts in half their size: the first halves' sum, and all the seeds.

    (c0, seed) + (c0', seed') + ...  =  (c0 + c0' + ..., expand(seed) + expand(seed') + ...)

A full total is 57.3 KB a ciphertext; here it is the sum of the first halves with one seed of 64
bytes for each contributor, 28.7 KB and 64·n, and whoever opens it expands and adds. The coordinator
never expands: it reads and adds an upload in 0.05 ms instead of 0.16. One byte for scheme and kind,
as in `crypto.public`, then the half, then the seeds: a seeded upload is the sum of one.

Nothing more is told. The second half of an encryption under a secret key is uniform, drawn from a
seed that has nothing to do with key, noise or value, and public by construction: it crosses the
wire with the upload. Seeds are sorted, so that not even the order of the parties is told. Wrong
seeds open to noise, as a wrong half would, and the tags refuse them.

At most `MOST_SEEDS`, because expanding and adding a seed takes 0.15 ms (measured): with 16 that is
2.3 ms of an opening party's CPU per ciphertext, and the 27.6 KB saved take 2.2 ms on a line of 100
Mbit/s. Where a party's own such line is the bottleneck, 16 breaks even and fewer are a gain; where
it is the coordinator's, which sends n such totals, even 16 are a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tenseal import sealapi

from secure_fl.crypto.public import PublicContext, Sum, mark, parse
from secure_fl.crypto.raw import SEED_BYTES, WORD_BYTES, MemoryFile, SealForm, malformed
from secure_fl.crypto.scheme import Slots

MOST_SEEDS = 16


class SeededSum:
    """A running sum of at most `MOST_SEEDS` seeded uploads."""

    __slots__ = ("_halves", "_seeds")

    def __init__(self, context: PublicContext) -> None:
        self._halves = _FirstHalves(context)
        self._seeds: list[list[bytes]] = []

    def add(self, parts: Sequence[bytes]) -> None:
        """Add an upload; if any of its ciphertexts is malformed, the sum is unchanged."""
        self._halves.add(parts)
        self._seeds.append([part[-SEED_BYTES:] for part in parts])

    def subtract_plain(self, slots: Slots) -> None:
        """Subtract integers mod the modulus in the clear: they only meet the first halves."""
        self._halves.subtract_plain(slots)

    def result(self) -> list[bytes]:
        """Return the sealed sum with its seeds."""
        seeds = zip(*self._seeds, strict=True)
        return [
            half + b"".join(sorted(of))
            for half, of in zip(self._halves.result(), seeds, strict=True)
        ]


def read_sum(context: PublicContext, channel: MemoryFile, data: bytes, contributors: int) -> Any:
    """Read one ciphertext of a sum over so many contributors: in full, or with their seeds."""
    if data[:1] != mark(context, seeded=True):
        return parse(context, channel, data)
    first = 1 + WORD_BYTES * context.seeded.words + SEED_BYTES
    if not 1 <= contributors <= MOST_SEEDS or len(data) != first + SEED_BYTES * (contributors - 1):
        raise malformed("sum of that many contributors")
    total = parse(context, channel, data[:first])
    evaluator, fresh = sealapi.Evaluator(context.seal), sealapi.Ciphertext()
    only_seed = _zero_half(context.seeded)
    for start in range(first, len(data), SEED_BYTES):
        channel.load(fresh, context.seal, only_seed, data[start : start + SEED_BYTES])
        evaluator.add_inplace(total, fresh)
    return total


class _FirstHalves(Sum):
    """Adds the first halves alone; a constant, which is never sent, stands in for the second."""

    __slots__ = ()

    def _read(self, channel: MemoryFile, data: bytes) -> Any:
        if data[:1] != mark(self._context, seeded=True):
            raise malformed("seeded ciphertext")
        half = _half(self._context.full)
        # SEAL refuses a second half of zeros. Ones add up to less than the modulus.
        layout = replace(half, tail=(b"\1" + bytes(7)) * half.words)
        return channel.load(sealapi.Ciphertext(), self._context.seal, layout, data[1:-SEED_BYTES])

    def _write(self, channel: MemoryFile, sealed: Any) -> bytes:
        full, half = self._context.full, _half(self._context.full)
        raw = channel.save(sealed, full.size)
        return mark(self._context, seeded=True) + half.strip(raw[: half.size])


def _half(full: SealForm) -> SealForm:
    """The layout of a full ciphertext up to its second half."""
    return replace(full, words=full.words // 2)


def _zero_half(seeded: SealForm) -> SealForm:
    """The layout of a seeded ciphertext whose first half is zero, so that only the seed varies."""
    return replace(seeded, head=seeded.head + bytes(8 * seeded.words), words=0)
