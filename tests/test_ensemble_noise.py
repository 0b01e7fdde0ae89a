"""Noise on predictions, from the settings to the ledger and into the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from secure_fl import Federation, ProtectionSettings, Silo, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.cohort import Cohort, Reveal
from secure_fl.crypto.accounting import epsilon
from secure_fl.crypto.events import GaussianRelease, SkellamRelease, decode_event
from secure_fl.crypto.ledger import Account, Budget, Ledger, load_chain
from secure_fl.crypto.noise_ledger import NoiseLedger
from secure_fl.crypto.planning import Predictions, plan_predictions
from secure_fl.crypto.scheme import COHORT, HOST
from secure_fl.crypto.secure_sum import SecureSum
from secure_fl.errors import BudgetError, SecureFLError, SettingsError
from secure_fl.private_scope import open_ledger, privacy_of
from secure_fl.protection import make_keys, party_sum
from secure_fl.protocol import Group, Rule
from secure_fl.result import Result
from secure_fl.settings import DPSettings, ModelSettings, NoiseSettings, TaskSettings
from secure_fl.silo import Site
from secure_fl.step import Rules
from tests.harness import Federated, LossyEngine, Program, federate
from tests.private import notes

NAMES, HUB = ("east", "north", "south", "west"), "hub"
DELTA = 1e-5
EXAMPLES, CLASSES, SUMS = 400, 2, 2  # of a round
VOTE = np.tile([0.5, -0.5], EXAMPLES).astype(np.float32)  # all for the first class, centred


class Voting(Algorithm):
    """Sums of votes for a host, and nothing else: what a round of distillation opens."""

    name: Literal["voting"] = "voting"
    rounds: int = 2

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        return EXAMPLES, SUMS * self.rounds


class Killed(BaseException):
    """Ends a run wherever it is raised, as a signal would."""


Hook = Callable[[Site, int], None]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Hook]:
    """What happens to a party between reserving and releasing; the algorithm is registered."""
    found: dict[str, Hook] = {}

    async def voting(cohort: Cohort, site: Site, cfg: Voting) -> None:
        examples, releases = cfg.releases(0, 0)
        noise = cohort.prediction_noise(examples, CLASSES, releases)
        async for round in cohort.rounds(cfg.rounds, keep={"site": site}):
            if site.training.dp is not None and not cohort.is_host:
                site.fit(site.model(), 1)
            if noise is not None:
                cohort.reserve(noise, SUMS)
            if "reserved" in found:
                found["reserved"](site, round.number)
            for _ in range(SUMS):
                await cohort.sum({"y": VOTE}, reveal=Reveal.HOST, bound=1.0, noise=noise)

    entry = Entry(Voting, voting, has_host=True, noised=True, through_fit=True)
    monkeypatch.setitem(ALGORITHMS, "voting", entry)
    return found


def federation(noise: NoiseSettings | None, dp: DPSettings | None = None, **options: Any) -> Any:
    silos = [Silo(name, notes(30, name), public=notes(4, "p")) for name in NAMES]
    hub = Silo(HUB, notes(10, HUB), public=notes(4, "p"), role="host")
    return Federation(
        [*silos, hub],
        options.pop("algorithm", Voting()),
        task=TaskSettings(labels=("no", "yes")),
        model=ModelSettings(layers=1),
        training=TrainingSettings(batch_size=10, dp=dp, device="cpu"),
        protection=ProtectionSettings(mode=options.pop("mode", "he+secagg"), noise=noise),
        **options,
    )


def forced(**fields: Any) -> NoiseSettings:
    return NoiseSettings(**{"epsilon": 8.0, "force": True} | fields)


def reserved(file: Path, unit: str = "hospital") -> list[Any]:
    return [e for e in load_chain(file).entries if (e.state, e.unit) == ("reserved", unit)]


def in_run(folder: Path, party: str) -> Path:
    return folder / "parties" / party / "ledger.sqlite"


# --- the sized noise ----------------------------------------------------------------------------


def account(settings: NoiseSettings, name: str = "north", threshold: int = 3) -> NoiseLedger:
    return NoiseLedger(name, settings, threshold)


def played(settings: NoiseSettings, west: Any = VOTE, **options: Any) -> Federated:
    """One noised sum over four parties and a host; every member returns noise and sum."""

    async def program(cohort: Cohort) -> Any:
        noise = cohort.prediction_noise(EXAMPLES, CLASSES, 1)
        assert noise is not None
        cohort.reserve(noise, 1)
        values = {"y": west if cohort.me == "west" else VOTE}
        opened = await cohort.sum(values, reveal=Reveal.HOST, bound=1.0, noise=noise)
        return noise, opened.get("y")

    programs: dict[str, Program] = dict.fromkeys((*NAMES, HUB), program)
    return federate(
        programs,
        host=HUB,
        mode=options.pop("mode", "he+secagg"),
        threshold=3,
        ledgers=lambda name: account(settings, name),
        **options,
    )


def test_host_and_parties_find_the_same_noise_as_the_settings_ask() -> None:
    out = played(forced())
    noises = {noise for noise, _ in out.results.values()}  # equal, and of equal hash
    assert len(out.results) == 5 and len(noises) == 1
    (noise,) = noises
    assert noise.epsilon(DELTA) == pytest.approx(8.0, rel=1e-4) and noise.epsilon(DELTA) <= 8.0
    assert (noise.parties, noise.dropouts, noise.colluders) == (4, 4 - 3, 1)
    assert noise.clip == pytest.approx(np.linalg.norm(VOTE))  # √(B(1 - 1/C)): a vote for sure
    said = [e for e in out.events if e["event"] == "noise"]
    assert len(said) == 5 and {e["drowned"] for e in said} == {True}
    assert said[0]["std_guaranteed"] == pytest.approx(noise.std)
    given, _ = account(forced(std=20.0, epsilon=99.0)).size(EXAMPLES, CLASSES, 1, 4)
    assert given.std == pytest.approx(20.0)  # type: ignore[attr-defined]


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
        opened = await cohort.sum({"y": VOTE}, reveal=Reveal.HOST, bound=1.0, noise=noise)
        return opened.get("y")

    out = federate(dict.fromkeys((*NAMES, HUB), program), host=HUB, mode="secagg")
    assert np.allclose(out.results[HUB], 4 * VOTE, atol=4 / 2**15)
    assert federation(None).run().document["noise"] is None


def test_no_other_sum_leaves_a_hospital_that_noise_protects() -> None:
    async def program(cohort: Cohort) -> Any:
        opened = await cohort.sum({"y": VOTE}, reveal=Reveal.HOST, bound=1.0)  # noise forgotten
        return opened.get("y")

    programs: dict[str, Program] = dict.fromkeys((*NAMES, HUB), program)
    out = federate(programs, host=HUB, mode="he+secagg")
    assert np.allclose(out.results[HUB], 4 * VOTE, atol=4 / 2**15)  # where none was asked for
    out = federate(
        programs, host=HUB, mode="he+secagg", ledgers=lambda n: account(forced(), n), catch=True
    )
    assert HUB not in out.results
    assert "a sum without noise" in str(out.sessions["east"].error)


def test_what_drowns_the_signal_is_refused_with_the_table_before_anything_is_sent() -> None:
    settings = NoiseSettings(epsilon=8.0)
    out = played(settings, catch=True)
    error = out.sessions["east"].error
    assert isinstance(error, BudgetError) and out.results == {}
    plan = Predictions(4, CLASSES, EXAMPLES, EXAMPLES, 1, 1, DELTA, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    assert found.std_all_present > found.std_useful  # the reason
    for text in (
        f"std {found.std:.1f} guaranteed with 1 dropout and 1 colluder; "
        f"{found.std_all_present:.1f} when all are present",
        f"{found.signal:.2f} on a sum over 4 parties",
        f"{found.correct:.1%} (guessing: 50.0%)",
        f"one of: {found.parties_useful} parties; {found.opened_useful} predictions opened",
        "protection.noise.force = true",
    ):
        assert text in str(error)
    kinds = [e["kind"] for e in out.events if e["event"] == "crossing"]
    assert "SumInput" not in kinds
    less = 1 - 1e-9  # at the edge of what is useful, nothing is refused
    edge = found.std_useful * math.sqrt(2 / 4) * less  # all present: 4 shares for 2
    account(NoiseSettings(epsilon=1e9, std=edge)).size(EXAMPLES, CLASSES, 1, 4)
    with pytest.raises(BudgetError, match="drowns"):
        account(NoiseSettings(epsilon=1e9, std=edge * (1 + 1e-6))).size(EXAMPLES, CLASSES, 1, 4)


def test_a_useful_plan_runs_and_advice_makes_it_one() -> None:
    plan = Predictions(4, CLASSES, EXAMPLES, EXAMPLES, 1, 1, DELTA, dropouts=1, colluders=1)
    opened = plan_predictions(plan, epsilon=8.0).opened_useful
    assert 0 < opened < EXAMPLES
    _, facts = account(NoiseSettings(epsilon=8.0)).size(opened, CLASSES, 1, 4)
    assert not facts["drowned"] and facts["correct"] >= 0.9
    _, facts = account(NoiseSettings(epsilon=8.0)).size(1, CLASSES, opened, 4)  # one at a time
    assert facts["correct"] == pytest.approx(0.9, abs=0.02)


def test_predictions_that_are_no_numbers_leave_nobody() -> None:
    broken = VOTE.copy()
    broken[3] = np.nan
    out = played(forced(), west=broken, catch=True)
    assert out.error is not None and HUB not in out.results
    error = out.sessions["west"].error
    assert isinstance(error, SecureFLError) and "NaN" in str(error)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"epsilon": 0}, "greater than 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"epsilon": 8, "delta": 1}, "less than 1"),
        ({"epsilon": 8, "target_epsilon": 9}, "up to the budget"),
        ({"epsilon": 8, "target_epsilon": 2, "std": 3}, "not both"),
        ({"epsilon": 8, "dropouts": -1}, "greater than or equal to 0"),
        ({"epsilon": 8, "ledger": ""}, "at least 1 character"),
    ],
)
def test_odd_settings_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        NoiseSettings(**fields)


def test_noise_is_refused_where_shares_or_other_values_would_be_seen() -> None:
    with pytest.raises(ValidationError, match="with none, each would be seen"):
        ProtectionSettings(mode="none", noise=NoiseSettings(epsilon=8.0))
    silos = [Silo(name, notes(10, name)) for name in NAMES]
    protection = ProtectionSettings(noise=NoiseSettings(epsilon=8.0))
    with pytest.raises(SettingsError, match="fedavg opens are not only predictions"):
        Federation(silos, FedAvg(), protection=protection)
    with pytest.raises(BudgetError, match="nobody is left"):
        account(forced(dropouts=3)).size(EXAMPLES, CLASSES, 1, 4)


# --- the ledger ---------------------------------------------------------------------------------


def killed(run: Any) -> None:
    with pytest.raises(Killed):
        run.run()


def test_a_kill_leaves_the_reservation_and_a_repeated_round_is_a_second_release(
    hooks: dict[str, Hook], tmp_path: Path
) -> None:
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
    """Compose Skellam releases without our accountant: the bound of the paper, then RDP to DP."""
    best = math.inf
    for α in range(2, 1000):
        total = 0.0
        for e in events:
            fine = ((2 * α - 1) * e.l2**2 + 6 * e.l1) / (4 * e.mu**2)
            total += e.count * (α * e.l2**2 / (2 * e.mu) + min(fine, 3 * e.l1 / (2 * e.mu)))
        best = min(best, total - (math.log(DELTA) + math.log(α)) / (α - 1) + math.log(1 - 1 / α))
    return best


def test_a_spent_budget_refuses_before_anything_is_sent(hooks: Any, tmp_path: Path) -> None:
    noise = forced(ledger=str(tmp_path / "ledgers"))
    result = federation(noise).run()
    assert result.document["noise"]["durable"]
    files = {name: tmp_path / "ledgers" / name / "ledger.sqlite" for name in NAMES}
    assert all(len(reserved(file)) == 2 for file in files.values())
    events: list[Any] = []
    with pytest.raises(BudgetError, match=r"8 is spent, and the 4 sums of this run would make it"):
        federation(noise, listener=events.append).run()
    assert "SumInput" not in [e.get("kind") for e in events]
    assert all(len(reserved(file)) == 2 for file in files.values())


def test_a_run_that_would_not_fit_into_one_ledger_does_not_begin(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "north", "north")
    there = NoiseLedger("north", forced(), 3, ledger=ledger, run="a")
    there.ledger.reserve(  # type: ignore[union-attr]
        SkellamRelease(1e4, 10.0, 10.0), there.account, Budget(8.0, DELTA), run="earlier"
    )
    with pytest.raises(BudgetError, match="per hospital"):
        there.size(EXAMPLES, CLASSES, 4, 4)
    roomy = NoiseLedger("north", forced(epsilon=8.5, target_epsilon=8.0), 3, ledger=ledger, run="b")
    began, _ = roomy.size(EXAMPLES, CLASSES, 4, 4)
    roomy.enter(began, 3, 1)
    roomy.size(EXAMPLES, CLASSES, 4, 4)  # resumed: one sum is left to pay for
    ledger.reserve(
        SkellamRelease(1e4, 80.0, 80.0), there.account, Budget(50.0, DELTA), run="between"
    )
    with pytest.raises(BudgetError, match="the 1 sums of this run"):
        roomy.size(EXAMPLES, CLASSES, 4, 4)
    other = NoiseLedger("east", forced(), 3, run="a")
    noise, _ = other.size(EXAMPLES, CLASSES, 4, 4)  # the noise itself knows nothing of ledgers
    assert began == noise


def test_without_a_folder_spending_is_counted_and_said_not_to_last(hooks: Any) -> None:
    said = federation(forced()).run().document["noise"]
    assert not said["durable"] and said["epsilon"] == pytest.approx(8.0, rel=1e-4)
    there = account(forced())
    noise, _ = there.size(EXAMPLES, CLASSES, 2, 4)
    there.enter(noise, 2, 1)
    with pytest.raises(BudgetError, match="1 more sums would make it"):
        there.enter(noise, 1, 2)
    assert there.statement()["releases"] == 2


def test_two_runs_on_one_ledger_add_up_as_gaussians_do(hooks: Any, tmp_path: Path) -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    noise = forced(epsilon=30.0, target_epsilon=6.0, ledger=str(tmp_path))
    one = federation(noise).run().document["noise"]
    two = federation(noise, algorithm=Voting(rounds=3)).run().document["noise"]
    assert one["epsilon"] == one["epsilon_of_this_run"] == pytest.approx(6.0, rel=1e-4)
    assert two["epsilon_of_this_run"] == pytest.approx(6.0, rel=1e-4)
    events = [decode_event(e.event) for e in reserved(tmp_path / "west" / "ledger.sqlite")]
    assert [e.count for e in events] == [SUMS] * 5  # type: ignore[union-attr]
    assert two["epsilon"] == pytest.approx(by_hand(events), rel=1e-9)
    composed = dp_accounting.DpEventBuilder()
    for e in events:
        assert isinstance(e, SkellamRelease)
        composed.compose(dp_accounting.GaussianDpEvent(math.sqrt(e.mu) / e.l2), e.count)
    theirs = RdpAccountant([*range(2, 64)]).compose(composed.build()).get_epsilon(DELTA)
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
    plan = Predictions(4, CLASSES, EXAMPLES, EXAMPLES, 1, 4, DELTA, dropouts=1, colluders=1)
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
    assert "coordinator" in federation(forced(), mode="he").run().document["noise"]["assumes"]
    line = noise_line(document) or ""
    assert "ε = 8.000 of 8 per hospital" in line and "DROWNED" in line and "no durable" in line
    assert noise_line({}) is None and noise_line({"noise": None}) is None


# --- slots --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_sums", ["masks", "sealed"])
def test_host_sums_have_16_bits_and_fit_for_128_parties(host_sums: Any) -> None:
    names = [f"h{i:03}" for i in range(128)]
    keys = make_keys("he+secagg", [*names[:2], HUB], HUB)
    cards = {name: keys["h000"].peers.get(name, keys["h000"].identity.public) for name in names}
    many = replace(keys["h000"], peers={**cards, HUB: keys[HUB].identity.public})
    protection = ProtectionSettings(bits=4, host_sums=host_sums)
    sums = party_sum(protection, many, Rules(HUB, 3, 86), run=bytes(16), seed=0)
    assert isinstance(sums, SecureSum)
    group = Group(tuple(names), {"y": VOTE})
    noise, _ = account(forced(), threshold=86).size(EXAMPLES, CLASSES, 4, 128)
    modulus = (HOST if host_sums == "sealed" else COHORT).modulus
    for given in (None, noise):
        codec = sums._layout(group, Rule("host", bound=1.0, noise=given)).codec
        assert codec.modulus == modulus and codec.parties == 128 and codec.per_slot >= 1
        assert codec.bits >= 16
        assert given is None or codec.offset >= given.reach
    assert sums._layout(group, Rule("parties", bound=1.0)).codec.bits == 4


def test_few_bits_for_updates_do_not_coarsen_predictions() -> None:
    values = np.linspace(-0.5, 0.5, 1001, dtype=np.float32)

    async def program(cohort: Cohort) -> Any:
        return await cohort.sum({"y": values}, reveal=Reveal.HOST, bound=1.0)

    out = federate(dict.fromkeys((*NAMES, HUB), program), host=HUB, mode="secagg", bits=4)
    off = np.abs(out.results[HUB]["y"] - 4 * values).max()
    assert off <= 4 / (2**15 - 1) * 1.01  # with 4 bits a step alone would be 1/7
