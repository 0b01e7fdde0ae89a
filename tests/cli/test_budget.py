"""`secure-fl budget`: the design's example, and both directions of DP-SGD."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner, Result
from scipy.stats import norm

from secure_fl.cli.main import main
from secure_fl.crypto.planning import USEFUL, Predictions, chance_correct, plan_predictions


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["budget", *arguments])
    assert done.exit_code == code, done.output
    return done


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


def test_advice_is_useful() -> None:
    plan = Predictions(5, 2, 1000, 1000, 1, 1, 1e-5, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    assert found.correct < USEFUL
    fewer = Predictions(5, 2, found.examples_useful, found.examples_useful, 1, 1, 1e-5, 1, 1)
    assert plan_predictions(fewer, epsilon=8.0).correct == pytest.approx(USEFUL, abs=0.02)
    n = found.parties_useful
    more = Predictions(n, 2, 1000, 1000, 1, 1, 1e-5, dropouts=1, colluders=1)
    assert plan_predictions(more, epsilon=8.0).correct >= USEFUL
    assert "useful" in run("--parties", "100", "--examples", "200", "--epsilon", "8").output


def test_noise_to_epsilon_and_back() -> None:
    plan = Predictions(5, 3, 600, 100, 4, 6, 1e-5, dropouts=1, colluders=1)
    found = plan_predictions(plan, epsilon=8.0)
    assert found.releases == 24
    again = plan_predictions(plan, std=found.std)
    assert again.epsilon == pytest.approx(8.0, abs=1e-3)


def test_batches_of_one_pass_compose_to_the_whole() -> None:
    whole = Predictions(5, 2, 1000, 1000, 1, 1, 1e-5, 1, 1)
    parts = Predictions(5, 2, 1000, 100, 1, 10, 1e-5, 1, 1)
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


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "--parties for predictions"),
        (("--parties", "5", "--records", "9"), 2, "--parties for predictions"),
        (("--parties", "5"), 7, "either ε or the noise"),
        (("--parties", "5", "--epsilon", "8", "--noise-multiplier", "1"), 2, "is for --records"),
        (("--records", "50", "--noise-std", "1"), 2, "--noise-std for --parties"),
        (("--parties", "2", "--dropouts", "1", "--epsilon", "8"), 7, "nobody is left"),
        (("--parties", "5", "--batch", "2000", "--epsilon", "8"), 7, "too large a batch"),
    ],
)
def test_impossible_plans(arguments: tuple[str, ...], code: int, said: str) -> None:
    assert said in run(*arguments, code=code).output
