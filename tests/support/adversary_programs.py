"""Programs of a pilot under attack: sums in rounds, a codebook, and noised sums for a host."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from secure_fl.crypto.privacy.ledger import Account, Ledger
from secure_fl.data.silo import Silo
from secure_fl.features.statistics.codebook import Codebook
from secure_fl.features.statistics.program import run_codebook
from secure_fl.features.statistics.tables import RecordTable, table_of
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Task, make_task
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.settings import ModelSettings, NoiseSettings, TaskSettings, TrainingSettings
from tests.support.bare_pilot import BareRun, Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.adversary import Scenario

HOST = "hub"
SIZE, ROUNDS, SUMS = 4, 2, 2  # of a vector, of a run, of a round
LEAST = 10  # smallest released count
MAX_EPSILON = 1.2  # of a site's codebooks: two of 0.5
NOISE = NoiseSettings(epsilon=14.0, std=1.0, force=True)  # six sums; a run has four


@dataclass(frozen=True)
class Opened:
    """A sum that a member opened."""

    run: str  # the id of the session
    name: str  # of the run
    member: str
    at: tuple[int, int]  # round and number of the sum
    survivors: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]


@dataclass
class Results:
    """Values that members opened, and tables that they released, by the session's id."""

    opened: list[Opened] = field(default_factory=list)
    tables: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)


def program_of(scenario: Scenario, name: str, results: Results) -> Program:
    """Return the program of one party."""

    async def rounds(cohort: Cohort, run: BareRun) -> None:
        async for round in cohort.rounds(ROUNDS):
            if scenario.talks:
                await _talk(cohort, scenario.host)
            noise = None
            if scenario.noise:
                noise = cohort.prediction_noise(SIZE // 2, 2, ROUNDS * SUMS)
                assert noise is not None
                cohort.reserve(noise, SUMS)
            for number in range(SUMS):
                values = await _sum(cohort, scenario, noise)
                found = {key: tuple(np.asarray(one).tolist()) for key, one in values.items()}
                at, survivors = (round.number, number), cohort.survivors
                results.opened.append(
                    Opened(run.link.run.hex(), run.name, name, at, survivors, found)
                )

    async def codebook(cohort: Cohort, run: BareRun) -> None:
        site = _site(run, round(scenario.weight(name)))
        await run_codebook(cohort, site, codebook_of(scenario))
        results.tables.append((run.link.run.hex(), name, site.findings["statistics"]))

    return codebook if scenario.codebook else rounds


async def _talk(cohort: Cohort, host: bool) -> None:
    """Use all messages that are no sum."""
    await cohort.agree(b"before", "before")
    await cohort.share({"own": np.zeros(2, np.float32)})
    if host:
        news = {"news": np.ones(2, np.float32)} if cohort.is_host else None
        await cohort.broadcast(news)
    await cohort.agree(b"state", "state")


async def _sum(cohort: Cohort, scenario: Scenario, noise: Any) -> Mapping[str, Any]:
    """Sum the parties' values, in tiers or for a host if the scenario has them."""
    if noise is not None:
        zeros = {"low": np.zeros(SIZE, np.float32)}
        return await cohort.sum(zeros, bound=1.0, reveal=Audience.HOST, noise=noise)
    if cohort.is_host:
        zeros = {"low": np.zeros(SIZE, np.float32)}
        return await cohort.sum(zeros, bound=64.0, reveal=Audience.HOST)
    value = np.full(SIZE, scenario.weight(cohort.me), np.float32)
    if not scenario.tiers:
        reveal = Audience.HOST if scenario.host else Audience.PARTIES
        return await cohort.sum({"low": value}, bound=64.0, reveal=reveal)
    own, reads = {"low": value, "high": value}, {}
    if cohort.me == scenario.names[-1]:
        own = {"low": value}
        reads = {"high": value} if scenario.seed % 2 else {}
    return await cohort.sum(own, bound=64.0, partial=True, read=reads)


# --- codebooks ------------------------------------------------------------------------------------


def codebook_of(scenario: Scenario) -> Codebook:
    """Return the codebook of a scenario: exact, or with noise."""
    return _codebook(0.5 if scenario.seed % 2 else None)


@cache
def _codebook(epsilon: float | None) -> Codebook:
    return Codebook(
        variables={"kind": {"values": ("own", "equal")}},  # type: ignore[dict-item]
        tables={"kinds": ("kind",)},
        min_patients=LEAST,
        epsilon=epsilon,
    )


@cache
def _records(weight: int) -> RecordTable:
    """Make the records of one site; their number shows in a sum whose records it has."""
    return table_of(pd.DataFrame({"kind": ["own"] * LEAST * weight + ["equal"] * LEAST}))


@cache
def _task() -> Task:
    return make_task(TaskSettings(kind="completion"))


def _site(run: BareRun, weight: int) -> Site:
    """Make the site of a codebook, which has no model."""
    silo = Silo(run.me, (), table=_records(weight))
    spec = SiteSpec(_task(), ModelSettings(), TrainingSettings(device="cpu"), 0)
    ledger = partial(ledger_of, run)
    options = {"max_epsilon": MAX_EPSILON}
    return Site(silo, spec, SiteContext(run.recorder, options=options, ledger=ledger))


def ledger_of(run: BareRun) -> Ledger:
    """Open the ledger of a site, for all its runs."""
    identity = run.context.keys.identity
    return open_ledger(run.context.ledger / run.me, run.me, identity)


def codebooks_of(site: str) -> Account:
    """Return the account of a site's codebooks, as its ledger has it."""
    return Account(f"{site}, codebooks", "record")
