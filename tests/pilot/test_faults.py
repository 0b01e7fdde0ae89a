"""Random schedules of faults over every algorithm: a run ends, all agree, no input shows twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import CoordinatorKilled, Storm
from tests.support.sampling import mostly_slow
from tests.support.storm_checks import (
    require_equal,
    require_no_second_sum,
    require_untouched,
    spent,
)
from tests.support.storms import MODES, WAYS, play, storm


def ride(folder: Path, way: str, seed: int, **options: Any) -> tuple[Storm, str]:
    """One schedule from the first invitation to the end, with everything that must hold."""
    town = storm(folder, way, seed, **options)
    patience = (0.0, 3600.0)[seed % 2]
    before: dict[str, list[str]] = {}
    original = town.exchange

    def exchange(frames: Any, deadline: float) -> Any:
        yield from original(frames, deadline)
        now = spent(town)
        assert all(now[name][: len(was)] == was for name, was in before.items()), "ε was lost"
        before.update(now)

    if way == "fedavg-dp":
        town.exchange = exchange  # type: ignore[method-assign]
    try:
        stops = play(town, patience)
        town.calm()
        if not all(seat.done for seat in town.processes.values()):
            stops += play(town, 0)
        require_no_second_sum(town)
        assert any(seat.done for seat in town.processes.values()), f"it cannot go on: {stops[-1]}"
        if way not in ("inclusivefl", "heterofl"):
            assert all(seat.done for seat in town.processes.values()), "somebody was left behind"
        require_equal(town, way)
        return town, "untouched" if require_untouched(town, way) else "ended"
    except BaseException as error:
        again = f"ride(folder, {way!r}, {seed}, **{options})"
        error.add_note(f"to see it again: {again}; faults: {town.log}")
        raise


FEW = (("fedavg", 0, "secagg"), ("heterofl", 14, "he+secagg"), ("fedid", 17, "none"))
TWICE = [  # two schedules of each; noise takes long to account for
    (way, seed, MODES[at % 3])
    for at, way in enumerate(way for way in WAYS if way != "fedavg-dp")
    for seed in (2 * at, 2 * at + 1)
]


@pytest.mark.parametrize(("way", "seed", "mode"), mostly_slow(TWICE, *FEW))
def test_whatever_goes_wrong(tmp_path: Path, way: str, seed: int, mode: str) -> None:
    ride(tmp_path, way, seed, mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1100, 1400))
def test_whatever_goes_wrong_often(tmp_path: Path, seed: int) -> None:
    way = list(WAYS)[seed % len(WAYS)]
    ride(tmp_path, way, seed, most=8, chance=0.1)


def test_a_round_that_is_repeated_is_paid_for_once(tmp_path: Path) -> None:
    """The coordinator dies when all have trained in round 1; they send again what they sent."""
    town = storm(tmp_path, "fedavg-dp", 0, mode="none", most=0)
    town.plot.append(("Total", "hospital-1", "coordinator killed"))
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    once = spent(town)
    assert {len(entries) for entries in once.values()} == {1}
    town.lead(patience=0).run()
    paid = spent(town)
    assert {len(entries) for entries in paid.values()} == {2}
    assert all(paid[name][:1] == entries for name, entries in once.items())
    require_equal(town, "fedavg-dp")
