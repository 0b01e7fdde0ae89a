"""Noise through the door: it is in the sum before anybody opens it, and never below the claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_fl.cohort import Cohort, Reveal
from secure_fl.crypto.noise import SkellamNoise
from secure_fl.errors import BudgetError, CohortError, CryptoError
from secure_fl.settings import Protection
from tests.harness import LossyEngine, Program, federate

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
        values = {"predictions": np.full(SIZE, 0.05)}  # its norm is 3.2: nothing is clipped
        return await cohort.sum(values, reveal=Reveal.HOST, bound=1.0, noise=given or noise())

    return run


@pytest.mark.parametrize("mode", ["secagg", "he", "he+secagg"])
def test_the_host_opens_a_noised_sum(mode: Protection) -> None:
    out = federate({n: program(n) for n in (*NAMES, "hub")}, host="hub", mode=mode, bits=8)
    opened = out.results["hub"]["predictions"]
    assert opened.mean() == pytest.approx(
        4 * 3 / 64, abs=5 * noise().std / SIZE**0.5
    )  # 0.05 → 3/64
    # Sized for one dropout: with everybody there, the variance is 4/3 of what was promised.
    assert opened.var() == pytest.approx(noise().std ** 2 * 4 / 3, rel=0.12)


def test_with_the_planned_dropout_the_noise_is_as_promised() -> None:
    out = federate(
        {n: program(n) for n in (*NAMES, "hub")},
        host="hub",
        mode="he+secagg",
        engine=lambda s: LossyEngine(s, lose={"west": 2}),
    )
    assert out.results["hub"]["predictions"].var() == pytest.approx(noise().std ** 2, rel=0.12)


def test_more_dropouts_than_planned_are_not_opened() -> None:
    strict = noise(dropouts=0)
    out = federate(
        {n: program(n, strict) for n in (*NAMES, "hub")},
        host="hub",
        mode="he+secagg",
        engine=lambda s: LossyEngine(s, lose={"west": 2}),
        catch=True,
    )
    assert isinstance(out.error, CohortError) and "hub" not in out.results
    assert isinstance(out.sessions["east"].error, BudgetError)


def test_noise_is_refused_where_every_share_would_be_seen() -> None:
    out = federate({n: program(n) for n in (*NAMES, "hub")}, host="hub", mode="none", catch=True)
    assert isinstance(out.sessions["east"].error, CryptoError)
