"""Cost of one more sum as cohorts grow: bytes and CPU of a party and of the coordinator.

A sum is two exchanges: the last total and fresh keys go down, the masked input comes up; the
survivors' list goes down, shares and the next keys come up. The vector is small, so the figures
show the growth of the protocol itself. Parties run one after the other in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.report import Columns, Grid, Report
from benchmarks.simulation import Exchange, simulate
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection, ProtectionSettings

PARTIES = (3, 10, 32, 64, 128)
FIRST, STEADY = 2, 2  # exchanges before the second sum's question, and those of one sum
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
    return Report(
        "protocol",
        {"parties": list(parties), "values": values, "repeats": repeats},
        seed,
        {"rows": [asdict(row) for row in rows]},
        [Grid.of(f"one sum of {values} values, CPU and bytes", rows, COLUMNS)],
    )


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
