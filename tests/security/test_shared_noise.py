"""Shared noise: no view has a sum with less noise than ε promises.

Each attack guesses which canaries are in a hospital's steps: first where one part of the mechanism
is missing, and it disproves ε there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from secure_fl import TrainingSettings
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.probe import Probe
from secure_fl.audits.audit_statistics import gdp_epsilon, mu_lower_bound
from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon
from secure_fl.crypto.privacy.shared_noise import SharedNoise, on_grid
from secure_fl.crypto.sealing.packing import SLOT_BYTES, to_slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import BudgetError, CohortError, SecureFLError, SettingsError, TooFewParties
from secure_fl.events import EventLog
from secure_fl.learning.dp.scope import dropouts_of, require_noise_sources
from secure_fl.party.cohort import Cohort
from secure_fl.party.hooks import RoundHook
from secure_fl.protocol import messages
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import DPSettings
from secure_fl.testing.harness import LossyEngine, Program, federate
from secure_fl.testing.hospitals import small
from tests.support.attacker import NAMES, Wiretap, looks_uniform
from tests.support.raising import raises
from tests.support.shared_steps import BOUND, VALUES, four, reserved, stepped

DELTA, SIZE, STEPS, VICTIM = 1e-5, 9000, 4, "west"
NOISE = SharedNoise(2.0, SIZE, 8, parties=4, dropouts=0, colluders=1)
CLAIM = epsilon([DpSgdSteps(2.0, 1.0, STEPS)], DELTA)
COINS = np.random.default_rng(3).integers(2, size=SIZE).astype(bool)
Integers = NDArray[np.int64]


def canaries() -> Integers:
    """The victim's sum of clipped gradients: each coin decides about a gradient at its bound."""
    total = np.zeros(SIZE, np.int64)
    for start in range(0, SIZE, 500):  # all other values of these gradients are 0
        rows = np.diag(9 * BOUND * COINS[start : start + 500])
        total[start : start + 500] = on_grid(rows, BOUND, NOISE.grid).sum(axis=0)
    return total


CANARIES = canaries()


def disproved(seen: Sequence[NDArray[Any]]) -> float:
    """The ε that guessing all coins from these views of the steps disproves, at 99 %."""
    guessed = np.sum(seen, axis=0) > len(seen) * NOISE.grid / 2
    hits, alarms = int(guessed[COINS].sum()), int(guessed[~COINS].sum())
    μ = mu_lower_bound(hits, int(COINS.sum()), alarms, int((~COINS).sum()), 0.99)
    return gdp_epsilon(μ, DELTA)


def own(me: str, noise: SharedNoise = NOISE) -> Integers:
    """One hospital's integers of a step."""
    total = CANARIES if me == VICTIM else np.zeros(SIZE, np.int64)
    return noise.noised(total, noise.multiplier)


def programs(
    noise: SharedNoise = NOISE, lazy: Sequence[str] = (), sent: dict[str, Any] | None = None
) -> dict[str, Program]:
    """Hospitals that make the steps; lazy ones add no noise. `sent` gets their integers."""

    async def run(cohort: Cohort) -> list[Any]:
        opened = []
        for step in range(STEPS):
            values = np.zeros(SIZE, np.int64) if cohort.me in lazy else own(cohort.me, noise)
            if sent is not None:
                values = sent.setdefault(f"{cohort.me} {step}", values)
            sums = await cohort.sum({"g": values}, bound=noise.reach, noise=noise)
            opened.append((sums["g"], values))
        return opened

    return dict.fromkeys(NAMES, run)


def known_to(out: Any, *members: str) -> list[NDArray[Any]]:
    """Subtract the members' own shares from the opened sums, as colluding members can."""
    shares = [[values for _, values in out.results[m]] for m in members]
    opened = [total for total, _ in out.results[members[0]]]
    return [total - np.sum(parts, axis=0) for total, *parts in zip(opened, *shares, strict=True)]


# --- one hospital's upload -----------------------------------------------------------------------


def test_a_share_that_is_read_alone_hides_less_than_epsilon_promises() -> None:
    """Without masks, the coordinator reads the victim's upload, with a third of the noise."""

    async def run(cohort: Cohort) -> None:
        for _ in range(STEPS):
            await cohort.sum({"g": own(cohort.me).astype(np.float32)}, bound=NOISE.reach)

    tap = Wiretap()
    federate(dict.fromkeys(NAMES, run), mode="none", engine=tap)
    uploads = [heard.bulk for heard in tap.of(messages.SumInput, VICTIM)]
    seen = [np.frombuffer(data, "<f4").astype(np.float64) for data in uploads]
    assert len(seen) == STEPS and disproved(seen) > 1.2 * CLAIM


def test_shares_of_noise_are_refused_where_uploads_can_be_read() -> None:
    tap = Wiretap()
    out = federate(programs(), mode="none", engine=tap, catch=True)
    assert out.results == {} and isinstance(out.sessions["east"].error, SecureFLError)
    assert not any(heard.bulk for heard in tap.of(messages.SumInput))


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_masked_uploads_show_nothing_and_members_see_what_epsilon_allows(mode: Any) -> None:
    tap = Wiretap()
    out = federate(programs(), mode=mode, engine=tap)
    (upload, *_) = tap.of(messages.SumInput, VICTIM)
    if mode == "secagg":
        slots = to_slots(upload.bulk, len(upload.bulk) // SLOT_BYTES)
        assert looks_uniform(slots, COHORT.modulus)
    member = disproved(known_to(out, "east"))
    reader = disproved([total for total, _ in out.results["east"]])
    outside = epsilon([DpSgdSteps(NOISE.towards(2.0, 0), 1.0, STEPS)], DELTA)
    assert 0.6 * CLAIM < member < CLAIM
    assert 0.6 * outside < reader < outside


def test_a_run_that_would_send_shares_without_masks_does_not_begin() -> None:
    dp = DPSettings(epsilon=8.0, noise="shared")
    training = TrainingSettings(device="cpu", dp=dp)
    with pytest.raises(SettingsError, match="an update can be read alone"):
        small(Probe(fit="logistic"), "none", training=training)


def test_an_algorithm_that_trains_before_it_sums_does_not_begin() -> None:
    training = TrainingSettings(device="cpu", dp=DPSettings(epsilon=8.0, noise="shared"))
    with pytest.raises(SettingsError, match="share of the noise"):
        small(FedAvg(), "he+secagg", training=training)


@pytest.mark.parametrize(("colluders", "dropouts"), [(3, 0), (1, 2), (0, 3)])
def test_a_run_without_enough_noise_sources_does_not_begin(colluders: int, dropouts: int) -> None:
    dp = DPSettings(epsilon=8.0, noise="shared", colluders=colluders, dropouts=dropouts)
    training = TrainingSettings(device="cpu", dp=dp)
    with pytest.raises(SettingsError, match="none of the 3 hospitals"):
        small(Probe(fit="logistic"), "he+secagg", training=training)


def test_noise_for_dropouts_that_no_sum_survives_is_refused() -> None:
    dp = DPSettings(epsilon=8.0, noise="shared", dropouts=2)
    with raises(SettingsError, "dropouts = 1", field="training.dp.dropouts"):
        require_noise_sources(dp, 6, 5)
    require_noise_sources(dp, 6, 4)


def test_a_run_resumes_without_the_dropouts_of_its_plan() -> None:
    dp = DPSettings(epsilon=8.0, noise="shared", dropouts=1)
    require_noise_sources(dp, 4, 3)
    require_noise_sources(dp, 3, 3, resumed=True)
    assert dropouts_of(dp, 4, 3) == 1 and dropouts_of(dp, 3, 3) == 0
    with raises(SettingsError, "dropouts = 0", field="training.dp.dropouts"):
        require_noise_sources(dp, 3, 3)  # a new run


@pytest.mark.parametrize(("threshold", "colluders"), [(3, 2), (5, 4)])
def test_a_run_whose_masks_do_not_withstand_the_colluders_does_not_begin(
    threshold: int, colluders: int
) -> None:
    """With a lying coordinator, they unmask one upload, and its share has too little noise."""
    n = threshold + 1
    share = SharedNoise(2.0, 1, 1, n, 0, colluders).share_variance
    assert share < 0.6 * SharedNoise(2.0, 1, 1, n, 0, n - 1).share_variance
    dp = DPSettings(epsilon=8.0, noise="shared", colluders=colluders, dropouts=0)
    with pytest.raises(SettingsError, match="could open the values of single hospitals"):
        require_noise_sources(dp, n, threshold)
    require_noise_sources(dp, n, n)  # here, all hospitals are needed for each sum
    alone = dp.model_copy(update={"colluders": n - 1})
    require_noise_sources(alone, n, threshold)  # every share is all the noise


# --- members that collude, or add nothing --------------------------------------------------------


@pytest.mark.parametrize(("planned", "kept"), [(1, False), (2, True)])
def test_colluders_up_to_the_plan_learn_no_more_than_epsilon(planned: int, kept: bool) -> None:
    """Two members subtract both shares: more than the claim if one was planned."""
    noise = replace(NOISE, colluders=planned)
    out = federate(programs(noise), mode="secagg")
    assert (disproved(known_to(out, "east", "north")) < CLAIM) == kept


@pytest.mark.parametrize(("planned", "kept"), [(1, False), (2, True)])
def test_hospitals_that_add_no_noise_count_as_colluders(planned: int, kept: bool) -> None:
    """North adds nothing, which nobody can see; east subtracts its own share."""
    noise = replace(NOISE, colluders=planned)
    out = federate(programs(noise, lazy=["north"]), mode="secagg")
    assert (disproved(known_to(out, "east")) < CLAIM) == kept


# --- sums over fewer hospitals -------------------------------------------------------------------


class Unchecked(SharedNoise):
    """A planted defect: noise that is content with any number of survivors."""

    def check_survivors(self, survivors: int) -> None:
        """Accept fewer shares than promised."""


def lossy(sessions: Any) -> LossyEngine:
    return LossyEngine(sessions, lose={"south": 2})


def test_a_sum_that_lost_a_share_reveals_too_much_and_is_not_opened() -> None:
    defect = Unchecked(2.0, SIZE, 8, 4, 0, 1)
    out = federate(programs(defect), mode="secagg", engine=lossy, threshold=3)
    assert disproved(known_to(out, "east")) > CLAIM
    out = federate(programs(), mode="secagg", engine=lossy, threshold=3, catch=True)
    error = out.sessions["east"].error
    assert isinstance(error, BudgetError) and error.reason == "too-many-dropouts"
    assert out.results == {}
    planned = federate(
        programs(replace(NOISE, dropouts=1)), mode="secagg", engine=lossy, threshold=3
    )
    assert disproved(known_to(planned, "east")) < CLAIM


class Half(RoundHook):
    """A hook that sums over some of the hospitals, as a search of the guard does."""

    def contributors(self, parties: Sequence[str]) -> Sequence[str]:
        """Select all but one."""
        return [party for party in parties if party != "south"]


def test_a_sum_over_a_selection_of_hospitals_has_too_few_shares() -> None:
    def hook(name: str, log: EventLog) -> RoundHook:
        return Half()

    out = federate(programs(), mode="secagg", hooks=hook, catch=True)
    error = out.sessions["east"].error
    assert isinstance(error, BudgetError) and error.reason == "too-many-dropouts"
    assert out.results == {}


# --- repeated steps ------------------------------------------------------------------------------


class Nothing:
    """A site without state."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing."""


def test_a_step_repeated_without_a_hospital_would_show_its_integers(tmp_path: Path) -> None:
    """The difference has the victim's own share only. With checkpoints, it is not opened."""
    noise, sent = replace(NOISE, dropouts=1), dict[str, Any]()

    def lose(sessions: Any) -> LossyEngine:
        return LossyEngine(sessions, lose={VICTIM: 2})

    options: dict[str, Any] = {"mode": "secagg", "threshold": 3}
    whole = federate(programs(noise, sent=sent), **options)
    rest = federate(programs(noise, sent=sent), engine=lose, **options)
    pairs = zip(whole.results["east"], rest.results["east"], strict=True)
    assert disproved([all_four - three for (all_four, _), (three, _) in pairs]) > 1.2 * CLAIM

    def kept() -> dict[str, PartyCheckpoints]:
        return {name: PartyCheckpoints(tmp_path / name / "rounds", Nothing()) for name in NAMES}

    federate(programs(noise, sent=sent), kept=kept(), **options)
    again = federate(programs(noise, sent=sent), kept=kept(), **options)
    assert all(np.array_equal(a, b) for a, b in zip(*map(opened, (whole, again)), strict=True))
    options |= {"engine": lose, "catch": True}
    out = federate(programs(noise, sent=sent), kept=kept(), **options)
    assert isinstance(out.error, TooFewParties) and out.results == {}

    def hide(message: messages.Ready, data: bytes) -> Any:
        return structs.replace(message, opened=()), data

    options["faults"] = {name: {messages.Ready: hide} for name in NAMES}  # a lying coordinator
    out = federate(programs(noise, sent=sent), kept=kept(), **options)
    error = out.sessions["east"].error
    assert isinstance(error, CohortError) and "was opened over" in str(error)
    assert out.results == {}


def opened(out: Any) -> list[NDArray[Any]]:
    return [total for total, _ in out.results["east"]]


def test_repeating_a_step_averages_no_noise_away(tmp_path: Path) -> None:
    """Without stored integers, each repeat has other noise, and is spent until none is left."""
    repeats = 8

    def errors(folder: Path, kept: bool) -> tuple[float, int]:
        sums = []
        for _ in range(repeats):
            out = stepped(four(folder, kept=kept, passes=10))
            sums.append(out.results["north"][0] * 160 / BOUND)
        expected = np.where(np.arange(VALUES) < 40, 4.0, 0.0)
        return float((np.mean(sums, axis=0) - expected).std()), len(reserved(folder))

    one = 2.0 * math.sqrt(4 / 3)
    off, blocks = errors(tmp_path / "fresh", kept=False)
    assert off == pytest.approx(one / math.sqrt(repeats), rel=0.2) and blocks == repeats
    off, blocks = errors(tmp_path / "stored", kept=True)
    assert off == pytest.approx(one, rel=0.2) and blocks == 1
