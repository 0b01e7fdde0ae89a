"""What DP-SGD spends: before it computes, never more than allowed, and said in the result."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.baselines.reference_points import Centralized
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon, gaussian_epsilon
from secure_fl.crypto.privacy.ledger import Account, Ledger, events_of, load_chain
from secure_fl.crypto.privacy.training_account import DpAccount, document
from secure_fl.data.silo import Silo
from secure_fl.errors import BudgetError, KeyringError, SettingsError, TamperError
from secure_fl.events import Event, PrivacySpent
from secure_fl.federation.federation import Federation
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.dp.dp_sgd import fit_privately
from secure_fl.learning.dp.scope import open_ledger, privacy_of
from secure_fl.settings import DPSettings, ModelSettings, ProtectionSettings, TrainingSettings
from secure_fl.testing.hospitals import silos, small
from tests.support.event_documents import into
from tests.support.private import dp_settings, make_site, notes
from tests.support.processes import this_code
from tests.support.raising import raises


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_that_of_dp_accounting_and_of_opacus(accountant: Any) -> None:
    from dp_accounting import dp_event, rdp
    from dp_accounting.pld import PLDAccountant
    from opacus.accountants import PRVAccountant, RDPAccountant

    site = make_site(notes(60), batch_size=10, accountant=accountant, delta=1e-4)
    for round in (1, 2):
        site.recorder.round = round
        fit_privately(site, site.model(), 2)
    privacy = site.privacy
    assert privacy is not None and privacy.opacus is not None
    said = privacy.statement()
    assert (said["sample_rate"], said["steps"]) == (1 / 6, 24)
    one = dp_event.PoissonSampledDpEvent(1 / 6, dp_event.GaussianDpEvent(1.0))
    events = dp_event.SelfComposedDpEvent(one, 24)
    exact = PLDAccountant().compose(events).get_epsilon(1e-4)
    looser = rdp.RdpAccountant().compose(events).get_epsilon(1e-4)
    theirs = {"rdp": RDPAccountant, "prv": PRVAccountant}[accountant]()
    theirs.load_state_dict(privacy.opacus)
    assert said["epsilon"] == pytest.approx(looser if accountant == "rdp" else exact, rel=0.02)
    assert said["epsilon"] >= exact - 1e-3
    assert said["epsilon"] == pytest.approx(theirs.get_epsilon(1e-4), rel=0.01)


def test_a_target_above_the_plans_noise_costs_no_more_than_the_noise() -> None:
    dp = DPSettings(epsilon=8, noise_multiplier=6.0, noise="shared", accountant="rdp")

    def account(own: float | None) -> DpAccount:
        units = [[unit] for unit in range(500)]
        return DpAccount("x", dp, units, 500, passes=20, sample_rate=1.0, own_epsilon=own)

    assert account(8.0).noise_multiplier == 6.0  # it is in the sums, so it is charged
    assert account(8.0).planned() == account(None).planned()
    assert account(2.0).noise_multiplier > 6.0 and (account(2.0).planned() or 9) <= 2


def test_a_site_asks_for_more_local_noise_too() -> None:
    training = TrainingSettings(dp=DPSettings(epsilon=8.0, delta=1e-3, noise="local"))
    silo = silos(1, 16)[0]
    plain, own = (
        privacy_of(silo, training, 10, None, step_rate=1.0, own_epsilon=epsilon)
        for epsilon in (None, 0.5)
    )
    assert plain is not None and own is not None
    assert own.noise_multiplier > plain.noise_multiplier and (own.planned() or 9) <= 0.5
    assert own.planned_multiplier() == plain.planned_multiplier()


def ledger_events(ledger: Ledger) -> list[Any]:
    return list(events_of(load_chain(ledger.path), "north", "record"))


def test_a_round_is_on_the_ledger_before_its_first_step(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "north", "north")
    site = make_site(ledger=ledger)
    seen: list[list[Any]] = []
    real = site.train.batch

    class Crash(Exception):  # noqa: N818
        pass

    class Watched:
        def __len__(self) -> int:
            return len(site.silo.train)

        def batch(self, *args: Any) -> Any:
            seen.append(ledger_events(ledger))
            if len(seen) == 3:
                raise Crash
            return real(*args)

    site.__dict__["train"] = Watched()
    model = site.model()
    names = [name for name, _ in model.named_parameters()]
    with pytest.raises(Crash):
        fit_privately(site, model, 1)
    whole = [DpSgdSteps(1.0, 0.25, 4)]
    assert seen == [whole] * 3
    assert ledger_events(ledger) == whole  # one step was made, and four are spent
    states = [entry.state for entry in load_chain(ledger.path).entries]
    assert states == ["opened", "reserved"]  # and never committed
    assert [name for name, _ in model.named_parameters()] == names
    resumed = make_site(ledger=open_ledger(tmp_path / "north", "north"))
    fit_privately(resumed, model, 1)
    assert resumed.privacy is not None
    assert resumed.privacy.statement()["steps"] == 8
    spent = ledger.spent(Account("north", "record"), 1e-5)
    assert spent == pytest.approx(epsilon(whole * 2, 1e-5))


@pytest.mark.parametrize("durable", [True, False])
def test_the_budget_refuses_before_anything_is_computed(tmp_path: Path, durable: bool) -> None:
    ledger = open_ledger(tmp_path / "north", "north") if durable else None
    one = epsilon([DpSgdSteps(1.0, 0.25, 4)], 1e-5, accountant="rdp")
    two = epsilon([DpSgdSteps(1.0, 0.25, 8)], 1e-5, accountant="rdp")
    site = make_site(ledger=ledger, epsilon=(one + two) / 2)
    model = site.model()
    fit_privately(site, model, 1)
    before = {name: weight.clone() for name, weight in trainable(model).items()}
    site.__dict__["train"] = None  # no record can be touched
    with raises(BudgetError, 4, reason="spent"):
        fit_privately(site, model, 1)
    assert all(torch.equal(before[name], weight) for name, weight in trainable(model).items())
    assert site.privacy is not None
    assert site.privacy.statement()["epsilon"] == pytest.approx(one)


def test_a_target_finds_the_noise_for_all_rounds_and_a_crash_leaves_less(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    ledger = open_ledger(tmp_path / "north", "north")
    settings: dict[str, Any] = {
        "noise_multiplier": None,
        "epsilon": 3.0,
        "passes": 3,
        "delta": 1e-3,
        "accountant": "rdp",  # which finds noise sooner
    }
    site = make_site(ledger=ledger, listener=into(events), **settings)
    assert site.privacy is not None
    assert site.privacy.planned() == pytest.approx(3.0, rel=1e-3)
    model = site.model()
    fit_privately(site, model, 1)
    saved = site.state_dict()
    said = next(event for event in events if event["event"] == "privacy")
    assert said["epsilon_planned"] <= 3.0 and said["epsilon"] < said["epsilon_planned"]
    fit_privately(site, model, 1)  # a round that is lost: its checkpoint was never written
    resumed = make_site(ledger=ledger, **settings)
    resumed.load_state_dict(saved)
    assert resumed.privacy is not None
    assert resumed.privacy.noise_multiplier > site.privacy.noise_multiplier
    for _ in range(2):
        fit_privately(resumed, model, 1)
    assert 2.9 < resumed.privacy.statement()["epsilon"] <= 3.0
    with pytest.raises(BudgetError):
        fit_privately(resumed, model, 1)


def account_of_run(place: Path, run: str, **settings: Any) -> DpAccount:
    """Open the account of a new run of 3 passes over 400 records, on the ledger of all runs."""
    fields: dict[str, Any] = {"epsilon": 3.0, "target_epsilon": 1.0, "accountant": "rdp"}
    dp = DPSettings(**fields | settings)
    units, ledger = [[n] for n in range(400)], open_ledger(place / "north", "north")
    account = DpAccount("north", dp, units, 100, passes=3, ledger=ledger, run=run)
    account.require_left()
    return account


def test_a_target_is_what_one_run_may_spend_whatever_earlier_runs_spent(tmp_path: Path) -> None:
    noises, total = [], 0.0
    for run in ("one", "two", "three"):
        account = account_of_run(tmp_path, run)
        noises.append(account.noise_multiplier)
        with account.spend(3, 1) as spending:
            assert spending.planned == pytest.approx(spending.epsilon) and spending.epsilon > total
        total = spending.epsilon
        assert 0.99 < account.statement()["epsilon_of_this_run"] <= 1.0
    assert noises[0] == noises[1] == noises[2] and 1.5 < total <= 3.0


def test_a_run_whose_target_is_more_than_the_rest_of_the_budget_gets_more_noise(
    tmp_path: Path,
) -> None:
    first = account_of_run(tmp_path, "one", epsilon=1.2)
    with first.spend(3, 1):
        pass
    second = account_of_run(tmp_path, "two", epsilon=1.2)
    assert second.noise_multiplier > 1.2 * first.noise_multiplier
    with second.spend(3, 1) as spending:
        assert 1.19 < spending.epsilon <= 1.2


def test_a_nearly_spent_budget_is_not_spent_on_noise(tmp_path: Path) -> None:
    with account_of_run(tmp_path, "one", epsilon=1.001).spend(3, 1):
        pass
    with raises(BudgetError, "the noise multiplier would be", reason="spent") as caught:
        account_of_run(tmp_path, "two", epsilon=1.001)
    assert "above 50" in caught.value.what and "training.dp.epsilon" in caught.value.fix
    allowed = account_of_run(tmp_path, "three", epsilon=1.1)  # more than its plan, and useful
    assert 1.5 < allowed.noise_multiplier < 50


def test_a_plan_with_much_noise_may_have_it(tmp_path: Path) -> None:
    """Steps over all records need a large multiplier, and the noise is small beside their sum."""
    units, ledger = [[n] for n in range(400)], open_ledger(tmp_path / "north", "north")
    dp = DPSettings(epsilon=2.0, target_epsilon=1.0, accountant="rdp")
    for run in ("one", "two"):
        account = DpAccount(
            "north", dp, units, 400, passes=500, sample_rate=1.0, ledger=ledger, run=run
        )
        account.require_left()
        assert 80 < account.noise_multiplier < 160
        with account.spend(500, 1):
            pass


def test_a_run_that_has_spent_more_than_its_target_is_told_so(tmp_path: Path) -> None:
    with account_of_run(tmp_path, "one").spend(1, 1):
        pass
    resumed = account_of_run(tmp_path, "one", target_epsilon=0.1)  # a site may lower its own
    with raises(BudgetError, "of its 0.1", reason="spent", party="north") as caught:
        _ = resumed.noise_multiplier
    assert "target_epsilon" in caught.value.fix


def test_a_run_in_the_folder_of_an_erased_one_is_another_run(tmp_path: Path) -> None:
    place, folder = tmp_path / "ledgers", tmp_path / "runs" / "study"
    dp = DPSettings(epsilon=2.0, target_epsilon=1.0, accountant="rdp", ledger=str(place))
    silo = Silo("north", notes(40))

    def opened() -> DpAccount:
        training = TrainingSettings(dp=dp, batch_size=10)
        account = privacy_of(silo, training, 2, folder, identity)
        assert account is not None
        return account

    identity = Identity.generate("north")
    first = opened()
    with first.spend(2, 1):
        pass
    assert opened().statement()["steps"] == 8  # of the same run, resumed
    open_ledger(place / "north", "north", identity).note("erased", "{}", run="study")
    second = opened()
    assert second.statement()["steps"] == 0
    assert second.noise_multiplier == first.noise_multiplier
    with second.spend(2, 1):
        pass
    assert opened().statement()["steps"] == 8


def test_a_simulation_in_the_folder_of_a_removed_one_is_another_run(tmp_path: Path) -> None:
    """Its steps are charged, and those of the removed run count as an earlier run's."""
    folder, ledgers = tmp_path / "runs" / "study", str(tmp_path / "ledgers")

    def opened(epsilon: float = 9.0) -> DpAccount:
        dp = dp_settings(noise_multiplier=2.0, epsilon=epsilon, ledger=ledgers)
        training = TrainingSettings(dp=dp, batch_size=10)
        account = privacy_of(Silo("north", notes(40)), training, 2, folder)
        assert account is not None
        return account

    folder.mkdir(parents=True)
    with opened().spend(2, 1) as first:
        pass
    assert opened().statement()["steps"] == 8  # of the same run, resumed
    shutil.rmtree(folder)
    second = opened()
    assert second.statement()["steps"] == 0
    with second.spend(2, 1) as both:
        assert both.epsilon > 1.2 * first.epsilon
    shutil.rmtree(folder)
    with raises(BudgetError, "more steps would make it", reason="spent"):  # before any training
        opened(both.epsilon)


def test_a_resumed_site_goes_on_with_its_accountant(tmp_path: Path) -> None:
    from secure_fl.runs import checkpoint

    site = make_site()
    fit_privately(site, site.model(), 1)
    with site.surroundings():
        checkpoint.save(tmp_path / "state", site.state_dict())
    other = make_site()
    other.load_state_dict(checkpoint.load(tmp_path / "state"))
    fit_privately(other, other.model(), 2)
    assert other.privacy is not None and other.privacy.opacus is not None
    assert [tuple(entry) for entry in other.privacy.opacus["history"]] == [(1.0, 0.25, 12)]
    assert other.privacy.statement()["steps"] == 12


def federation(records: int = 30, **options: Any) -> Federation:
    dp = dp_settings(**options.pop("dp", {}))
    names = ("north", "east", "south")
    silos = [Silo(name, notes(records, name), dev=notes(6, f"{name}-dev")) for name in names]
    return Federation(
        silos,
        options.pop("algorithm", FedAvg(rounds=2)),
        model=ModelSettings(layers=1),
        training=TrainingSettings(batch_size=10, dp=dp, device="cpu"),
        protection=ProtectionSettings(mode=options.pop("mode", "none")),
        **options,
    )


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_a_federation_says_what_it_spent(mode: Any, tmp_path: Path) -> None:
    result = federation(mode=mode, folder=tmp_path / "run").run()
    said = result.document["privacy"]
    ε = epsilon([DpSgdSteps(1.0, 1 / 3, 6)], 1e-5, accountant="rdp")
    assert said["epsilon"] == {name: pytest.approx(ε) for name in ("east", "north", "south")}
    assert said["overall_epsilon"] == pytest.approx(ε)
    assert said["steps"]["north"] == 6 and said["sample_rate"]["north"] == pytest.approx(1 / 3)
    assert said["noise_multiplier"]["north"] == 1.0 and said["durable"]["north"]
    rules = {"unit": "record", "adjacency": "add-remove", "delta": 1e-5, "accountant": "rdp"}
    assert (rules | {"max_grad_norm": 1.0}).items() <= said.items()
    ledger = load_chain(tmp_path / "run" / "parties" / "north" / "ledger.sqlite")
    assert [e.state for e in ledger.entries] == ["opened", *["reserved", "committed"] * 2]
    assert [e.round for e in ledger.entries[1::2]] == [1, 2]
    assert all(bool(torch.isfinite(weight).all()) for weight in trainable(result.model).values())


def test_a_ledger_outlives_runs_and_stops_them(tmp_path: Path) -> None:
    two = epsilon([DpSgdSteps(1.0, 1 / 3, 6)], 1e-5, accountant="rdp")
    dp = {"ledger": str(tmp_path / "ledgers"), "epsilon": two * 1.01}
    first = federation(dp=dp).run().document["privacy"]
    assert first["epsilon"]["south"] == pytest.approx(two)
    with raises(BudgetError, reason="spent"):
        federation(dp=dp).run()
    file = tmp_path / "ledgers" / "east" / "ledger.sqlite"
    assert len(load_chain(file).entries) == 5
    (tmp_path / "ledgers" / "east" / "ledger.key").unlink()
    with raises(KeyringError, reason="missing"):
        federation(dp=dp).run()
    (file.parent / "ledger.key").write_bytes(Identity.generate("east").to_private_bytes())
    (file.parent / "ledger.key").chmod(0o600)
    with pytest.raises(TamperError):
        federation(dp=dp).run()


def test_a_run_of_all_records_in_one_place_has_one_account() -> None:
    result = federation(algorithm=Centralized(rounds=1)).run()
    assert list(result.document["privacy"]["epsilon"]) == ["all-records"]
    assert not any(result.document["privacy"]["durable"].values())


def test_a_federation_resumes_with_what_it_spent(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def stop(event: Event) -> None:
        if isinstance(event, PrivacySpent) and event.round == 2 and event.party == "south":
            raise Stop

    with pytest.raises(Exception):  # noqa: B017
        federation(folder=tmp_path / "run", listener=stop).run()
    said = federation(folder=tmp_path / "run", resume=True).run().document["privacy"]
    steps = {"east": 6, "north": 6, "south": 9}  # who was amid round 2 has spent it twice
    assert said["steps"] == steps
    ε = epsilon([DpSgdSteps(1.0, 1 / 3, 9)], 1e-5, accountant="rdp")
    assert said["epsilon"]["south"] == pytest.approx(ε)


def test_trainings_of_a_round_are_counted_from_one() -> None:
    """A later version of this program finds a stored training only by the same number."""
    account = DpAccount("north", dp_settings(), [[n] for n in range(40)], 10)
    trained = [account.trained_in(round) for round in (3, 3, 4, 4, 4)]
    assert trained == [(3, 1), (3, 2), (4, 1), (4, 2), (4, 3)]


def test_only_shared_noise_assumes_something_about_hospitals() -> None:
    assumes = {}
    for noise in ("local", "shared"):
        settings = dp_settings(noise=noise)
        account = DpAccount("north", settings, [[n] for n in range(40)], 10)
        with account.spend(1, 1):
            pass
        assumes[noise] = document(settings, {"north": account})["assumes"]
    more = assumes["shared"].removeprefix(assumes["local"])
    assert more != assumes["shared"] and "1 hospital reveals its noise" in more


def test_settings_files_can_ask_for_it(tmp_path: Path) -> None:
    from secure_fl.config import load as config

    text = """
    [data]
    corpus = "ade"
    [algorithm]
    name = "fedavg"
    [training.dp]
    epsilon = 8
    ledger = "ledgers"
    """
    found = config.loads(text, tmp_path)
    assert found.training.dp == DPSettings(epsilon=8.0, ledger=str(tmp_path / "ledgers"))
    assert config.loads(config.dump(found)) == found
    with raises(SettingsError, line=8, field="training.dp.accountant"):
        config.loads(text.replace("epsilon = 8", 'epsilon = 8\n    accountant = "gdp"'))
    with raises(SettingsError, line=10, field="training"):
        config.loads(text + '\n[training]\nprecision = "bfloat16"')


def test_plain_runs_say_that_nothing_is_promised() -> None:
    assert small(FedAvg(rounds=1)).run().document["privacy"] is None


def test_noise_of_whole_steps_is_exact_and_needs_no_opacus() -> None:
    """A step over all records has a formula: its noise is the least, to a millionth."""
    code = (
        "import sys\n"
        "from secure_fl.crypto.privacy.training_account import multiplier_for\n"
        "from secure_fl.settings import DPSettings\n"
        "print(multiplier_for(DPSettings(epsilon=3.0), 1.0, 60), 'opacus' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | this_code(), capture_output=True, check=True
    )
    σ, loaded = done.stdout.decode().split()
    assert loaded == "False"
    at, below = (gaussian_epsilon(float(σ) * f / 60**0.5, 1e-5) for f in (1.0, 1 - 3e-6))
    assert at <= 3.0 < below
