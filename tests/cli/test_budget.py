"""`secure-fl budget`: the design's example, and both directions of DP-SGD."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from secure_fl.config.load import load
from secure_fl.crypto.privacy.accounting import DpSgdSteps, epsilon
from secure_fl.crypto.privacy.planning import (
    PREDICTIONS,
    USEFUL,
    PredictionPlan,
    chance_correct,
    plan_predictions,
    plan_training,
    prediction_rows,
    table,
)
from secure_fl.crypto.privacy.training_account import DpAccount
from secure_fl.errors import BudgetError
from secure_fl.federation.run_feature import passes_of
from secure_fl.federation.run_spec import RunSpec
from secure_fl.settings import DPSettings
from tests.support.command_line import ran
from tests.support.raising import raises

run = partial(ran, "budget")


def test_the_designs_example() -> None:
    """Binary task, 5 hospitals, 1,000 public examples, ε = 8: std 13.4 on a signal of 2.5."""
    text = run("--parties", "5", "--classes", "2", "--examples", "1000", "--epsilon", "8").output
    assert "unanimous signal                2.50" in text
    assert "noise, a trusted centre         std 13.4" in text
    facts = json.loads(run("--parties", "5", "--epsilon", "8", "--json").output)["budget"]
    assert facts["signal"] == 2.5
    assert facts["sensitivity"] == pytest.approx(math.sqrt(1000 / 2))
    assert facts["std_central"] == pytest.approx(13.4, abs=0.05)
    assert facts["std_central"] < facts["std"] < 1.1 * facts["std_central"]  # no centre to trust
    assert facts["std_all_present"] == pytest.approx(facts["std"] * math.sqrt(5 / 3))


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("", 2, "--records"),
        ("--parties 5", 2, "--noise-std"),
        ("--parties 5 --records 9", 2, "--records"),
        ("--parties 5 --epsilon 8 --noise-std 1", 2, "--noise-std"),
        ("--parties 5 --epsilon 8 --noise-multiplier 1", 2, "--noise-multiplier"),
        ("--records 50 --noise-std 1", 2, "--noise-std"),
        ("--records 9 --batch 10 --epsilon 8", 2, "--batch 10"),
        ("--parties 5 --epsilon 1e300", 2, "--epsilon: "),
        ("--parties 5 --noise-std -1", 2, "--noise-std: "),
        ("--parties 5 --examples 0", 2, "--examples: "),
        ("--parties 2 --dropouts 1 --epsilon 8", 7, "dropouts"),
        ("--parties 5 --epsilon 8 --epochs 3", 2, "--epochs would change no number of this plan"),
        ("--records 500 --epsilon 8 --colluders 2", 2, "--colluders would change no number"),
    ],
)
def test_an_impossible_plan_is_refused(arguments: str, code: int, named: str) -> None:
    assert named in run(*arguments.split(), code=code).stderr


def test_advice_is_useful() -> None:
    plan = PredictionPlan(5, 2, 1000, 1000, 1, 1, 1e-5, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    assert found.correct < USEFUL
    fewer = PredictionPlan(5, 2, found.examples_useful, found.examples_useful, 1, 1, 1e-5, 1, 1)
    assert plan_predictions(fewer, epsilon=8.0).correct == pytest.approx(USEFUL, abs=0.02)
    n = found.parties_useful
    more = PredictionPlan(n, 2, 1000, 1000, 1, 1, 1e-5, dropouts=1, colluders=1)
    assert plan_predictions(more, epsilon=8.0).correct >= USEFUL
    assert "useful" in run("--parties", "100", "--examples", "200", "--epsilon", "8").output


def test_advice_names_no_number_of_predictions_where_not_one_is_useful() -> None:
    plan = PredictionPlan(5, 2, 10, 10, 1, 1, 1e-5, dropouts=0, colluders=0)
    found = plan_predictions(plan, epsilon=0.05)
    assert found.drowned and found.opened_useful == 0
    advice = prediction_rows(plan, found)[-1][1]
    assert "parties" in advice and "predictions opened" not in advice


def test_noise_to_epsilon_and_back() -> None:
    plan = PredictionPlan(5, 3, 600, 100, 4, 6, 1e-5, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    assert found.releases == 24
    again = plan_predictions(plan, std=found.std)
    assert again.epsilon == pytest.approx(8.0, abs=1e-3)


def test_batches_of_one_pass_compose_to_the_whole() -> None:
    whole = PredictionPlan(5, 2, 1000, 1000, 1, 1, 1e-5, 1, 1)
    parts = PredictionPlan(5, 2, 1000, 100, 1, 10, 1e-5, 1, 1)
    a, b = plan_predictions(whole, epsilon=8.0), plan_predictions(parts, epsilon=8.0)
    assert a.std_central == pytest.approx(b.std_central, rel=0.01)


def test_chance_of_a_right_vote() -> None:
    for margin in (0.0, 0.5, 3.0):
        assert chance_correct(margin, 2) == pytest.approx(norm.cdf(margin / math.sqrt(2)))
    assert chance_correct(0.0, 10) == pytest.approx(0.1)


def test_dp_sgd_both_ways() -> None:
    plan = ("--records", "5000", "--batch", "64", "--rounds", "1", "--json")
    forward = json.loads(run(*plan, "--noise-multiplier", "1.0").output)
    assert forward["steps"] == 79 and forward["sample_rate"] == 1 / 79
    back = json.loads(run(*plan, "--epsilon", str(forward["epsilon"])).output)
    assert back["noise_multiplier"] == pytest.approx(1.0, rel=0.01)
    assert back["epsilon"] <= forward["epsilon"]
    assert "per record" in run(*plan[:-1], "--noise-multiplier", "1.0").output


@pytest.mark.parametrize("none", ["records", "batch", "epochs", "rounds"])
def test_a_plan_without_training_has_no_epsilon(none: str) -> None:
    plan: dict[str, Any] = {"records": 100, "batch": 10, "epochs": 1, "rounds": 1}
    assert plan_training(**plan, delta=1e-5, noise_multiplier=1.0).steps == 10
    with raises(BudgetError, reason="plan"):
        plan_training(**plan | {none: 0}, delta=1e-5, noise_multiplier=1.0)


def test_noise_that_is_too_large_for_the_records_is_named_with_what_helps() -> None:
    small = ("--records", "150", "--batch", "16", "--rounds", "10", "--noise-multiplier", "3.976")
    text = " ".join(run(*small).output.split())
    assert "noise of the run 2.7 % of the largest possible update, in each value" in text
    assert "TOO MUCH NOISE needed: 1400 records at each hospital or ε = 8.8" in text
    assert "larger batches help" in text
    plan = plan_training(150, 16, 1, 10, 1e-5, noise_multiplier=3.976)
    assert plan.relative_noise == pytest.approx(3.976 / (15 * math.sqrt(100)), rel=0.01)
    enough = ("--records", "5000", "--batch", "64", "--rounds", "10", "--noise-multiplier", "0.61")
    assert "TOO MUCH NOISE" not in run(*enough).output
    few = plan_training(20, 10, 1, 10, 1e-2, noise_multiplier=1.0)
    assert few.drowned and "ε =" not in few.advice()  # it would no longer protect


def test_training_begins_with_the_same_warning_once() -> None:
    units = [[n] for n in range(150)]
    settings = DPSettings(epsilon=8.0, noise_multiplier=3.976, accountant="rdp", delta=1e-5)
    account = DpAccount("north", settings, units, 16, passes=10)
    assert "1400 records" in (account.warning() or "") and "2.7 %" in (account.warning() or "")
    with account.spend(1, 1):
        pass
    assert account.warning() is None
    calm = settings.model_copy(update={"noise_multiplier": 0.3, "epsilon": 1e4})
    assert DpAccount("north", calm, units, 50, passes=10).warning() is None


STUDY = """\
[data]
corpus = "ade"
parties = 5
size = 24
public = 64
labelled = 16
[training]
batch_size = 16
[algorithm]
name = "fedid"
rounds = 3
epochs = 1
batches_per_exchange = 1
"""
FEDAVG = STUDY.replace('"fedid"', '"fedavg"').replace("batches_per_exchange = 1\n", "")
NOISE = """\
[protection.noise]
epsilon = 8.0
"""
DP = """\
[training.dp]
epsilon = 6.0
delta = 1e-3
noise_multiplier = 2.0
accountant = "rdp"
"""
FIFTH = PredictionPlan(5, 2, 16, 16, 1, 3 * (64 // 16), 1e-5, dropouts=1, colluders=1)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(STUDY + NOISE)
    return file


def shown(plan: PredictionPlan) -> str:
    return table(PREDICTIONS, prediction_rows(plan, plan_predictions(plan, epsilon=8.0)))


def test_a_file_is_answered_with_the_table_of_its_plan(study: Path) -> None:
    found = run(str(study), code=7)  # as a run of it would end
    assert found.stdout == shown(FIFTH) + "\n"
    study.write_text(study.read_text() + "force = true\n")
    assert run(str(study)).stdout == shown(FIFTH) + "\n"


def test_a_run_of_the_file_is_refused_with_the_same_table(study: Path, tmp_path: Path) -> None:
    options = ("--set", "algorithm.counted=parties", "--set", "model.layers=1")
    done = ran("train", study, "--out", tmp_path / "run", *options, code=7)
    assert shown(FIFTH) in done.stderr
    sent = [f.read_text() for f in (tmp_path / "run" / "parties").glob("*/transcript.jsonl")]
    assert len(sent) == 6 and not any("SumInput" in text for text in sent)
    assert "joined" not in (tmp_path / "run" / "events.jsonl").read_text()  # nobody came later


def test_options_win_over_the_file(study: Path) -> None:
    given = ("--rounds", "1", "--parties", "100", "--batch", "8", "--colluders", "2")
    plan = PredictionPlan(100, 2, 8, 8, 1, 64 // 8, 1e-5, dropouts=33, colluders=2)
    found = run(str(study), *given)
    assert found.stdout == shown(plan) + "\n" and "useful" in found.stdout
    facts = json.loads(run(str(study), "--epsilon", "500", "--json").stdout)
    assert facts["budget"]["epsilon"] == 500 and facts["plan"]["parties"] == 5
    back = ("--noise-std", str(facts["budget"]["std"]), "--json")
    over = run(str(study), *back, code=7)  # useful, but the file's budget is 8
    assert json.loads(over.stdout)["budget"]["epsilon"] == pytest.approx(500)
    assert "the budget is 8" in over.stderr
    run(str(study), *back, "--epsilon", "501")
    few = json.loads(run(str(study), "--exchanges", "1", "--json", code=7).stdout)["budget"]
    assert few["releases"] == 3
    few = json.loads(run(str(study), "--examples", "32", "--json", code=7).stdout)["budget"]
    assert few["releases"] == 3 * 2


def test_dp_sgd_of_a_file_is_that_of_the_smallest_hospital(study: Path) -> None:
    study.write_text(STUDY.replace("size = 24", "size = [24, 40, 20, 40, 40]") + DP)
    text = run(str(study)).stdout
    assert "DP-SGD, per record, at hospital-3 with 20 (the fewest)" in text
    facts = json.loads(run(str(study), "--json").stdout)
    assert (facts["steps"], facts["sample_rate"]) == (3 * 2, 1 / 2)  # 20 in batches of 16
    spent = epsilon([DpSgdSteps(2.0, 1 / 2, 3 * 2)], 1e-3, accountant="rdp")
    assert facts["epsilon"] == pytest.approx(spent) and spent < 6.0
    more = json.loads(run(str(study), "--json", "--noise-multiplier", "9", "--rounds", "1").stdout)
    assert more["noise_multiplier"] == 9 and more["steps"] == 2 and more["epsilon"] < 6
    study.write_text(study.read_text().replace("epsilon = 6.0", "epsilon = 0.5"))
    over = run(str(study), code=7)
    assert "steps" in over.stdout and "the budget is 0.5" in over.stderr
    study.write_text(STUDY + DP + NOISE + "force = true\n")
    assert len(json.loads(run(str(study), "--json").stdout)) == 2


def test_rounds_that_the_guard_may_repeat_are_part_of_the_plan(study: Path) -> None:
    dp = DP.replace("epsilon = 6.0", "epsilon = 4.0")
    study.write_text(FEDAVG + dp)
    plain = json.loads(run(str(study), "--json").stdout)
    study.write_text(FEDAVG + dp + "[guard]\nmost = 6\n")
    facts = json.loads(run(str(study), "--json", code=7).stdout)
    assert facts["steps"] == 3 * plain["steps"] and facts["epsilon"] > plain["epsilon"]
    assert "with 6 rounds that may be repeated" in run(str(study), code=7).stdout
    spec = RunSpec.of(load(study))
    assert spec.training.dp is not None
    units = [[n] for n in range(24)]
    of_run = DpAccount("north", spec.training.dp, units, 16, passes=passes_of(spec))
    assert of_run.planned() == pytest.approx(facts["epsilon"])


SHARED = """\
[data]
corpus = "ade"
parties = 5
size = 24
public = 64
[algorithm]
name = "probe"
fit = "logistic"
rounds = 3
[training.dp]
epsilon = 6.0
noise = "shared"
delta = 1e-3
accountant = "rdp"
"""


@pytest.mark.parametrize("noise", ["noise_multiplier = 1.2", ""])
def test_a_step_is_over_a_sample_of_the_records(noise: str, study: Path) -> None:
    """Each of the 60 steps of fedsgd takes a tenth of the records, not all."""
    fit = 'name = "probe"\nfit = "logistic"\nrounds = 3'
    steps = SHARED.replace(fit, 'name = "fedsgd"\nrounds = 60').replace('"shared"', '"local"')
    study.write_text(steps.replace("size = 24", "size = 200") + noise)
    facts = json.loads(run(str(study), "--json").stdout)
    assert (facts["sample_rate"], facts["steps"]) == (0.1, 60)
    paid = epsilon([DpSgdSteps(facts["noise_multiplier"], 0.1, 60)], 1e-3, accountant="rdp")
    assert facts["epsilon"] == pytest.approx(paid) and paid <= 6.0


def test_options_that_the_file_s_answer_does_not_use_are_refused(study: Path) -> None:
    study.write_text(SHARED)
    plain = json.loads(run(str(study), "--json").stdout)
    two = json.loads(run(str(study), "--json", "--colluders", "2", "--dropouts", "0").stdout)
    assert (plain["colluders"], two["colluders"], two["dropouts"]) == (1, 2, 0)
    none = json.loads(run(str(study), "--json", "--colluders", "0").stdout)
    assert none["members"] > none["model"]  # every member knows its own noise
    fewer = json.loads(run(str(study), "--json", "--dropouts", "0").stdout)
    assert plain["dropouts"] == 1 and fewer["signal"] > plain["signal"]
    wrong = run(str(study), "--records", "99", "--parties", "50", code=2).stderr
    assert "--records, --parties would change no number of study.toml" in " ".join(wrong.split())
    study.write_text(FEDAVG + DP)
    for option in ("parties", "classes", "examples", "exchanges", "scale", "colluders", "dropouts"):
        assert f"--{option} would" in run(str(study), f"--{option}", "3", code=2).stderr
    assert run(str(study), "--records", "99").stdout != run(str(study)).stdout


def test_a_file_without_privacy_can_be_asked_for_some(study: Path) -> None:
    study.write_text(STUDY)
    assert "--epsilon" in run(str(study), code=2).stderr
    assert run(str(study), "--epsilon", "8", code=7).stdout == shown(FIFTH) + "\n"
    study.write_text(FEDAVG + NOISE)
    assert "opens more than predictions" in run(str(study), code=2).stderr
    assert "there is no such file" in run(str(study.with_name("other.toml")), code=2).stderr


def test_the_docs_show_what_is_printed(study: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "differential-privacy.md").read_text()
    study.write_text((STUDY + NOISE).replace("parties = 5", "parties = 10"))
    printed = run(str(study), "--rounds", "2", code=7).stdout
    assert f"$ secure-fl budget study.toml\n{printed}```" in docs
    advised = run(str(study), "--rounds", "2", "--parties", "12").stdout
    assert "one of: 12 parties;" in printed and "useful                          yes" in advised


def test_methods_follow_from_noise_and_are_those_of_the_page() -> None:
    found = json.loads(run("--methods", "--json").output)
    by = {(one["records"], one["hospitals"], one["epsilon"]): one for one in found}
    assert by[200, 4, 1.0]["method"] == "more records"
    for one in found:
        more = by.get((one["records"], {4: 10, 10: 30}.get(one["hospitals"]), one["epsilon"]))
        assert one["lost_shared"] < one["lost_local"]
        assert more is None or more["lost_shared"] < one["lost_shared"]
    page = (Path(__file__).parents[2] / "docs" / "shared-noise.md").read_text()
    for (records, hospitals), row in groupby(found, lambda o: (o["records"], o["hospitals"])):
        cells = [f"{records:,}", str(hospitals), *(one["method"] for one in row)]
        assert f"| {' | '.join(cells)} |" in page
    text = run("--methods").output
    assert all(one["method"] in text for one in found) and max(map(len, text.splitlines())) <= 80
