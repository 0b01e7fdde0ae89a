"""Noise on predictions, from the first sum to the ledger and into the result."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from secure_fl import Silo, TrainingSettings
from secure_fl.crypto.privacy.accounting import (
    GaussianRelease,
    SkellamRelease,
    decode_event,
    epsilon,
)
from secure_fl.crypto.privacy.ledger import Account, Budget, Ledger, load_chain
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.privacy.planning import PredictionPlan, plan_predictions
from secure_fl.errors import BudgetError, TamperError
from secure_fl.federation.result import Result
from secure_fl.learning.dp.scope import open_ledger, privacy_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.settings import DPSettings
from secure_fl.testing.harness import LossyEngine, Program, federate
from tests.support.event_documents import into
from tests.support.killing import Killed
from tests.support.noised import (
    CLASSES,
    DELTA,
    EXAMPLES,
    HUB,
    NAMES,
    SUMS,
    VOTE,
    Hook,
    Voting,
    account,
    federation,
    forced,
    hooks,
    played,
)
from tests.support.private import notes
from tests.support.raising import raises

__all__ = ["hooks"]  # a fixture


def reserved(file: Path, unit: str = "hospital") -> list[Any]:
    return [e for e in load_chain(file).entries if (e.state, e.unit) == ("reserved", unit)]


def in_run(folder: Path, party: str) -> Path:
    return folder / "parties" / party / "ledger.sqlite"


# --- the sum --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1])
def test_the_opened_sum_carries_what_was_claimed(lost: int) -> None:
    lose = {"west": 2} if lost else {}
    out = played(forced(), engine=lambda s: LossyEngine(s, lose=lose))
    noise, opened = out.results[HUB]
    variance = np.var(opened - (4 - lost) * VOTE)
    honest = 4 - lost
    expected = noise.std**2 * honest / (4 - 1 - 1)  # n - d - c shares are μ
    assert variance == pytest.approx(expected, rel=6 * math.sqrt(2 / opened.size))
    # One colluder takes its own share away: still what the table guarantees.
    assert variance * (honest - 1) / honest > noise.std**2 * (1 - 6 * math.sqrt(2 / opened.size))


def test_without_the_setting_there_is_no_noise_and_the_votes_are_seen(hooks: Any) -> None:
    async def program(cohort: Cohort) -> Any:
        noise = cohort.prediction_noise(EXAMPLES, CLASSES, 1)
        assert noise is None
        opened = await cohort.sum({"y": VOTE}, reveal=Audience.HOST, bound=1.0, noise=noise)
        return opened.get("y")

    out = federate(dict.fromkeys((*NAMES, HUB), program), host=HUB, mode="secagg")
    assert np.allclose(out.results[HUB], 4 * VOTE, atol=4 / 2**15)
    assert federation(None).run().document["noise"] is None


def test_no_other_sum_leaves_a_hospital_that_noise_protects() -> None:
    async def program(cohort: Cohort) -> Any:
        opened = await cohort.sum({"y": VOTE}, reveal=Audience.HOST, bound=1.0)  # noise forgotten
        return opened.get("y")

    programs: dict[str, Program] = dict.fromkeys((*NAMES, HUB), program)
    out = federate(programs, host=HUB, mode="he+secagg")
    assert np.allclose(out.results[HUB], 4 * VOTE, atol=4 / 2**15)  # where none was asked for
    out = federate(
        programs, host=HUB, mode="he+secagg", ledgers=lambda n: account(forced(), n), catch=True
    )
    assert HUB not in out.results
    assert "a sum without noise" in str(out.sessions["east"].error)


# --- the ledger ---------------------------------------------------------------------------------


def killed(run: Any) -> None:
    with pytest.raises(Killed):
        run.run()


def test_a_kill_leaves_the_reservation_of_a_round(hooks: dict[str, Hook], tmp_path: Path) -> None:
    def die(site: Site, round: int) -> None:
        if (site.name, round) == ("north", 2):
            raise Killed

    folder, noise = tmp_path / "run", forced(epsilon=30.0, target_epsilon=8.0)
    hooks["reserved"] = die
    killed(federation(noise, folder=folder))
    assert [e.round for e in reserved(in_run(folder, "north"))] == [1, 2]  # and 2 was never sent
    del hooks["reserved"]
    result = federation(noise, folder=folder, resume=True).run()
    for party in NAMES:
        entries = reserved(in_run(folder, party))
        events = [decode_event(e.event) for e in entries]
        began = 2 if party in ("east", "north") else 1  # in the order of their names
        assert [e.round for e in entries] == [1, *[2] * began], party
        assert {e.run for e in entries} == {entries[0].run}
        assert len({(e.mu, e.l1, e.l2) for e in events}) == 1  # type: ignore[union-attr]
    said = result.document["noise"]
    events = [decode_event(e.event) for e in reserved(in_run(folder, "north"))]
    assert said["releases"] == 3 * SUMS and said["epsilon"] > 8.0
    assert said["epsilon"] == said["epsilon_of_this_run"] == pytest.approx(by_hand(events))
    assert not list((folder / "parties" / HUB).glob("ledger.*"))  # it has nothing to enter


def by_hand(events: list[Any]) -> float:
    """Compose Skellam releases without our accountant: as Gaussians of variance μ - ⅓."""
    m = math.sqrt(sum(e.count * e.l2**2 / (e.mu - 1 / 3) for e in events))

    def excess(ε: float) -> float:
        return float(norm.cdf(m / 2 - ε / m) - math.exp(ε) * norm.cdf(-m / 2 - ε / m)) - DELTA

    return float(brentq(excess, 0, 100, xtol=1e-12))


def test_a_spent_budget_refuses_before_anything_is_sent(hooks: Any, tmp_path: Path) -> None:
    noise = forced(ledger=str(tmp_path / "ledgers"))
    result = federation(noise).run()
    assert result.document["noise"]["durable"]
    files = {name: tmp_path / "ledgers" / name / "ledger.sqlite" for name in NAMES}
    assert all(len(reserved(file)) == 2 for file in files.values())
    events: list[Any] = []
    with raises(BudgetError, "8 is spent", 4, reason="spent"):
        federation(noise, listener=into(events)).run()
    assert "SumInput" not in [e.get("kind") for e in events]
    assert all(len(reserved(file)) == 2 for file in files.values())


def test_a_run_that_would_not_fit_into_one_ledger_does_not_begin(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "north", "north")
    there = NoiseLedger("north", forced(), 3, ledger=ledger, run="a")
    there.ledger.reserve(  # type: ignore[union-attr]
        SkellamRelease(1e4, 10.0, 10.0), there.account, Budget(8.0, DELTA), run="earlier"
    )
    with raises(BudgetError, "hospital", reason="spent"):
        there.size(EXAMPLES, CLASSES, 4, 4)
    roomy = NoiseLedger("north", forced(epsilon=8.5, target_epsilon=8.0), 3, ledger=ledger, run="b")
    began, _ = roomy.size(EXAMPLES, CLASSES, 4, 4)
    roomy.enter(began, 3, 1)
    roomy.size(EXAMPLES, CLASSES, 4, 4)  # resumed: one sum is left to pay for
    ledger.reserve(
        SkellamRelease(1e4, 80.0, 80.0), there.account, Budget(50.0, DELTA), run="between"
    )
    with raises(BudgetError, "1 sums", reason="spent"):
        roomy.size(EXAMPLES, CLASSES, 4, 4)
    other = NoiseLedger("east", forced(), 3, run="a")
    noise, _ = other.size(EXAMPLES, CLASSES, 4, 4)  # the noise itself knows nothing of ledgers
    assert began == noise


def test_noise_for_other_neighbours_is_refused_without_a_ledger_too() -> None:
    there = account(forced())
    noise, _ = there.size(EXAMPLES, CLASSES, 1, 4)
    assert isinstance(noise, SkellamNoise)
    with raises(BudgetError, reason="adjacency"):
        there.enter(replace(noise, adjacency="replace-one"), 1, 1)
    assert there.spent() is None


def test_without_a_folder_spending_is_counted_and_said_not_to_last(hooks: Any) -> None:
    said = federation(forced()).run().document["noise"]
    assert not said["durable"] and said["epsilon"] == pytest.approx(8.0, rel=1e-4)
    there = account(forced())
    noise, _ = there.size(EXAMPLES, CLASSES, 2, 4)
    there.enter(noise, 2, 1)
    with raises(BudgetError, "1 more sums", reason="spent"):
        there.enter(noise, 1, 2)
    assert there.statement()["releases"] == 2


def test_two_runs_on_one_ledger_add_up_as_gaussians_do(hooks: Any, tmp_path: Path) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    noise = forced(epsilon=30.0, target_epsilon=6.0, ledger=str(tmp_path))
    one = federation(noise).run().document["noise"]
    two = federation(noise, algorithm=Voting(rounds=3)).run().document["noise"]
    assert one["epsilon"] == one["epsilon_of_this_run"] == pytest.approx(6.0, rel=1e-4)
    assert two["epsilon_of_this_run"] == pytest.approx(6.0, rel=1e-4)
    events = [decode_event(e.event) for e in reserved(tmp_path / "west" / "ledger.sqlite")]
    assert [e.count for e in events] == [SUMS] * 5  # type: ignore[union-attr]
    assert two["epsilon"] == pytest.approx(by_hand(events), rel=1e-6)
    composed = dp_accounting.DpEventBuilder()
    for e in events:
        assert isinstance(e, SkellamRelease)
        composed.compose(dp_accounting.GaussianDpEvent(math.sqrt(e.mu) / e.l2), e.count)
    theirs = PLDAccountant().compose(composed.build()).get_epsilon(DELTA)
    assert two["epsilon"] == pytest.approx(theirs, rel=0.01)
    assert two["epsilon"] >= epsilon(
        [GaussianRelease(math.sqrt(e.mu) / e.l2, e.count) for e in events],  # type: ignore[union-attr]
        DELTA,
    )


def test_records_and_hospitals_have_accounts_of_their_own(hooks: Any, tmp_path: Path) -> None:
    dp = DPSettings(epsilon=50.0, noise_multiplier=1.0, accountant="rdp")
    result: Result = federation(forced(), dp, folder=tmp_path / "run").run()
    file = in_run(tmp_path / "run", "south")
    hospital, record = reserved(file), reserved(file, "record")
    assert (len(hospital), len(record)) == (2, 2)
    assert {e.run for e in hospital} == {e.run for e in record}
    noise, privacy = result.document["noise"], result.document["privacy"]
    assert noise["epsilon"] == pytest.approx(by_hand([decode_event(e.event) for e in hospital]))
    alone = epsilon([decode_event(e.event) for e in record], DELTA, accountant="rdp")
    assert privacy["epsilon"]["south"] == pytest.approx(alone)
    training = TrainingSettings(batch_size=10, dp=dp)
    again = privacy_of(Silo("south", notes(30)), training, 1, tmp_path / "run")
    assert again is not None and len(again.state_dict()["spent"]) == 2  # not the hospital's
    key = open_ledger(tmp_path / "run" / "parties" / "south", "south").identity
    ledger = Ledger(file, key)
    assert ledger.spent(Account("south", "hospital"), DELTA) == pytest.approx(noise["epsilon"])


# --- the result ---------------------------------------------------------------------------------


def test_the_result_says_what_was_protected_and_at_what_price(hooks: Any) -> None:
    from secure_fl.cli.show import noise_line

    document = federation(forced()).run().document
    said = document["noise"]
    plan = PredictionPlan(4, CLASSES, EXAMPLES, EXAMPLES, 1, 4, DELTA, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    expected = {
        "unit": "hospital",
        "adjacency": "add-remove",
        "mechanism": "distributed Skellam",
        "delta": DELTA,
        "budget": 8.0,
        "releases": 4,
        "std_guaranteed": found.std,
        "std_all_present": found.std_all_present,
        "signal": 2.0,
        "signal_to_noise": 2.0 / found.std_all_present,
        "dropouts": 1,
        "colluders": 1,
        "scale": 64.0,
        "drowned": True,
    }
    assert {key: said[key] for key in expected} == expected
    assert "not the host's own labelled records" in said["assumes"]
    line = noise_line(document) or ""
    assert "ε = 8.000 of 8 per hospital" in line and "DROWNED" in line and "no durable" in line
    assert noise_line({}) is None and noise_line({"noise": None}) is None


@pytest.mark.parametrize("pinned", [False, True])
def test_a_run_does_not_go_on_with_a_ledger_that_lacks_its_noised_sums(
    pinned: bool, hooks: dict[str, Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the head in the checkpoint the result says less than was released."""
    folder, noise = tmp_path / "run", forced(epsilon=30.0, target_epsilon=8.0)
    if not pinned:
        monkeypatch.setattr(NoiseLedger, "state_dict", lambda _: {})
    ledger = folder / "parties" / "north" / "ledger.sqlite"
    copies: list[bytes] = []

    def copy_and_die(site: Site, round: int) -> None:
        if site.name == "north":
            copies.append(ledger.read_bytes())
        if (site.name, round) == ("north", 3):
            raise Killed

    hooks["reserved"] = copy_and_die
    killed(federation(noise, folder=folder, algorithm=Voting(rounds=3)))
    for beside in ledger.parent.glob("ledger.sqlite-*"):
        beside.unlink()
    ledger.write_bytes(copies[0])
    del hooks["reserved"]
    again = federation(noise, folder=folder, algorithm=Voting(rounds=3), resume=True)
    if pinned:
        with raises(TamperError, "older copy", reason="older-copy"):
            again.run()
        return
    again.run()
    assert [e.round for e in reserved(in_run(folder, "north"))] == [1, 3]  # 2 was released, too
