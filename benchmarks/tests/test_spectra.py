"""Updates taken apart: figures are those of the singular values, and claims are held to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.checkpoint import BUILT_IN, Checkpoint
from benchmarks.datasets import Spread
from benchmarks.evidence import spectra
from benchmarks.evidence.cells import Cell, Place, key_of, run
from benchmarks.evidence.claims import Arm, Bench, Shown
from benchmarks.evidence.markdown import singular_values
from benchmarks.evidence.slim import slim
from benchmarks.evidence.summary import rows
from benchmarks.evidence.tables.fedkd_paper import low_rank

RNG = np.random.default_rng(3)
ROUNDS = 2


@pytest.mark.parametrize("shape", [(40, 40), (40, 90), (90, 40)])
def test_concentration_is_that_of_the_singular_values(shape: tuple[int, int]) -> None:
    update = RNG.standard_normal(shape) * np.linspace(1, 5, shape[1])
    energy = np.linalg.svd(update, compute_uv=False) ** 2
    share = energy.cumsum() / energy.sum()
    needed, held = spectra.concentration(update.astype(np.float32))
    assert share[round(needed * 40) - 1] >= 0.95 > share[round(needed * 40) - 2]
    assert held == pytest.approx(share[3], rel=1e-5)  # the first tenth of forty


def test_the_extremes() -> None:
    one = np.outer(RNG.standard_normal(20), RNG.standard_normal(30))
    assert spectra.concentration(one) == pytest.approx((1 / 20, 1.0))
    assert spectra.concentration(np.eye(20)) == pytest.approx((0.95, 0.1), abs=0.051)
    assert spectra.concentration(np.zeros((20, 20))) == (1.0, 0.0)  # nothing learnt, nothing held


def test_kinds_are_the_papers() -> None:
    names = ("attention.self.query", "attention.output.dense", "output.dense", "pooling.query")
    found = [spectra.kind_of(f"backbone.encoder.layer.0.{name}.weight") for name in names]
    assert found == ["W_Q", None, "W", None]


def cell(**changes: Any) -> Cell:
    spread = Spread(("built-in ade",), 3, train=24)
    algorithm = {"name": "fedkd", "student_layers": 1, "factors": "none", "rounds": ROUNDS}
    model, clear = {"layers": 2}, {"mode": "none"}
    return Cell("ade", "FedKD", 0, spread, algorithm, model, protection=clear, **changes)


def test_a_cell_is_taken_apart_round_by_round() -> None:
    place = Place(None, Checkpoint(BUILT_IN, BUILT_IN))
    assert key_of(cell(), place) != key_of(cell(decomposed=True), place)
    whole, apart = run(cell(), place), run(cell(decomposed=True), place)
    assert whole["metrics"] == apart["metrics"] and "spectra" not in whole  # the same run
    assert set(apart["spectra"]) == {"W_Q", "W_K", "W_V", "W"}
    for found in apart["spectra"].values():
        assert len(found) == ROUNDS and all(0 < at["needed"] <= 1 for at in found)
        assert all(spectra.FIRST <= at["held"] <= 1 for at in found)

    listed = rows([(cell(decomposed=True), slim(apart))], None)
    text = "\n".join(singular_values(listed))
    assert text.count("| W_Q |") == 1  # once for the run, not for each of its two models
    assert "needed, round 2" in text and "held, round 1 | held, round 2" in text


def at(first: float, last: float) -> list[dict[str, float]]:
    return [{"needed": first, "held": 0.5}, {"needed": last, "held": 0.5}]


def judged(read: Any, *seeds: dict[str, Any]) -> str:
    titles = {"group": "", "data": "ade", "method": "FedKD", "model": ""}
    bench = Bench([{**titles, "spectra": list(seeds)}], "", "ade")
    return bench.judge(Shown("", Arm("FedKD"), read)).verdict


def test_claims_about_spectra_come_out_either_way() -> None:
    low = [{"W_Q": at(0.30 + e, 0.4), "W": at(0.10 + 2 * e, 0.2)} for e in (0, 0.01, 0.02)]
    assert judged(low_rank, *low) == "holds"
    assert judged(low_rank, low[0]) == "cannot be told"
    high = [{"W_Q": at(0.70 + e, 0.6), "W": at(0.80 + 2 * e, 0.7)} for e in (0, 0.01, 0.02)]
    assert judged(low_rank, *high) == "does not hold"
    assert judged(low_rank) == "not run"
