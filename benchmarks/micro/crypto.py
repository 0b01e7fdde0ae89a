"""Cost of protecting one sum: CPU and bytes per value for every mode and number of bits.

All ways run in one process, one after the other, several times; figures are medians of CPU time
over all threads. `seal` is all of a party's work from float32 to the bytes it sends: keys of the
sum, encoding, tag, masks, encryption, shares. `add` is all of the coordinator's work, unmasking
included, per value and party. `open` is decryption, tag check and decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Columns, Grid, Report, Target, cpu
from secure_fl.coordinator.sum_steps import CoordinatorRules, offers_to
from secure_fl.crypto.sealing import packing
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress, SecureSums
from secure_fl.federation.assembly import make_keys, privacy_layer
from secure_fl.protocol.messages import Audience, Offer, Unmask, UnmaskShares
from secure_fl.protocol.ports import BlindTotal, Group, OfferedKeys, Rule, TotalFor, Vector
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold

Reals: TypeAlias = NDArray[np.float64]

SPREAD = 1e-3  # standard deviation of the values, as of an update
NAME = "x"
HOST_BOUND = 0.01  # of the values of a host sum
COLUMNS: Columns = {
    "way": "{r.name}",
    "B up": "{r.up_bytes_per_value:.2f}",
    "B down": "{r.down_bytes_per_value:.2f}",
    "seal ns": "{r.seal_ns_per_value:.1f}",
    "add ns": "{r.add_ns_per_value:.1f}",
    "open ns": "{r.open_ns_per_value:.1f}",
    "relative error": "{r.relative_error:.1e}",
    "exact": lambda r: "yes" if r.exact else "NO",
}


@dataclass(frozen=True, slots=True)
class CryptoRow:
    """One way of protecting a sum: nanoseconds of CPU, and one party's bytes up and down."""

    name: str
    bits: int
    parties: int
    values: int
    up_bytes_per_value: float
    down_bytes_per_value: float
    seal_ns_per_value: float
    add_ns_per_value: float  # and party
    open_ns_per_value: float
    relative_error: float
    exact: bool  # the opened sum is the sum of the integers


@dataclass(frozen=True, slots=True)
class Sample:
    """One sum: CPU seconds, bytes of one party, and the opened values."""

    seal: Sequence[float]  # of each party
    add: float  # of the coordinator, for all parties
    open: float
    up: int
    down: int
    opened: Reals
    exact: bool


Way: TypeAlias = Callable[[Sequence[Vector]], Sample]


def measure(
    *, values: int = 1_000_000, parties: int = 8, repeats: int = 3, seed: int = 0
) -> Report:
    """Measure all ways side by side."""
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(0, SPREAD, values).astype(np.float32) for _ in range(parties)]
    truth: Reals = np.sum(vectors, axis=0, dtype=np.float64)
    ways = every_way(parties)
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (_, way) in ways.items():
            samples[name].append(way(vectors))
    rows = [_row(name, ways[name][0], samples[name], truth, parties) for name in ways]
    by_bits = {row.bits: row for row in reversed(rows) if row.name.startswith("he+secagg")}
    limits = {8: 4.0, 16: 8.0}
    bytes_up = [(f"{b} bits: bytes per value up", by_bits[b].up_bytes_per_value, b) for b in limits]
    down = [(f"{b} bits: bytes per value down", by_bits[b].down_bytes_per_value, b) for b in limits]
    return Report(
        "crypto",
        {"values": values, "parties": parties, "repeats": repeats},
        seed,
        {
            "rows": [asdict(row) for row in rows],
            "unit": "nanoseconds of CPU per value (add: per value and party)",
        },
        [Grid.of(f"one sum, per value ({values:,} values, {parties} parties)", rows, COLUMNS)],
        [
            *(Target(what, limits[bits], measured) for what, measured, bits in (*bytes_up, *down)),
            Target("coordinator: ns per value and party", 15.0, by_bits[8].add_ns_per_value),
            Target("sums of integers that are not exact", 0, sum(not row.exact for row in rows)),
        ],
    )


def _row(name: str, bits: int, samples: Sequence[Sample], truth: Reals, parties: int) -> CryptoRow:
    values, last = truth.size, samples[-1]
    return CryptoRow(
        name,
        bits,
        parties,
        values,
        last.up / values,
        last.down / values,
        1e9 * median(seconds for sample in samples for seconds in sample.seal) / values,
        1e9 * median(sample.add for sample in samples) / values / parties,
        1e9 * median(sample.open for sample in samples) / values,
        float(np.linalg.norm(last.opened - truth) / np.linalg.norm(truth)),
        all(sample.exact for sample in samples),
    )


def every_way(parties: int) -> Mapping[str, tuple[int, Way]]:
    """List all ways with their bits; the first is the default of a run."""
    names = [f"p{number}" for number in range(parties)]
    keys = make_keys("he+secagg", names, None)
    hosted = make_keys("he+secagg", [*names, HOST], HOST)
    return {
        **{f"he+secagg, {b} bits": (b, _way("he+secagg", b, keys)) for b in (8, 4, 6, 12, 16, 24)},
        "secagg, 8 bits": (8, _way("secagg", 8, make_keys("secagg", names, None))),
        "host sum by masks, 16 bits": (16, _way("he+secagg", 16, hosted)),
    }


def _way(mode: Protection, bits: Any, keys: Mapping[str, PartyKeys]) -> Way:
    """Make a sum through both halves; if `keys` has a host, a sum for the host alone."""
    protection = ProtectionSettings(mode=mode, bits=bits, min_cohort=2)
    names = tuple(name for name in keys if name != HOST)
    rule = Rule(Audience.HOST, bound=HOST_BOUND) if HOST in keys else Rule(carry=True)

    def way(vectors: Sequence[Vector]) -> Sample:
        halves = Halves(protection, names, HOST if HOST in keys else None, keys)
        groups = {n: [Group(names, {NAME: v})] for n, v in zip(names, vectors, strict=True)}
        if rule.bound is None:
            halves.teach(groups, rule)
        else:
            groups[HOST] = groups[names[0]]
        return _sum(halves, groups, rule)

    return way


def _sum(halves: Halves, groups: Mapping[str, Sequence[Group]], rule: Rule) -> Sample:
    spent = {name: cpu(halves.offer, name)[0] for name in halves.members}
    for name in halves.members:
        spent[name] += cpu(halves.accept, name)[0]
    adding, total = cpu(halves.total, rule.audience)
    expected = _expected(halves, groups, rule)
    up, begun = 0, {}
    for name in halves.members:
        seconds, begun[name] = cpu(halves.sums[name].begin, groups[name], rule, (0, 1))
        spent[name] += seconds
        upload = begun[name].upload
        if name != halves.host:
            up = len(upload.data)
            adding += cpu(total.add, name, upload.segments, upload.data)[0]
    shares = {}
    for name in halves.members:
        seconds, revealed = cpu(halves.reveal, begun[name])
        spent[name] += seconds
        if name != halves.host:
            shares[name] = revealed
    seconds, result = cpu(total.result, halves.members, shares)
    reader, (data,) = halves.host or halves.parties[0], result.values()
    opening, opened = cpu(begun[reader].open, [data], halves.members)
    return Sample(
        [spent[name] for name in halves.parties],
        adding + seconds,
        opening,
        up,
        len(data),
        opened[NAME],
        bool(np.array_equal(opened[NAME], expected)),
    )


def _expected(halves: Halves, groups: Mapping[str, Sequence[Group]], rule: Rule) -> Reals:
    """Sum the parties' integers without packing, tags, masks or encryption.

    Rounding is random: each party's generator is copied to repeat its draws.
    """
    total = np.zeros(groups[halves.parties[0]][0].vectors[NAME].size, np.int64)
    for name in halves.parties:
        context, group = halves.sums[name].context, groups[name][0]
        layout = context.transcript.scales.layout(group, rule, context.parties)
        rng = np.random.Generator(np.random.PCG64())
        rng.bit_generator.state = context.transcript.state()["rng"]
        clip = layout.packed[0].clip or 0.0
        vector = group.vectors[NAME].astype(np.float32, copy=False)
        total += packing.quantize(layout.codec, vector, clip, rng)[0]
    return packing.dequantize(layout.codec, total, clip)


HOST = "host"


@dataclass(slots=True)
class Halves:
    """One run of sums: the half of every party, and the coordinator's."""

    protection: ProtectionSettings
    parties: Sequence[str]
    host: str | None = None
    keys: Mapping[str, PartyKeys] = field(default_factory=dict)  # drawn where none are given
    sums: dict[str, SecureSums] = field(default_factory=dict, init=False)
    offers: dict[str, Offer] = field(default_factory=dict, init=False)
    _total_for: TotalFor = field(init=False)

    def __post_init__(self) -> None:
        run = os.urandom(16)
        rules = CoordinatorRules(self.host, 2, default_threshold(len(self.parties)))
        self.keys = self.keys or make_keys(self.protection.mode, self.members, self.host)
        for seed, name in enumerate(self.members):
            half = privacy_layer(self.protection, self.keys[name], rules, run=run, seed=seed).sums
            assert isinstance(half, SecureSums)  # noqa: S101 - mode none is measured elsewhere
            self.sums[name] = half
        self._total_for = blind_totals(
            self.protection, self.members, host=self.host, threshold=rules.threshold, run=run
        )

    @property
    def members(self) -> tuple[str, ...]:
        """The parties, and the host if there is one."""
        return (*self.parties, *([self.host] if self.host else []))

    def offer(self, party: str) -> None:
        """Draw a party's keys of the next sum."""
        offer = self.sums[party].next_keys(self.members)
        if offer is not None:
            self.offers[party] = offer

    def accept(self, party: str) -> None:
        """Pass the others' keys to a party."""
        self.sums[party].accept(offers_to(party, self.offers), self.members)

    def total(self, audience: Audience) -> BlindTotal:
        """Begin a sum at the coordinator."""
        return self._total_for(audience, OfferedKeys(self.members, self.offers, 1))

    def reveal(self, under_way: SecureSumInProgress) -> UnmaskShares:
        """Reveal a party's shares when no party dropped out."""
        under_way.settle(Unmask(self.members, (), sum=under_way.upload.sum))
        return under_way.shares(None)

    def teach(self, groups: Mapping[str, Sequence[Group]], rule: Rule) -> None:
        """Give all parties the scales that a first sum of norms gives."""
        norms: dict[str, NDArray[np.float64]] = {}
        for name in self.parties:
            for group in self.sums[name].context.transcript.scales.unknown(groups[name], rule):
                for vector, norm in group.vectors.items():
                    norms[vector] = norms.get(vector, np.zeros(1)) + norm
        for half in self.sums.values():
            half.context.transcript.scales.learn(norms)
