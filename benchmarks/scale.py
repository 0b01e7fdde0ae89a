"""A sampled cohort of 10 to 10,000 clients: one protected sum, of whom some are lost on the way.

Masks without ciphertexts (`secagg`) on the sparse graph; real sessions, keys, signatures and
coordinator. A client's time is that of a few that compute everything alone (see `crowd`), the
coordinator's time and memory are those of a process of its own. The opened sum is compared with
the sum of the contributors' integers; if a single value differs, there is no report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.crowd import LONE, PHASES, SETTINGS, Plan, Played, play
from benchmarks.micro.protocol import fit
from benchmarks.report import Report, Target, table
from secure_fl.crypto.masking import COMPLETE, degree_for
from secure_fl.errors import SettingsError

CLIENTS = (10, 100, 1000, 10_000)
LOST = 0.05
LEAST = 5  # with fewer, one that is lost leaves no threshold


@dataclass(frozen=True, slots=True)
class Row:
    """One sum over a cohort of this size: CPU seconds, and bytes of one client that stayed."""

    clients: int
    neighbours: int  # with whom a client shares masks and seeds
    values: int
    lost_before: int  # their input is not in the sum, their masks are
    lost_after: int  # their input is in the sum, their self mask too
    recovered: float  # of all that were lost, whose masks the others' shares took off
    client_cpu_seconds: float
    bytes_up: float
    bytes_down: float
    coordinator_cpu_seconds: float
    coordinator_peak_resident: int | None
    uploads: float  # bytes of all clients together
    phases: Mapping[str, tuple[float, float]]  # CPU seconds of a client, and of the coordinator
    exact: bool
    seconds: float  # by the clock, for all clients one after the other


def measure(
    *,
    clients: Sequence[int] = CLIENTS,
    values: int = 1_000,
    lost: float = LOST,
    seed: int = 0,
) -> Report:
    """Measure cohorts of every size; the largest takes most of the time."""
    if not clients or min(clients) < LEAST or values <= 8 or not 0 < lost <= 0.25:
        raise SettingsError(
            f"a cohort of {min(clients, default=0)} clients with {values} values, of which "
            f"{lost:.0%} are lost, cannot be measured",
            fix=f"take {LEAST} clients, 9 values or more, and lose at most a quarter",
        )
    started = time.perf_counter()
    rows = [_row(n, values, lost, seed) for n in clients]
    growth = _growth(rows)
    return Report(
        "scale",
        {
            "clients": list(clients),
            "values": values,
            "lost": lost,
            "bits": SETTINGS.bits,
            "measured_alone": LONE,
        },
        seed,
        {"rows": [asdict(row) for row in rows], "growth": growth},
        [_row_table(rows), _phase_table(rows), *([_growth_table(growth)] if growth else [])],
        [Target("of the lost, least share that was recovered", 1.0, _least(rows), at_least=True)],
        seconds=time.perf_counter() - started,
    )


def _row(clients: int, values: int, lost: float, seed: int) -> Row:
    plan, start = Plan.of(clients, lost, seed), time.perf_counter()
    played = play(plan, values, seed)
    played.require_exact()
    return row_of(plan, played, values, time.perf_counter() - start)


def row_of(plan: Plan, played: Played, values: int, seconds: float) -> Row:
    """The figures of one sum."""
    clients, survivors = len(plan.names), set(played.survivors)
    recovered = len(plan.before - survivors) + len(plan.after & survivors)
    coordinator = dict(zip(PHASES, played.spent.exchanges, strict=True))
    return Row(
        clients,
        degree_for(clients),
        values,
        len(plan.before),
        len(plan.after),
        recovered / len(plan.before | plan.after),
        sum(played.seconds.values()),
        played.up,
        played.down,
        played.spent.cpu_seconds,
        played.spent.peak_resident,
        played.up * len(survivors),
        {phase: (played.seconds[phase], coordinator[phase]) for phase in PHASES},
        True,  # `require_exact` has seen to it
        seconds,
    )


def _least(rows: Sequence[Row]) -> float:
    return min(row.recovered for row in rows)


def _growth(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """How costs grow where the graph is sparse: below, they follow the complete graph."""
    sparse = [row for row in rows if row.clients > COMPLETE]
    if len({row.clients for row in sparse}) < 3:
        return {}
    costs = {
        "client CPU": [row.client_cpu_seconds for row in sparse],
        "bytes up": [row.bytes_up for row in sparse],
        "bytes down": [row.bytes_down for row in sparse],
        "coordinator CPU": [row.coordinator_cpu_seconds for row in sparse],
        "coordinator peak": [float(row.coordinator_peak_resident or 0) for row in sparse],
    }
    sizes = [row.clients for row in sparse]
    return {what: fit(sizes, found) for what, found in costs.items() if min(found) > 0}


def _row_table(rows: Sequence[Row]) -> Table:
    columns = (
        "clients",
        "k",
        "lost",
        "recovered",
        "exact",
        "client CPU s",
        "up B",
        "down B",
        "coordinator CPU s",
        "ms per client",
        "peak MB",
        "all uploads MB",
        "s",
    )
    cells = [
        (
            f"{row.clients:,}",
            str(row.neighbours),
            f"{row.lost_before} + {row.lost_after}",
            f"{row.recovered:.0%}",
            "yes" if row.exact else "NO",
            f"{row.client_cpu_seconds:.3f}",
            f"{row.bytes_up:,.0f}",
            f"{row.bytes_down:,.0f}",
            f"{row.coordinator_cpu_seconds:.2f}",
            f"{1e3 * row.coordinator_cpu_seconds / row.clients:.2f}",
            _megabytes(row.coordinator_peak_resident),
            _megabytes(row.uploads),
            f"{row.seconds:.0f}",
        )
        for row in rows
    ]
    return table(f"one sum of {rows[0].values:,} values, secagg", columns, cells)


def _phase_table(rows: Sequence[Row]) -> Table:
    cells = [
        (
            f"{row.clients:,}",
            *(f"{1e3 * row.phases[p][0]:.1f} | {row.phases[p][1]:.2f}" for p in PHASES),
        )
        for row in rows
    ]
    title = "CPU by what the coordinator asks for: ms of a client | s of the coordinator"
    return table(title, ("clients", *PHASES), cells)


def _growth_table(growth: Mapping[str, Mapping[str, Any]]) -> Table:
    cells = [
        (what, str(g["best"]), f"{g['exponent']:.2f}", f"{g['exponent_at_the_end']:.2f}")
        for what, g in growth.items()
    ]
    columns = (f"above {COMPLETE}", "best fit", "exponent", "between the last two")
    return table("growth with the number of clients", columns, cells)


def _megabytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.1f}"
