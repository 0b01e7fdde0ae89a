"""What the cohort machinery and the privacy layer add to a round of training.

The same steps of the same tiny models, on the built-in corpus, three ways in one process, in turns:
a bare loop that trains the parties one after the other and averages their moves with torch; a
federation with protection none; and one with he+secagg. Each turn gives the CPU time of the last
round, and how much of it was spent outside of `fit`. The ratio to the bare loop compares
two trainings and carries their noise; the time outside of training is read off one run.
Torch runs on one thread, so that no idle thread is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from types import MappingProxyType

import torch
from rich.table import Table

from benchmarks.report import Report, Target, cpu, table
from benchmarks.simulation import simulate
from secure_fl import corpora
from secure_fl.algorithms.updates import Update, add_, agree_on, local_update, weighted_mean
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.learning_rates import ALONE
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import labels_of, make_task
from secure_fl.party.cohort import Cohort
from secure_fl.settings import (
    ModelSettings,
    Protection,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)

LIMIT = 0.03
SEALED_LIMIT = 0.05
LAST_ROUND: Mapping[str, int] = MappingProxyType({"none": 4, "he+secagg": 5})  # exchanges


@dataclass(frozen=True, slots=True)
class Round:
    """CPU seconds of all parties and the coordinator in one round."""

    total: float
    training: float


@dataclass(frozen=True, slots=True)
class Row:
    """One way of training: medians over turns."""

    name: str
    round_cpu_seconds: float
    over_bare: float  # what it takes more than the bare loop, as a share of that
    outside_cpu_seconds: float  # not spent in training steps
    outside_over_training: float


def measure(
    *, parties: int = 8, records: int = 480, rounds: int = 2, repeats: int = 5, seed: int = 0
) -> Report:
    """Measure all three in turns."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sites = _sites(parties, records, seed)
        models = {name: site.model() for name, site in sites.items()}
        start = {key: value.clone() for key, value in models[min(models)].state_dict().items()}
        ways: dict[str, Callable[[], Round]] = {
            "bare loop": lambda: _bare(sites, models, rounds),
            "none": lambda: _federated("none", sites, models, rounds),
            "he+secagg": lambda: _federated("he+secagg", sites, models, rounds),
        }
        turns: dict[str, list[Round]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            for name, way in ways.items():
                for model in models.values():
                    model.load_state_dict(start)
                measured = way()
                if turn:  # the first turn warms up
                    turns[name].append(measured)
    finally:
        torch.set_num_threads(threads)
    size = sum(value.numel() for value in models[min(models)].parameters() if value.requires_grad)
    rows = [_row(name, turns) for name in ways]
    extra = rows[2].outside_cpu_seconds - rows[1].outside_cpu_seconds
    privacy = extra / rows[2].round_cpu_seconds
    return Report(
        "overhead",
        {
            "parties": parties,
            "records": records,
            "rounds": rounds,
            "repeats": repeats,
            "trainable_values": size,
        },
        seed,
        {"rows": [asdict(row) for row in rows], "privacy_share_of_a_round": privacy},
        [_table(rows, size, parties)],
        [
            Target("none: CPU of a round over the bare loop", LIMIT, rows[1].over_bare),
            Target(
                "none: outside of training, over training", LIMIT, rows[1].outside_over_training
            ),
            Target("he+secagg: privacy's share of a round's CPU", SEALED_LIMIT, privacy),
        ],
        seconds=time.perf_counter() - started,
    )


def _sites(parties: int, records: int, seed: int) -> dict[str, Site]:
    """Hospitals with tokenised records."""
    written = corpora.make("ade", parties=parties, seed=seed, size=records)
    silos = [Silo(f"p{k:04d}", split.train) for k, split in enumerate(written)]
    labels = sorted(set().union(*(labels_of("classification", silo.train) for silo in silos)))
    settings = TaskSettings(labels=tuple(labels))
    sites = {}
    for silo in silos:
        task, training = make_task(settings, silo.train), TrainingSettings(device="cpu")
        site = Site(
            silo, SiteSpec(task, ModelSettings(), training, seed), SiteContext(EventLog(silo.name))
        )
        sites[silo.name] = site
        assert len(site.train) == records  # noqa: S101 - tokenises now, not under the clock
    return sites


def _bare(sites: Mapping[str, Site], models: Mapping[str, torch.nn.Module], rounds: int) -> Round:
    trained, start = 0.0, time.process_time()
    for _ in range(rounds):
        updates = []
        for name, site in sites.items():
            seconds, update = cpu(local_update, site, models[name], 1, ALONE)
            trained += seconds
            updates.append((site.records, update))
        total = sum(weight for weight, _ in updates)
        mean: Update = {
            key: torch.stack([weight * update[key] for weight, update in updates]).sum(0) / total
            for key in updates[0][1]
        }
        for model in models.values():
            add_(model, mean)
    return Round((time.process_time() - start) / rounds, trained / rounds)


def _federated(
    mode: Protection, sites: Mapping[str, Site], models: Mapping[str, torch.nn.Module], rounds: int
) -> Round:
    trained: dict[int, float] = {}

    async def program(cohort: Cohort) -> None:
        site, model = sites[cohort.me], models[cohort.me]
        async for round in cohort.rounds(rounds):
            seconds, update = cpu(local_update, site, model, 1, round)
            trained[round.number] = trained.get(round.number, 0.0) + seconds
            add_(model, await weighted_mean(cohort, update, site.records))
            await agree_on(cohort, model)

    protection = ProtectionSettings(mode=mode, min_cohort=2)
    surroundings = {name: site.surroundings for name, site in sites.items()}
    run = simulate(protection, len(sites), program, surroundings)
    last = run.exchanges[-LAST_ROUND[mode] :]
    return Round(sum(e.parties + e.coordinator for e in last), trained[rounds])


def _row(name: str, turns: Mapping[str, Sequence[Round]]) -> Row:
    mine, bare = turns[name], turns["bare loop"]
    return Row(
        name,
        median(r.total for r in mine),
        median(r.total / b.total - 1 for r, b in zip(mine, bare, strict=True)),
        median(r.total - r.training for r in mine),
        median(r.total / r.training - 1 for r in mine),
    )


def _table(rows: Sequence[Row], size: int, parties: int) -> Table:
    cells = [
        (
            row.name,
            f"{row.round_cpu_seconds:.2f}",
            f"{100 * row.over_bare:+.2f} %",
            f"{row.outside_cpu_seconds:.3f}",
            f"{100 * row.outside_over_training:.2f} %",
        )
        for row in rows
    ]
    title = f"a round of {parties} parties, {size:,} values each, CPU"
    columns = ("", "seconds", "over the bare loop", "outside of training", "over training")
    return table(title, columns, cells)
