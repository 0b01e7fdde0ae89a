"""What one more sum costs as cohorts grow: bytes and CPU of a party and of the coordinator.

A sum is two exchanges: the last total with fresh keys goes down and the masked input comes up;
the survivors' list goes down and shares and the next keys come up. The vector is small, so what
grows here is the protocol itself. Parties are simulated one after the other in this process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.report import Grid, Report
from benchmarks.simulation import Exchange, simulate
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection, ProtectionSettings

PARTIES = (3, 10, 32, 64, 128)
FIRST, STEADY = 2, 2  # exchanges before the second sum's question, and those of one sum
GROWTH: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "1": lambda n: 1.0,
        "log n": math.log,
        "n": lambda n: n,
        "n log n": lambda n: n * math.log(n),
        "n^2": lambda n: n * n,
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One sum in a cohort of this size; CPU milliseconds, and bytes."""

    mode: str
    parties: int
    party_up_bytes: float
    party_down_bytes: float
    party_ms: float
    coordinator_ms: float  # for all parties
    setup_ms: float  # of a party, once a run
    start_ms: float  # of a party: the first keys, drawn, sent and opened


def measure(
    *, parties: Sequence[int] = PARTIES, values: int = 64, repeats: int = 1, seed: int = 0
) -> Report:
    """Measure cohorts of every size, with masks alone and with ciphertexts."""
    started = time.perf_counter()
    modes: tuple[Protection, ...] = ("secagg", "he+secagg")
    rows = [_row(mode, n, values, repeats, seed) for mode in modes for n in parties]
    masked = [row for row in rows if row.mode == "secagg"]
    growth = {
        what: fit([row.parties for row in masked], [getattr(row, what) for row in masked])
        for what in ("party_up_bytes", "party_down_bytes", "party_ms", "coordinator_ms")
    }
    return Report(
        "protocol",
        {"parties": list(parties), "values": values, "repeats": repeats},
        seed,
        {"rows": [asdict(row) for row in rows], "growth": growth},
        [_row_table(rows, values), _growth_table(growth)],
        seconds=time.perf_counter() - started,
    )


def fit(sizes: Sequence[int], costs: Sequence[float]) -> dict[str, Any]:
    """Fit cost = a + b·f(n) for each growth, by relative error; also the slope in log-log."""
    n, y = np.array(sizes, np.float64), np.array(costs, np.float64)
    errors: dict[str, float] = {}
    for name, growth in GROWTH.items():
        basis = np.stack([np.ones_like(n), [growth(x) for x in n]], 1) / y[:, None]
        if name == "1":
            basis = basis[:, :1]
        factors, *_ = np.linalg.lstsq(basis, np.ones_like(y), rcond=None)
        errors[name] = float(np.sqrt(np.mean((basis @ factors - 1) ** 2)))
    exponent = float(np.polyfit(np.log(n), np.log(y), 1)[0]) if len(sizes) > 1 else 0.0
    last = float(np.log(y[-1] / y[-2]) / np.log(n[-1] / n[-2])) if len(sizes) > 1 else 0.0
    least = min(errors.values())  # the simplest of equally good ones
    best = next(name for name, error in errors.items() if error <= least + 1e-9)
    return {"best": best, "exponent": exponent, "exponent_at_the_end": last, "errors": errors}


def _row(mode: Protection, parties: int, values: int, repeats: int, seed: int) -> Row:
    protection = ProtectionSettings(mode=mode, min_cohort=2)
    vector = np.random.default_rng(seed).uniform(-1, 1, values).astype(np.float32)

    async def program(cohort: Cohort) -> None:
        for _ in range(1 + repeats):
            await cohort.sum({"x": vector}, bound=1.0)

    run = simulate(protection, parties, program)
    # Start, Begin -> input; then for every sum: Unmask -> shares; Total -> the next input.
    steady = run.exchanges[FIRST + 1 :][: STEADY * repeats]
    one = Exchange(*(sum(values) / repeats for values in zip(*map(_figures, steady), strict=True)))
    first = run.exchanges[0].parties + run.exchanges[1].parties
    return Row(
        mode,
        parties,
        one.up / parties,
        one.down / parties,
        1e3 * one.parties / parties,
        1e3 * one.coordinator,
        1e3 * run.setup,
        1e3 * first / parties,
    )


def _figures(exchange: Exchange) -> tuple[float, ...]:
    return exchange.parties, exchange.coordinator, exchange.up, exchange.down


def _row_table(rows: Sequence[Row], values: int) -> Grid:
    columns = (
        "mode",
        "parties",
        "party up B",
        "party down B",
        "party ms",
        "coordinator ms",
        "ms per party",
        "set-up ms",
        "first keys ms",
    )
    cells = [
        (
            row.mode,
            str(row.parties),
            f"{row.party_up_bytes:,.0f}",
            f"{row.party_down_bytes:,.0f}",
            f"{row.party_ms:.2f}",
            f"{row.coordinator_ms:.1f}",
            f"{row.coordinator_ms / row.parties:.2f}",
            f"{row.setup_ms:.2f}",
            f"{row.start_ms:.2f}",
        )
        for row in rows
    ]
    return Grid(f"one sum of {values} values, CPU and bytes", columns, cells)


def _growth_table(growth: Mapping[str, Mapping[str, Any]]) -> Grid:
    cells = [
        (
            what,
            str(found["best"]),
            f"{found['exponent']:.2f}",
            f"{found['exponent_at_the_end']:.2f}",
        )
        for what, found in growth.items()
    ]
    columns = ("mode secagg", "best fit", "exponent", "between the last two")
    return Grid("growth with the number of parties n", columns, cells)
