"""Noise on predictions, before anything is sent: sized from the settings, or refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_fl import Federation, ProtectionSettings, Silo
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.privacy.planning import PredictionPlan, plan_predictions
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSums
from secure_fl.errors import BudgetError, SettingsError
from secure_fl.federation.assembly import make_keys, privacy_layer
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group, Rule
from secure_fl.settings import NoiseSettings
from secure_fl.testing.harness import federate
from tests.support.noised import CLASSES, DELTA, EXAMPLES, HUB, NAMES, VOTE, account, forced, played
from tests.support.private import notes
from tests.support.raising import raises


def test_host_and_parties_find_the_same_noise_as_the_settings_ask() -> None:
    out = played(forced())
    noises = {noise for noise, _ in out.results.values()}  # equal, and of equal hash
    assert len(out.results) == 5 and len(noises) == 1
    (noise,) = noises
    assert noise.epsilon(DELTA) == pytest.approx(8.0, rel=1e-4) and noise.epsilon(DELTA) <= 8.0
    assert (noise.parties, noise.dropouts, noise.colluders) == (4, 4 - 3, 1)
    assert noise.clip == pytest.approx(np.linalg.norm(VOTE))  # √(B(1 - 1/C)): a vote for sure
    said = [e["facts"] for e in out.events if e["event"] == "noise"]
    assert len(said) == 5 and {e["drowned"] for e in said} == {True}
    assert said[0]["std_guaranteed"] == pytest.approx(noise.std)
    given, _ = account(forced(std=20.0, epsilon=99.0)).size(EXAMPLES, CLASSES, 1, 4)
    assert given.std == pytest.approx(20.0)  # type: ignore[attr-defined]


def test_what_drowns_the_signal_is_refused_with_the_table_before_anything_is_sent() -> None:
    settings = NoiseSettings(epsilon=8.0)
    out = played(settings, catch=True)
    error = out.sessions["east"].error
    assert isinstance(error, BudgetError) and out.results == {}
    plan = PredictionPlan(4, CLASSES, EXAMPLES, EXAMPLES, 1, 1, DELTA, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    assert found.std_all_present > found.std_useful  # the reason
    assert error.reason == "noise-hides-signal"
    kinds = [e["kind"] for e in out.events if e["event"] == "crossing"]
    assert "SumInput" not in kinds
    less = 1 - 1e-9  # at the edge of what is useful, nothing is refused
    edge = found.std_useful * math.sqrt(2 / 4) * less  # all present: 4 shares for 2
    account(NoiseSettings(epsilon=1e9, std=edge)).size(EXAMPLES, CLASSES, 1, 4)
    with raises(BudgetError, reason="noise-hides-signal"):
        account(NoiseSettings(epsilon=1e9, std=edge * (1 + 1e-6))).size(EXAMPLES, CLASSES, 1, 4)


def test_a_useful_plan_runs_and_advice_makes_it_one() -> None:
    plan = PredictionPlan(4, CLASSES, EXAMPLES, EXAMPLES, 1, 1, DELTA, dropouts=1, colluders=1)
    opened = plan_predictions(plan, epsilon=8.0).opened_useful
    assert 0 < opened < EXAMPLES
    _, facts = account(NoiseSettings(epsilon=8.0)).size(opened, CLASSES, 1, 4)
    assert not facts["drowned"] and facts["correct"] >= 0.9
    _, facts = account(NoiseSettings(epsilon=8.0)).size(1, CLASSES, opened, 4)  # one at a time
    assert facts["correct"] == pytest.approx(0.9, abs=0.02)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"epsilon": 0}, "a number above 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"epsilon": 8, "delta": 1}, "a number below 1"),
        ({"epsilon": 8, "target_epsilon": 9}, "at most epsilon"),
        ({"epsilon": 8, "target_epsilon": 2, "std": 3}, "not both"),
        ({"epsilon": 8, "dropouts": -1}, "of at least 0"),
        ({"epsilon": 8, "ledger": ""}, "not empty"),
    ],
)
def test_odd_settings_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        NoiseSettings(**fields)


def test_noise_is_refused_where_shares_or_other_values_would_be_seen() -> None:
    with pytest.raises(SettingsError, match="a mode that hides updates"):
        ProtectionSettings(mode="none", noise=NoiseSettings(epsilon=8.0))
    silos = [Silo(name, notes(10, name)) for name in NAMES]
    protection = ProtectionSettings(noise=NoiseSettings(epsilon=8.0))
    with raises(SettingsError, field="protection.noise"):
        Federation(silos, FedAvg(), protection=protection)
    with raises(BudgetError, reason="no-noise-source"):
        account(forced(dropouts=3)).size(EXAMPLES, CLASSES, 1, 4)
    with raises(SettingsError, "colluders to 1 at most", field="protection.noise.colluders"):
        account(forced(dropouts=0, colluders=2)).size(EXAMPLES, CLASSES, 1, 4)


# --- slots --------------------------------------------------------------------------------------


def test_host_sums_have_16_bits_and_fit_for_128_parties() -> None:
    names = [f"h{i:03}" for i in range(128)]
    keys = make_keys("he+secagg", [*names[:2], HUB], HUB)
    cards = {name: keys["h000"].peers.get(name, keys["h000"].identity.public) for name in names}
    many = replace(keys["h000"], peers={**cards, HUB: keys[HUB].identity.public})
    protection = ProtectionSettings(bits=4)
    sums = privacy_layer(protection, many, CoordinatorRules(HUB, 3, 86), run=bytes(16), seed=0).sums
    assert isinstance(sums, SecureSums)
    scales, parties = sums.context.transcript.scales, sums.context.parties
    group = Group(tuple(names), {"y": VOTE})
    noise, _ = account(forced(), threshold=86).size(EXAMPLES, CLASSES, 4, 128)
    for given in (None, noise):
        codec = scales.layout(group, Rule(Audience.HOST, bound=1.0, noise=given), parties).codec
        assert codec.modulus == COHORT.modulus and codec.parties == 128 and codec.per_slot >= 1
        assert codec.bits >= 16
        assert given is None or codec.offset >= given.reach
    assert scales.layout(group, Rule(Audience.PARTIES, bound=1.0), parties).codec.bits == 4


def test_few_bits_for_updates_do_not_coarsen_predictions() -> None:
    values = np.linspace(-0.5, 0.5, 1001, dtype=np.float32)

    async def program(cohort: Cohort) -> Any:
        return await cohort.sum({"y": values}, reveal=Audience.HOST, bound=1.0)

    out = federate(dict.fromkeys((*NAMES, HUB), program), host=HUB, mode="secagg", bits=4)
    off = np.abs(out.results[HUB]["y"] - 4 * values).max()
    assert off <= 4 / (2**15 - 1) * 1.01  # with 4 bits a step alone would be 1/7
