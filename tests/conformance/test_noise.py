"""Noise through the door: in the ledger first, in the sum before it is opened, never too little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.ledger import Ledger, load_chain
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.errors import BudgetError, CohortError, CryptoError
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.settings import NoiseSettings, Protection
from secure_fl.testing.harness import LossyEngine, Program, federate

NAMES = ("east", "north", "south", "west")
SIZE = 4000


def noise(dropouts: int = 1) -> SkellamNoise:
    return SkellamNoise(
        mu=160_000.0,
        scale=64.0,
        clip=5.0,
        dimension=SIZE,
        parties=len(NAMES),
        dropouts=dropouts,
        colluders=0,
    )


def program(name: str, given: SkellamNoise | None = None) -> Program:
    async def run(cohort: Cohort) -> Any:
        if not cohort.is_host:
            cohort.reserve(given or noise(), 1)
        values = {"predictions": np.full(SIZE, 0.05)}  # its norm is 3.2: nothing is clipped
        return await cohort.sum(values, reveal=Audience.HOST, bound=1.0, noise=given or noise())

    return run


@pytest.fixture
def ledgers(tmp_path: Path) -> Callable[[str], NoiseLedger]:
    def ledger_of(name: str) -> NoiseLedger:
        ledger = Ledger(tmp_path / name / "ledger.sqlite", Identity.generate(name))
        return NoiseLedger(name, NoiseSettings(epsilon=12.0), 3, ledger=ledger, run="test")

    return ledger_of


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_the_host_opens_a_noised_sum(mode: Protection, ledgers: Any) -> None:
    out = federate({n: program(n) for n in (*NAMES, "hub")}, host="hub", mode=mode, ledgers=ledgers)
    opened = out.results["hub"]["predictions"]
    assert opened.mean() == pytest.approx(
        4 * 3 / 64, abs=5 * noise().std / SIZE**0.5
    )  # 0.05 → 3/64
    # Sized for one dropout: with everybody there, the variance is 4/3 of what was promised.
    assert opened.var() == pytest.approx(noise().std ** 2 * 4 / 3, rel=0.12)


def test_with_the_planned_dropout_the_noise_is_as_promised(ledgers: Any) -> None:
    out = federate(
        {n: program(n) for n in (*NAMES, "hub")},
        host="hub",
        mode="he+secagg",
        ledgers=ledgers,
        engine=lambda s: LossyEngine(s, lose={"west": 2}),
    )
    assert out.results["hub"]["predictions"].var() == pytest.approx(noise().std ** 2, rel=0.12)


def test_more_dropouts_than_planned_are_not_opened(ledgers: Any) -> None:
    strict = noise(dropouts=0)
    out = federate(
        {n: program(n, strict) for n in (*NAMES, "hub")},
        host="hub",
        mode="he+secagg",
        ledgers=ledgers,
        engine=lambda s: LossyEngine(s, lose={"west": 2}),
        catch=True,
    )
    assert isinstance(out.error, CohortError) and "hub" not in out.results
    assert isinstance(out.sessions["east"].error, BudgetError)


def test_noise_is_refused_where_every_share_would_be_seen(ledgers: Any) -> None:
    out = federate(
        {n: program(n) for n in (*NAMES, "hub")},
        host="hub",
        mode="none",
        ledgers=ledgers,
        catch=True,
    )
    assert isinstance(out.sessions["east"].error, CryptoError)


def test_no_noise_without_a_ledger() -> None:
    out = federate({n: program(n) for n in (*NAMES, "hub")}, host="hub", mode="secagg", catch=True)
    assert "no ledger" in str(out.sessions["east"].error) and out.results == {}


def test_every_noised_sum_is_reserved_first(ledgers: Any) -> None:
    async def greedy(cohort: Cohort) -> Any:
        if not cohort.is_host:
            cohort.reserve(noise(), 1)
        for _ in range(2):
            values = {"predictions": np.full(SIZE, 0.05)}
            await cohort.sum(values, reveal=Audience.HOST, bound=1.0, noise=noise())

    names = (*NAMES, "hub")
    out = federate(
        dict.fromkeys(names, greedy), host="hub", mode="secagg", ledgers=ledgers, catch=True
    )
    assert isinstance(out.sessions["east"].error, BudgetError)
    assert "not in the ledger" in str(out.sessions["east"].error)


def test_a_spent_budget_refuses_and_stays_spent(ledgers: Any, tmp_path: Path) -> None:
    async def three_times(cohort: Cohort) -> Any:
        for _ in range(3):
            if not cohort.is_host:
                cohort.reserve(noise(), 4)

    names = (*NAMES, "hub")
    out = federate(
        dict.fromkeys(names, three_times), host="hub", mode="secagg", ledgers=ledgers, catch=True
    )
    assert isinstance(out.sessions["east"].error, BudgetError)
    chain = load_chain(tmp_path / "east" / "ledger.sqlite")
    spent = [e for e in chain.entries if e.state == "reserved"]
    assert 1 <= len(spent) <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"reveal": Audience.HOST, "bound": 1.0, "carry": True},  # its norm would travel exactly
        {"reveal": Audience.HOST},  # and so would its scale
        {"reveal": Audience.PARTIES},
        {"reveal": Audience.PARTIES, "bound": 1.0},
    ],
)
def test_nothing_that_is_not_noised_leaves_beside_noise(wrong: Any, ledgers: Any) -> None:
    async def run(cohort: Cohort) -> Any:
        if not cohort.is_host:
            cohort.reserve(noise(), 1)
        host_passes_none = cohort.is_host and wrong["reveal"] is Audience.PARTIES
        values = {} if host_passes_none else {"predictions": np.full(SIZE, 0.05)}
        return await cohort.sum(values, noise=noise(), **wrong)

    names = (*NAMES, "hub")
    out = federate(
        dict.fromkeys(names, run), host="hub", mode="he+secagg", ledgers=ledgers, catch=True
    )
    assert isinstance(out.sessions["east"].error, BudgetError) and out.results == {}
    assert "without noise" in str(out.sessions["east"].error)
    sent = [e for e in out.events if e["event"] == "crossing" and e["direction"] == "out"]
    assert not any(e["kind"] == "SumInput" and e["party"] == "east" for e in sent)


def test_shares_of_different_noise_are_not_opened_together(ledgers: Any) -> None:
    """One party alone asks for much: with little from the others it would not get it."""
    little = SkellamNoise(4.0, 64.0, 5.0, SIZE, len(NAMES), 1, 0)
    given = dict.fromkeys((*NAMES, "hub"), little) | {"east": noise()}

    def lenient(name: str) -> Any:
        ledger = NoiseLedger(name, NoiseSettings(epsilon=1e9), 3, run="test")
        return ledgers(name) if name == "east" else ledger

    out = federate(
        {n: program(n, given[n]) for n in given},
        host="hub",
        mode="he+secagg",
        ledgers=lenient,
        catch=True,
    )
    assert out.error is not None and out.results == {}
