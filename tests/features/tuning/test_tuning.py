"""Short trials find what learns; what they spend is entered; bad requests are told before any."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from secure_fl.cli.main import main
from secure_fl.config.load import Settings, load, loads
from secure_fl.crypto.privacy.ledger import load_chain, totals
from secure_fl.data.silo import Silo
from secure_fl.errors import BudgetError, SettingsError, TrainingError
from secure_fl.features.tuning.tuning import (
    RATE,
    Records,
    Trial,
    ahead,
    attempt,
    probe_score,
    rungs,
    tune,
)
from secure_fl.federation.federation import Federation
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

STUDY = """\
[task]
max_length = 32
[data]
corpus = "ade"
size = {size}
[model]
layers = 1
[training]
learning_rate = 1e-3
batch_size = 16
device = "cpu"
[protection]
mode = "{mode}"
[algorithm]
name = "{name}"
rounds = {rounds}
"""
DP = """
[training.dp]
epsilon = {epsilon}
delta = 1e-3
noise_multiplier = 1.0
accountant = "rdp"
{ledger}
"""


def study(
    name: str = "fedavg", mode: str = "none", rounds: int = 4, size: int = 32, more: str = ""
) -> Settings:
    return loads(STUDY.format(name=name, mode=mode, rounds=rounds, size=size) + more)


def test_halving_takes_a_third_of_a_grid() -> None:
    assert list(rungs(12, 9)) == [(12, 1), (4, 3), (1, 9)]
    assert list(rungs(27, 27)) == [(27, 1), (9, 3), (3, 9), (1, 27)]
    assert list(rungs(12, 9, halving=False)) == [(12, 9)]
    assert list(rungs(1, 5)) == [(1, 5)]
    assert list(rungs(12, 1)) == [(12, 1)]  # nothing is trained twice
    assert next(iter(rungs(243, 243))) == (243, 1)
    for points in (2, 5, 12, 30):
        for rounds in (1, 2, 5, 10):
            steps = list(rungs(points, rounds))
            assert steps[0][0] == points and steps[-1][1] == rounds
            assert all(a > b for (a, _), (b, _) in pairwise(steps))
            assert all(1 <= few <= rounds for _, few in steps)
            assert all(a < b for (_, a), (_, b) in pairwise(steps))
    for rounds in (8, 9, 10, 20):
        assert sum(n * r for n, r in rungs(12, rounds)) <= 12 * rounds / 3


@pytest.mark.parametrize("shown", [False, True])
def test_trials_show_themselves_only_where_they_are_to(
    shown: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """At a terminal each left a table of all hospitals behind, `--quiet` or not."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    tune(study(rounds=1, size=16), {RATE: [1e-3]}, progress=shown)
    assert ("hospital-1" in capfd.readouterr().err) is shown


@pytest.mark.parametrize("name", mostly_slow(["fedavg", "local"], "fedavg"))
def test_what_cannot_learn_loses_to_what_can(name: str) -> None:
    """Dead rates against one that learns; beside nobody it is not trained again."""
    heard: list[Trial] = []
    settings = study(name, size=160, rounds=6)
    found = tune(settings, {RATE: [1e-9, 3e-3, 1e-8], "algorithm.epochs": [3]}, report=heard.append)
    assert [trial.rounds for trial in heard] == [2, 2, 2]
    assert sorted(map(id, found.trials)) == sorted(map(id, heard))
    assert found.best.choice[RATE] == 3e-3 and found.best.rounds == 2
    assert found.settings.training.learning_rate == 3e-3
    assert found.settings.algorithm.epochs == found.best.choice["algorithm.epochs"]
    assert found.settings.algorithm.rounds == 6


def test_who_is_like_the_last_that_goes_on_goes_on_too() -> None:
    def trial(score: float | None, loss: float | None) -> Trial:
        return Trial({}, 1, score, loss, 0.0)

    best, last, near = trial(0.8, 0.4), trial(0.7, 0.500), trial(0.7, 0.509)
    worse, less, failed = trial(0.7, 0.511), trial(0.69, 0.5), trial(None, None)
    ordered = [best, last, near, worse, less, failed]
    assert ahead(ordered, 2) == [best, last, near]
    assert ahead(ordered, 1) == [best]
    assert ahead([best, failed], 2) == [best]


def test_all_go_on_while_nobody_has_learned() -> None:
    """Rates that are dead alike: after few rounds chance would pick."""
    heard: list[Trial] = []
    found = tune(study(rounds=3), {RATE: [1e-9, 2e-9, 3e-9, 1e38]}, report=heard.append)
    assert [trial.rounds for trial in heard if trial.choice[RATE] != 1e38] == [1, 1, 1, 3, 3, 3]
    again = Federation.of(found.settings).run()
    assert found.best.score == again.pooled("dev")[found.metric]
    assert found.undecided and not tune(study(rounds=3), {RATE: [1e-9]}).undecided


def test_trials_are_judged_by_the_sealed_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune(study(mode="he+secagg", rounds=2), {RATE: [1e-3, 2e-3]}, halving=False)
    clear = tune(study(rounds=2), {RATE: [1e-3, 2e-3]}, halving=False)
    assert [t.choice for t in found.trials] == [t.choice for t in clear.trials]
    assert found.metric == "accuracy" and found.best.score == clear.best.score


def test_a_trial_that_diverges_is_one_that_lost() -> None:
    found = tune(study(rounds=1), {RATE: [1e12, 1e-3], "training.max_grad_norm": [1e9]})
    assert found.best.choice[RATE] == 1e-3
    assert [t.choice[RATE] for t in found.trials if t.score is None] in ([1e12], [])
    with pytest.raises(TrainingError):
        tune(study(rounds=1), {RATE: [1e38], "training.optimizer": ["sgd"]})


def test_every_combination_is_checked_before_any_is_trained() -> None:
    heard: list[Trial] = []
    with raises(SettingsError, field="training.learning_rate"):
        tune(study(), {RATE: [1e-3, -1.0]}, report=heard.append)
    with raises(SettingsError):
        tune(study(), {"training.learning_rat": [1e-3]}, report=heard.append)
    with raises(SettingsError, "sets the rounds", field="algorithm.rounds"):
        tune(study(), {RATE: [1e-3], "algorithm.rounds": [2, 4]}, report=heard.append)
    assert heard == []


def test_a_search_is_entered_into_the_ledgers_and_ends_with_the_budget(tmp_path: Path) -> None:
    place = f'ledger = "{tmp_path / "ledgers"}"'
    values = {RATE: [1e-3, 2e-3]}
    with raises(SettingsError, field="training.dp.ledger"):
        tune(study(rounds=1, more=DP.format(epsilon=50, ledger="")), values)
    found = tune(study(rounds=1, more=DP.format(epsilon=500, ledger=place)), values, halving=False)
    one, two = (trial.epsilon for trial in found.trials)
    assert one is not None and two is not None and found.epsilon == max(one, two)
    assert min(one, two) < max(one, two)  # the second one is beside the first
    files = sorted((tmp_path / "ledgers").rglob("*.sqlite"))
    assert len(files) == 3 and all(len(load_chain(file).entries) >= 2 for file in files)
    short = f"{found.epsilon * 1.01:.3f}"
    with pytest.raises(BudgetError):
        tune(study(rounds=1, more=DP.format(epsilon=short, ledger=place)), values, halving=False)


def test_a_trial_that_diverges_has_spent_its_budget(tmp_path: Path) -> None:
    more = DP.format(epsilon=500, ledger=f'ledger = "{tmp_path / "ledgers"}"')
    more = more.replace("noise_multiplier", "max_grad_norm = 1e9\nnoise_multiplier")
    settings = study(rounds=1, size=24, more=more)
    trial, _ = attempt(settings, {RATE: 1e30}, 1, Records(), progress=False)
    files = sorted((tmp_path / "ledgers").rglob("ledger.sqlite"))
    assert trial.score is None and files  # the others may not have begun
    assert trial.epsilon == max(one.spent for file in files for one in totals(load_chain(file)))


class WithoutDev(Records):
    """Hospitals that have training records only."""

    def of(self, settings: Settings) -> list[Silo]:
        return [replace(silo, dev=()) for silo in super().of(settings)]


def test_a_study_without_dev_records_is_refused_before_any_trial() -> None:
    with raises(SettingsError, field="data"):
        probe_score(study(rounds=1, size=24), WithoutDev(), progress=False)


def test_the_command_writes_a_file_that_trains_and_a_page(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(name="fedavg", mode="he+secagg", rounds=2, size=24))
    run = CliRunner().invoke(main, ["tune", str(file), "--try", f"{RATE}=1e-3,2e-3,4e-3"])
    assert run.exit_code == 0, run.output
    out = tmp_path / "study-tuning"
    document = json.loads((out / "trials.json").read_text())
    tuned = load(out / "tuned.toml")
    assert tuned.training.learning_rate == document["best"]["choice"][RATE]
    assert [t["rounds"] for t in document["trials"]] == [1, 1, 1] and "best" in run.stdout
    html = (out / "tuning.html").read_text()
    assert "http:" not in html and document["metric"] in html
    assert CliRunner().invoke(main, ["tune", str(file), "--try", "nothing"]).exit_code == 2
    dead = CliRunner().invoke(main, ["tune", str(file), "--try", f"{RATE}=1e-9,2e-9"])
    assert "After 2 rounds all scores are equal" in dead.stdout


def test_a_field_that_is_tried_twice_or_by_a_date_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(name="fedavg", mode="he+secagg", rounds=2, size=24))
    twice = ["--try", f"{RATE}=1e-4", "--try", f"{RATE}=3e-4"]
    run = CliRunner().invoke(main, ["tune", str(file), *twice])
    assert run.exit_code == 2 and "write all its values in one" in run.output
    run = CliRunner().invoke(main, ["tune", str(file), "--try", f"{RATE}=2025-01-01"])
    assert run.exit_code == 2 and "2025-01-01 is a date" in run.output
    assert not (tmp_path / "study-tuning").exists()


def test_a_probe_is_measured_first_and_the_winners_result_is_compared_with_it(
    tmp_path: Path,
) -> None:
    found = tune(study(size=64, rounds=1), {RATE: [1e-7]}, progress=False)
    assert found.probe is not None
    assert found.settings.training.probe_score == found.probe
    expected = study("probe", size=64, rounds=1)
    pooled = Federation.of(expected, progress=False).run().document["metrics"]["last"]["pooled"]
    assert found.probe == pytest.approx(pooled["dev"]["accuracy"], abs=1e-9)
    weak = found.settings.model_copy(
        update={"training": found.settings.training.model_copy(update={"probe_score": 1.0})}
    )
    document = Federation.of(weak, tmp_path / "run", progress=False).run().document
    assert document["probe"] == 1.0
    assert document["metrics"]["last"]["pooled"]["dev"]["accuracy"] < 1.0
    for name in ("probe", "local"):
        assert tune(study(name, rounds=1), {"run.seed": [1]}, progress=False).probe is None
