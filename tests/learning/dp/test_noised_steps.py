"""Steps with shared noise: their sum, their spending before they are computed, and repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon
from secure_fl.crypto.privacy.ledger import Account, Budget, load_chain
from secure_fl.crypto.privacy.shared_noise import SharedNoise, variance_for
from secure_fl.crypto.privacy.training_account import DpAccount, document
from secure_fl.errors import BudgetError, CryptoError, SecureFLError
from secure_fl.learning.dp.noised_steps import UNSIZED, NoisedSteps, per_patient
from secure_fl.learning.dp.scope import open_ledger, privacy_of, sampling_units
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.settings import DPSettings, TrainingSettings
from secure_fl.testing.harness import LossyEngine, federate
from secure_fl.testing.hospitals import silos
from tests.support.private import notes
from tests.support.raising import raises
from tests.support.shared_steps import (
    BOUND,
    NAMES,
    SETTINGS,
    VALUES,
    Rows,
    account_of,
    four,
    one_hot,
    reserved,
    site_of,
    stepped,
)

# --- the sum -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropouts", [0, 1])
def test_a_sum_has_the_clipped_gradients_and_the_shares_of_all(dropouts: int) -> None:
    """Rows beyond the bound are clipped to it; noise is sized for dropouts and colluders."""
    out = stepped(four(dropouts=dropouts), rows=lambda s: one_hot(s, 7.0))
    ((mean,),) = {tuple(map(tuple, found)) for found in out.results.values()}
    total = np.array(mean) * 160 / BOUND
    expected = np.where(np.arange(VALUES) < 40, 4.0, 0.0)
    std = 2.0 * math.sqrt(4 / (3 - dropouts))
    assert (total - expected).std() == pytest.approx(std, rel=6 / math.sqrt(2 * VALUES))
    assert (total - expected).mean() == pytest.approx(0, abs=5 * std / math.sqrt(VALUES))


def test_local_noise_protects_each_hospital_alone() -> None:
    out = stepped(four(noise="local"))
    total = out.results["north"][0] * 160 / BOUND
    total[:40] -= 4.0
    assert total.std() == pytest.approx(2.0 * 2, rel=6 / math.sqrt(2 * VALUES))


def test_a_hospital_lost_in_a_step_within_the_plan_leaves_enough_noise() -> None:
    out = stepped(four(dropouts=1), engine=lambda s: LossyEngine(s, lose={"west": 2}), threshold=3)
    total = out.results["north"][0] * 160 / BOUND
    total[:40] -= 3.0
    assert total.std() == pytest.approx(2.0 * math.sqrt(3 / 2), rel=6 / math.sqrt(2 * VALUES))


def test_more_dropouts_than_planned_are_not_opened(tmp_path: Path) -> None:
    sites = four(tmp_path)
    out = stepped(sites, engine=lambda s: LossyEngine(s, lose={"west": 2}), threshold=3, catch=True)
    assert out.results == {} and out.error is not None
    error = out.sessions["east"].error
    assert isinstance(error, BudgetError) and error.reason == "too-many-dropouts"
    assert len(reserved(tmp_path)) == 1


def test_shares_do_not_leave_where_they_could_be_read() -> None:
    """The sealing layer refuses them, whatever the settings of a run allowed."""

    async def program(cohort: Cohort) -> Any:
        noise = SharedNoise(2.0, 8, 1, 4, 0, 1)
        values = noise.noised(np.zeros(8, np.int64), 2.0)
        return await cohort.sum({"gradient": values}, bound=noise.reach, noise=noise)

    out = federate(dict.fromkeys(NAMES, program), mode="none", catch=True)
    assert out.results == {}
    assert isinstance(out.sessions["north"].error, SecureFLError)


WRONG: list[Rows] = [
    lambda s: torch.ones(len(s) + 1, VALUES),
    lambda s: torch.ones(len(s), 1),
    lambda s: torch.ones(len(s), VALUES, 1),
]


@pytest.mark.parametrize("rows", WRONG)
def test_rows_that_are_not_units_are_refused(rows: Rows, tmp_path: Path) -> None:
    out = stepped(four(tmp_path), rows=rows, catch=True)
    error = out.sessions["east"].error
    assert isinstance(error, CryptoError) and "one row" in str(error) and out.results == {}
    assert len(reserved(tmp_path, "east")) == 1  # the step is spent


@pytest.mark.parametrize("unit", ["record", "patient"])
def test_one_unit_moves_the_sum_by_its_bound_at_most(unit: str) -> None:
    """All records of a patient together have the weight of one record."""
    dp = SETTINGS.model_copy(update={"unit": unit})
    records = notes(12, patients=4)
    units = sampling_units(records, dp, "a")
    each = 100 * torch.randn(12, VALUES, generator=torch.Generator().manual_seed(1)).double()
    moved = []
    for left in units:
        totals = []
        for given in (units, [u for u in units if u is not left]):
            flat = torch.cat([each[list(unit)] for unit in given])
            sizes = [len(unit) for unit in given]
            rows = per_patient(flat, sizes) if unit == "patient" else flat
            site = site_of(records=records, noise_multiplier=0.02, unit=unit, epsilon=1e9)
            noise = SharedNoise(0.02, VALUES, 1000, 4, 0, 1)
            (account_of(site)).units = given
            steps = NoisedSteps(None, site, 1.0, BOUND, 1000)  # type: ignore[arg-type]

            def computed(sample: Sequence[int], _: Any, rows: Tensor = rows) -> Iterator[Tensor]:
                return iter([rows])

            totals.append(steps._integers(b"", noise, computed))
        moved.append(float(np.linalg.norm(totals[0] - totals[1])))
    noise_of_both = math.sqrt(2 * VALUES * noise.share_variance)
    assert max(moved) <= noise.grid + 1.3 * noise_of_both
    assert min(moved) >= noise.grid - 1.3 * noise_of_both - VALUES**0.5  # truncation


def test_samples_are_poisson_with_secret_coins() -> None:
    """With rate q, a unit is in a step with probability q; two processes differ."""
    found: dict[int, list[list[int]]] = {}
    for process in range(2):
        site = site_of(rate=0.3, records=notes(400), passes=40)
        steps = NoisedSteps(None, site, 1.0, BOUND, 1000)  # type: ignore[arg-type]
        noise = SharedNoise(2.0, 1, 1, 4, 0, 1)

        def rows(sample: Sequence[int], _: Any, process: int = process) -> Iterator[Tensor]:
            found.setdefault(process, []).append(list(sample))
            return iter([torch.zeros(len(sample), 1)])

        for round in range(40):
            site.recorder.round = round
            steps._integers(b"", noise, rows)
    sizes = np.array([len(s) for s in found[0]])
    assert sizes.mean() == pytest.approx(120, abs=6 * math.sqrt(400 * 0.21 / 40))
    assert sizes.var() == pytest.approx(400 * 0.21, rel=1.2)
    assert found[0] != found[1] and len(set(map(tuple, found[0]))) == 40


# --- the ledger ----------------------------------------------------------------------------------


class Crash(Exception):  # noqa: N818
    """The end of a process."""


def test_steps_are_on_the_ledger_before_they_are_computed(tmp_path: Path) -> None:
    """A crash between reserving and computing spends the block, and stores nothing."""
    seen: list[list[Any]] = []

    def crash(sample: Sequence[int]) -> Tensor:
        seen.append(reserved(tmp_path, "east"))
        raise Crash

    stopped = stepped(four(tmp_path), rows=crash, catch=True)
    assert "Crash" in str(stopped.sessions["east"].error)
    assert seen == [[DpSgdSteps(2.0, 1.0, 3)]]
    assert not list((tmp_path / "east" / "trainings").glob("round-*"))
    chain = load_chain(tmp_path / "east" / "ledger.sqlite")
    assert [entry.state for entry in chain.entries] == ["opened", "reserved"]
    out = stepped(four(tmp_path))
    assert len(out.results) == 4
    assert reserved(tmp_path, "east") == [DpSgdSteps(2.0, 1.0, 3)] * 2


def test_a_block_of_steps_ends_with_its_process(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    stepped(four(tmp_path, events=events), 4)  # a block of three, and one of the next
    assert [e.steps for e in reserved(tmp_path)] == [3, 3]
    assert sum(e["event"] == "privacy" and e["party"] == "north" for e in events) == 2
    states = [e.state for e in load_chain(tmp_path / "north" / "ledger.sqlite").entries]
    assert states == ["opened", "reserved", "committed", "reserved"]
    stepped(four(tmp_path), 1, first=5)  # two reserved steps were left, and never return
    assert [e.steps for e in reserved(tmp_path)] == [3, 3, 3]


@pytest.mark.parametrize("noise", ["shared", "local"])
@pytest.mark.parametrize("crash", [55, 58, 60])
def test_a_crash_near_the_end_leaves_enough_for_the_last_steps(
    noise: Any, crash: int, tmp_path: Path
) -> None:
    """All planned steps cost the target, and a lost step has to be computed."""
    dp = DPSettings(epsilon=3, noise=noise, colluders=1, dropouts=0)

    def account() -> DpAccount:
        ledger = open_ledger(tmp_path, "north")
        units = [(k,) for k in range(500)]
        return DpAccount("north", dp, units, 32, passes=60, sample_rate=1.0, ledger=ledger, run="r")

    def step(one: DpAccount, number: int) -> None:
        if noise == "shared":
            one.require_own(SharedNoise(one.planned_multiplier(), 100, 500, 8, 0, 1))
        one.next_step(number)

    first = account()
    for number in range(1, crash):
        step(first, number)
        first.finish_step()
    state = first.state_dict()
    step(first, crash)  # never finished, and nothing of it is stored
    resumed = account()
    resumed.require_left()
    resumed.load_state_dict(state)
    for number in range(crash, 61):
        step(resumed, number)
        resumed.finish_step()
    (spent, steps) = resumed.spent(), resumed.statement()["steps"]
    assert spent is not None and spent <= 3 and steps == 60
    chain = load_chain(tmp_path / "ledger.sqlite")
    states = [row.state for row in chain.entries]
    assert states.count("reserved") == states.count("committed")


def test_a_checkpoint_returns_no_steps(tmp_path: Path) -> None:
    sites = four(tmp_path)
    stepped(sites, 1)
    saved = account_of(sites["north"]).state_dict()
    stepped(sites, 3, first=2)
    resumed = four(tmp_path)
    account_of(resumed["north"]).load_state_dict(saved)
    stepped(resumed, 1, first=5)
    assert [e.steps for e in reserved(tmp_path)] == [3, 3, 3]
    assert account_of(resumed["north"]).statement()["steps"] == 9


def test_a_repeated_step_sends_the_same_integers_and_costs_nothing(tmp_path: Path) -> None:
    """Bit for bit: only then the sum is opened a second time without a second release."""
    events: list[dict[str, Any]] = []
    first = stepped(four(tmp_path), 2).results["north"]
    again = stepped(four(tmp_path, events=events), 2).results["north"]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert [e.steps for e in reserved(tmp_path)] == [3]
    assert {e["event"] for e in events} == {"update_resent"}
    fresh = stepped(four(tmp_path, kept=False), 2).results["north"]
    assert not any(np.array_equal(a, b) for a, b in zip(first, fresh, strict=True))


@pytest.mark.parametrize("passes", [2, 30])
def test_a_repeated_step_with_calibrated_local_noise_costs_nothing(
    passes: int, tmp_path: Path
) -> None:
    """A crash calibrates the noise again, or leaves no budget for any: the step is found first."""
    fields: dict[str, Any] = {"noise": "local", "noise_multiplier": None, "epsilon": 3.0}

    def step(site: Site, round: int) -> Any:
        site.recorder.round = round
        steps = NoisedSteps(None, site, 40.0, BOUND, 1000)  # type: ignore[arg-type]
        noise = steps._noise(VALUES, UNSIZED)
        return steps._integers(b"%d" % round, noise, lambda s, _: iter([one_hot(s)]))

    site = site_of(folder=tmp_path, passes=passes, **fields)
    step(site, 1)
    saved = account_of(site).state_dict()
    lost, before = step(site, 2), reserved(tmp_path)
    resumed = site_of(folder=tmp_path, passes=passes, **fields)
    account_of(resumed).load_state_dict(saved)
    assert np.array_equal(step(resumed, 2), lost) and reserved(tmp_path) == before
    if passes > 2:
        step(resumed, 3)
        assert len(reserved(tmp_path)) == len(before) + 1


@pytest.mark.parametrize("changed", ["state", "noise", "round"])
def test_another_step_is_new(changed: str, tmp_path: Path) -> None:
    site = site_of(folder=tmp_path)
    noise = SharedNoise(2.0, VALUES, 1000, 4, 0, 1)

    def integers(state: bytes, noise: SharedNoise, round: int) -> Any:
        again = site_of(folder=tmp_path)
        again.recorder.round = round
        steps = NoisedSteps(None, again, 160.0, BOUND, 1000)  # type: ignore[arg-type]
        return steps._integers(state, noise, lambda s, _: iter([one_hot(s)]))

    one = integers(b"a", noise, 1)
    assert np.array_equal(integers(b"a", noise, 1), one)
    fewer = SharedNoise(2.0, VALUES, 1000, 3, 0, 1)
    others = {"state": (b"b", noise, 1), "noise": (b"a", fewer, 1), "round": (b"a", noise, 2)}
    assert not np.array_equal(integers(*others[changed]), one)
    assert len(reserved(tmp_path)) == 2 and site.privacy is not None


def test_a_spent_ledger_refuses_before_anything_is_computed(tmp_path: Path) -> None:
    two = epsilon([DpSgdSteps(2.0, 1.0, 6)], 1e-3, accountant="rdp")
    budget: dict[str, Any] = {"epsilon": two * 1.01, "folder": tmp_path}
    stepped({n: site_of(n, **budget) for n in NAMES}, 6)

    def touched(sample: Sequence[int]) -> Tensor:
        raise AssertionError("a record was read")

    sites = {n: site_of(n, **budget) for n in NAMES}
    out = stepped(sites, 1, touched, first=7, catch=True)
    error = out.sessions["east"].error
    assert isinstance(error, BudgetError) and error.reason == "spent" and out.results == {}
    assert [e.steps for e in reserved(tmp_path, "east")] == [3, 3]


FIELDS: dict[str, Any] = {"noise_multiplier": None, "epsilon": 3.0, "passes": 10}


def spend_before(folder: Path, event: DpSgdSteps, name: str = "north") -> None:
    ledger = open_ledger(folder / name, name)
    ledger.reserve(event, Account(name, "record"), Budget(50.0, 1e-3), run="earlier")


def test_a_hospital_with_earlier_spending_adds_more_and_stays_within_its_budget(
    tmp_path: Path,
) -> None:
    spend_before(tmp_path, DpSgdSteps(6.0, 1.0, 5))
    sites = four(tmp_path, **FIELDS)
    north, south = account_of(sites["north"]), account_of(sites["south"])
    out = stepped(sites, 10)
    assert north.noise_multiplier > 1.1 * south.noise_multiplier
    assert north.planned_multiplier() == south.planned_multiplier() == south.noise_multiplier
    for account in (north, south):
        spent = account.spent()
        assert spent is not None and 2.95 < spent <= 3.0
    σ = south.noise_multiplier
    noise = SharedNoise(σ, VALUES, 1000, 4, 0, 1)
    all_noise = 3 * noise.share_variance + noise.own(north.noise_multiplier)
    totals = np.concatenate([m * 160 / BOUND for m in out.results["east"]])
    totals -= np.tile(np.where(np.arange(VALUES) < 40, 4.0, 0.0), 10)
    assert (totals * noise.grid).var() == pytest.approx(all_noise, rel=6 / math.sqrt(5 * VALUES))
    assert noise.own(north.noise_multiplier) > 1.2 * noise.share_variance


def test_a_hospital_that_would_need_too_much_noise_of_its_own_refuses(tmp_path: Path) -> None:
    earlier = DpSgdSteps(1.2, 1.0, 1)
    spend_before(tmp_path, earlier)
    out = stepped(four(tmp_path, **FIELDS), catch=True)
    error = out.sessions["north"].error
    assert isinstance(error, BudgetError) and error.reason == "spent"
    assert out.results == {} and reserved(tmp_path) == [earlier]  # nothing is spent


@pytest.mark.parametrize(
    ("noise", "multiplier"), [("shared", None), ("local", None), ("shared", 1.0)]
)
def test_a_spent_ledger_is_refused_before_a_run(
    tmp_path: Path, noise: Any, multiplier: float | None
) -> None:
    silo = silos(1, 16)[0]
    dp = {"epsilon": 3.0, "delta": 1e-3, "noise": noise, "noise_multiplier": multiplier}
    training = TrainingSettings(dp=DPSettings(**dp, ledger=str(tmp_path)))
    assert privacy_of(silo, training, 10, None, step_rate=1.0) is not None
    spend_before(tmp_path, DpSgdSteps(1.0, 1.0, 1), silo.name)
    with raises(BudgetError, "3", reason="spent", party=silo.name) as caught:
        privacy_of(silo, training, 10, None, step_rate=1.0)
    assert "Nothing was computed" in caught.value.fix


# --- the result ----------------------------------------------------------------------------------


def results(sites: Mapping[str, Site]) -> dict[str, Any]:
    settings = account_of(sites["north"]).settings
    return document(settings, {name: account_of(site) for name, site in sites.items()})


def test_a_result_has_epsilon_by_view() -> None:
    sites = four()
    stepped(sites, 2)
    found, σ = results(sites), SharedNoise(2.0, VALUES, 1000, 4, 0, 1)
    for name, colluders in {"members": 1, "model": 0}.items():
        event = DpSgdSteps(σ.towards(2.0, colluders), 1.0, 3)
        assert found[name] == pytest.approx(epsilon([event], 1e-3, accountant="rdp"), rel=1e-6)
    by = found["shared"]["epsilon_by_colluders"]
    assert list(by) == ["0", "1", "2", "3"] and sorted(by.values()) == list(by.values())
    assert by["1"] == found["members"] == found["overall_epsilon"] and by["0"] == found["model"]


def test_every_member_knows_its_own_noise_whatever_the_plan_counts() -> None:
    """With colluders = 0, ε of the ledger is that of readers of the model."""
    sites = four(colluders=0)
    stepped(sites)
    found = results(sites)
    assert found["model"] == found["epsilon"]["north"] < found["members"]
    assert found["members"] == found["overall_epsilon"]
    assert found["shared"]["epsilon_by_colluders"]["1"] == found["members"]


@pytest.mark.parametrize("colluders", [1, 2])
def test_earlier_runs_count_towards_the_same_colluders(colluders: int, tmp_path: Path) -> None:
    """Members know their own noise of both runs, whatever the earlier one counted on."""
    runs = []
    for name, planned in (("a", 0), ("b", 1)):
        dp = DPSettings(epsilon=50, noise_multiplier=3.0, noise="shared", colluders=planned)
        ledger = open_ledger(tmp_path, "north")
        account = DpAccount(
            "north", dp, [(0,)], 1, passes=2, sample_rate=1.0, ledger=ledger, run=name
        )
        noise = SharedNoise(3.0, 100, 500, 4, 0, planned)
        account.share(noise)
        account.next_step(1)
        account.next_step(2)
        runs.append(noise.towards(3.0, colluders))
    events = [DpSgdSteps(σ, 1.0, 2) for σ in runs]
    assert account.towards(colluders) == pytest.approx(epsilon(events, dp.delta))
    assert account.towards(4) is None
    spent = account.spent()
    assert spent is not None and spent < (account.towards(1) or 0)


def test_more_own_noise_is_not_multiplied_for_readers_of_the_model(tmp_path: Path) -> None:
    spend_before(tmp_path, DpSgdSteps(6.0, 1.0, 5))
    sites = four(tmp_path, **FIELDS)
    stepped(sites, 10)
    north, plan = account_of(sites["north"]), account_of(sites["south"]).noise_multiplier
    grid = SharedNoise(plan, VALUES, 1000, 4, 0, 1).grid
    own = variance_for(north.noise_multiplier * grid) - 2 / 3 * variance_for(plan * grid)
    outside = math.sqrt(own + variance_for(plan * grid)) / grid  # three shares of others
    events = [DpSgdSteps(6.0, 1.0, 5), DpSgdSteps(outside, 1.0, 10)]
    assert north.towards(0) == pytest.approx(epsilon(events, 1e-3, accountant="rdp"), rel=1e-4)
    wrong = DpSgdSteps(north.noise_multiplier * math.sqrt(4 / 3), 1.0, 10)
    outside_epsilon = north.towards(0)
    assert outside_epsilon is not None
    assert outside_epsilon > epsilon([events[0], wrong], 1e-3, accountant="rdp") * 1.003


def test_a_run_that_lost_a_hospital_counts_the_smaller_gain(tmp_path: Path) -> None:
    """With fewer hospitals, a colluder is a larger part of them, but not in earlier steps."""
    sites = four(tmp_path)
    stepped(sites, 3)
    saved = {name: account_of(site).state_dict() for name, site in sites.items()}
    fewer = {name: site_of(name, tmp_path) for name in NAMES[:3]}
    for name, site in fewer.items():
        account_of(site).load_state_dict(saved[name])
    assert results(fewer)["shared"]["hospitals"] == 4  # also if no step follows
    stepped(fewer, 3, first=4)
    found = results(fewer)
    assert found["shared"]["hospitals"] == 3
    noise = SharedNoise(2.0, VALUES, 1000, 4, 0, 1)
    event = DpSgdSteps(noise.towards(2.0, 0), 1.0, 6)
    assert found["model"] == pytest.approx(epsilon([event], 1e-3, accountant="rdp"), rel=1e-6)


def test_nothing_is_promised_to_members_where_one_hospital_adds_all_noise() -> None:
    sites = four(colluders=0, dropouts=3)
    for site in sites.values():
        account_of(site).share(SharedNoise(2.0, VALUES, 1000, 4, 3, 0))
        account_of(site).next_step(1)
    found = results(sites)
    assert found["members"] is found["overall_epsilon"] is None and found["model"] is not None


def test_budgets_are_not_reached_by_an_infinite_bound() -> None:
    with raises(BudgetError, reason="no-noise-source"):
        SharedNoise(2.0, VALUES, 1000, 4, 3, 1)
