"""What protecting one sum costs: CPU and bytes per value, ours beside the alternatives.

All ways run in one process, one after the other, several times over; figures are medians of CPU
time over all threads. `seal` is everything a party does from float32 to bytes that leave: keys of
the sum, encoding, tag, masks, encryption, serialisation, shares. `add` is all that the coordinator
does, unmasking included, per value and party. `open` is decryption, tag check and decoding.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from benchmarks.micro import nvflare_way
from benchmarks.micro.ways import Reals, Sample, every_way
from benchmarks.report import Grid, Report, Target

SPREAD = 1e-3  # the standard deviation of the values: those of an update


@dataclass(frozen=True, slots=True)
class Row:
    """One way of protecting a sum: nanoseconds of CPU, and one party's bytes up and down."""

    name: str
    bits: int | None
    parties: int
    values: int
    up_bytes_per_value: float
    down_bytes_per_value: float
    seal_ns_per_value: float
    add_ns_per_value: float  # and party
    open_ns_per_value: float
    relative_error: float
    exact: bool | None


def measure(
    *, values: int = 1_000_000, parties: int = 8, repeats: int = 3, seed: int = 0
) -> Report:
    """Measure all ways side by side."""
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(0, SPREAD, values).astype(np.float32) for _ in range(parties)]
    truth: Reals = np.sum(vectors, axis=0, dtype=np.float64)
    ways = every_way(parties)
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (_, way) in ways.items():
            samples[name].append(way(vectors))
    rows = [_row(name, ways[name][0], samples[name], truth, parties) for name in ways]
    ratios = _ratios(rows)
    own = nvflare_way.make_site(nvflare_way.make_context()).own_classes
    return Report(
        "crypto",
        {"values": values, "parties": parties, "repeats": repeats},
        seed,
        {
            "rows": [asdict(row) for row in rows],
            "ratios": ratios,
            "unit": "nanoseconds of CPU per value (add: per value and party)",
            "nvflare_classes": "NVFLARE's own" if own else "the same calls by hand",
        },
        [_row_table(rows), _ratio_table(ratios)],
        _targets(rows, ratios),
        seconds=time.perf_counter() - started,
    )


def _row(name: str, bits: int | None, samples: Sequence[Sample], truth: Reals, parties: int) -> Row:
    values = truth.size
    last = samples[-1]
    exact = None if last.exact is None else all(sample.exact for sample in samples)
    return Row(
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
        exact,
    )


def _ratios(rows: Sequence[Row]) -> dict[str, float]:
    """NVFLARE's way over our first row; above 1, ours is smaller or faster."""
    ours, (one, fifty) = rows[0], rows[-2:]
    ratios: dict[str, float] = {}
    for suffix, theirs in (("", one), ("_50_tensors", fifty)):
        ratios |= {
            f"up_bytes{suffix}": theirs.up_bytes_per_value / ours.up_bytes_per_value,
            f"down_bytes{suffix}": theirs.down_bytes_per_value / ours.down_bytes_per_value,
            f"seal{suffix}": theirs.seal_ns_per_value / ours.seal_ns_per_value,
            f"add{suffix}": theirs.add_ns_per_value / ours.add_ns_per_value,
            f"open{suffix}": theirs.open_ns_per_value / ours.open_ns_per_value,
        }
    return ratios


def _targets(rows: Sequence[Row], ratios: Mapping[str, float]) -> list[Target]:
    ours = {row.bits: row for row in reversed(rows) if row.name.startswith("he+secagg")}
    wrong = sum(row.exact is False for row in rows)
    return [
        Target("8 bits: bytes per value up", 4.0, ours[8].up_bytes_per_value),
        Target("8 bits: bytes per value down", 4.0, ours[8].down_bytes_per_value),
        Target("16 bits: bytes per value up", 8.0, ours[16].up_bytes_per_value),
        Target("16 bits: bytes per value down", 8.0, ours[16].down_bytes_per_value),
        Target("NVFLARE's sealing over ours (CPU)", 8.0, ratios["seal"], at_least=True),
        Target("NVFLARE's opening over ours (CPU)", 1.0, ratios["open"], at_least=True),
        Target("coordinator: ns per value and party", 15.0, ours[8].add_ns_per_value),
        Target("ways whose sum of integers is not exact", 0, wrong),
    ]


def _row_table(rows: Sequence[Row]) -> Grid:
    columns = ("way", "B up", "B down", "seal ns", "add ns", "open ns", "relative error", "exact")
    marks = {True: "yes", False: "NO", None: "-"}
    cells = [
        (
            row.name,
            f"{row.up_bytes_per_value:.2f}",
            f"{row.down_bytes_per_value:.2f}",
            f"{row.seal_ns_per_value:.1f}",
            f"{row.add_ns_per_value:.1f}",
            f"{row.open_ns_per_value:.1f}",
            f"{row.relative_error:.1e}",
            marks[row.exact],
        )
        for row in rows
    ]
    title = f"one sum, per value ({rows[0].values:,} values, {rows[0].parties} parties)"
    return Grid(title, columns, cells)


def _ratio_table(ratios: Mapping[str, float]) -> Grid:
    names = [name for name in ratios if not name.endswith("_50_tensors")]
    cells = [(n, f"{ratios[n]:.1f}", f"{ratios[n + '_50_tensors']:.1f}") for n in names]
    return Grid("NVFLARE's way over ours at 8 bits", ("", "1 tensor", "50 tensors"), cells)
