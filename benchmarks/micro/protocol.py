"""Cost of one more sum as cohorts grow: bytes and CPU of a party and of the coordinator.

A sum is two exchanges: the last total and fresh keys go down, the masked input comes up; the
survivors' list goes down, shares and the next keys come up. The vector is small, so the figures
show the growth of the protocol itself. Parties run one after the other in this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.report import Columns, Grid, Report
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


COLUMNS: Columns = {
    "mode": "{r.mode}",
    "parties": "{r.parties}",
    "party up B": "{r.party_up_bytes:,.0f}",
    "party down B": "{r.party_down_bytes:,.0f}",
    "party ms": "{r.party_ms:.2f}",
    "coordinator ms": "{r.coordinator_ms:.1f}",
    "ms per party": lambda r: f"{r.coordinator_ms / r.parties:.2f}",
    "set-up ms": "{r.setup_ms:.2f}",
    "first keys ms": "{r.start_ms:.2f}",
}


@dataclass(frozen=True, slots=True)
class ProtocolRow:
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
    modes: tuple[Protection, ...] = ("secagg", "he+secagg")
    rows = [_row(mode, n, values, repeats, seed) for mode in modes for n in parties]
    masked = [row for row in rows if row.mode == "secagg"]
    growth = {
        what: fit([row.parties for row in masked], [getattr(row, what) for row in masked])
        for what in ("party_up_bytes", "party_down_bytes", "party_ms", "coordinator_ms")
    }
    grown = Grid.of(
        "growth with the number of parties n",
        growth.items(),
        {
            "mode secagg": "{r[0]}",
            "best fit": "{r[1][best]}",
            "exponent": "{r[1][exponent]:.2f}",
            "between the last two": "{r[1][exponent_at_the_end]:.2f}",
        },
    )
    return Report(
        "protocol",
        {"parties": list(parties), "values": values, "repeats": repeats},
        seed,
        {"rows": [asdict(row) for row in rows], "growth": growth},
        [Grid.of(f"one sum of {values} values, CPU and bytes", rows, COLUMNS), grown],
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


def _row(mode: Protection, parties: int, values: int, repeats: int, seed: int) -> ProtocolRow:
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
    return ProtocolRow(
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
