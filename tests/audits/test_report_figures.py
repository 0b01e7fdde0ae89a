"""The report's own arithmetic: areas, energies, rates, and figures in words."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from secure_fl.audits.build_document import _deployed_point, privacy_statements
from secure_fl.audits.document import RocPart, SeriesPart
from secure_fl.audits.report import plots, report_tables, sentences
from secure_fl.audits.report.sentences import in_words
from secure_fl.audits.roles import CODE
from tests.support.documents import document, finding, privacy, trial


def roc(hits: int, members: int, strangers: int) -> RocPart:
    """A curve that finds `hits` of the members before the first false alarm, then guesses."""
    rest = [
        (k / strangers, (hits + (members - hits) * k / strangers) / members)
        for k in range(strangers + 1)
    ]
    return RocPart(label="x", fpr=(0.0, *(x for x, _ in rest)), tpr=(0.0, *(y for _, y in rest)))


def test_the_trust_model_is_that_of_the_noise() -> None:
    """Steps with shared noise have no host, and each member knows its own share."""
    names = ("unit", "adjacency", "delta", "budget", "assumes", "overall_epsilon", "uncovered")
    account = dict.fromkeys(names) | {"accountant": "rdp", "clipping": "flat", "max_grad_norm": 1}
    shared = {"noise": "shared", "shared": {"colluders": 0, "dropouts": 2}}
    (local,) = privacy_statements({"privacy": account})
    (steps,) = privacy_statements({"privacy": account | shared})
    assert "host" not in steps.trust_model and steps.trust_model != local.trust_model
    assert (steps.facts["colluders"], steps.facts["dropouts"]) == (1, 2)
    assert "colluders" not in local.facts


def test_the_accuracy_is_that_of_the_delivered_round() -> None:
    """With `training.patience`, the last rounds are the worse ones."""
    last, best = ({"pooled": {"test": {"accuracy": x}}} for x in (0.5, 0.9))
    metrics = {"last": last | {"round": 4}, "best": best | {"round": 1}}
    result = {"main_metric": "accuracy", "metrics": metrics, "model_round": 1}
    run = replace(document().run, metric="accuracy")
    assert _deployed_point(run, result, ()).accuracy == 0.9
    assert _deployed_point(run, result | {"model_round": None}, ()).accuracy == 0.5


def test_attacks_on_other_things_are_counted_apart() -> None:
    worked, failed = finding(0.9), finding(0.0)
    made = document(
        trials=(
            trial("token bag", "coordinator", worked, failed, failed),
            trial("span check", "one hospital", worked, finding(None), failed),
            trial("tampering", CODE, worked, failed, failed),
            trial("codebooks: counts", "coordinator", worked, worked, failed),
        )
    )
    here, elsewhere = sentences.tally(made).split("It also tested")
    assert "2 attacks" in here and "2 failed (1 of them had nothing to work on), 0" in here
    assert "2 attacks" in elsewhere and "1 failed (0" in elsewhere and "1 succeeded" in elsewhere


def test_areas() -> None:
    assert report_tables.area(roc(0, 10, 20)) == pytest.approx(0.5)
    assert report_tables.area(roc(10, 10, 20)) == pytest.approx(1.0)
    assert report_tables.area(roc(5, 10, 20)) == pytest.approx((0.5 + 1) / 2)
    assert report_tables.rate_at(roc(5, 10, 20), 0.01) == pytest.approx(0.5)  # the next is at 0.05


@pytest.mark.parametrize("strangers", [999, 1000])
def test_small_rates_want_enough_strangers(strangers: int) -> None:
    made = document(roc=(roc(5, 10, strangers),))
    assert (report_tables.roc(made).rows[0][-1] == "too few non-members") is (strangers < 1000)


def test_needed_counts_to_the_first_that_holds_enough() -> None:
    spectrum = SeriesPart(label="W", x=(1 / 3, 2 / 3, 1.0), y=(16 / 25, 24 / 25, 1.0))
    needed = [report_tables.needed(spectrum, part) for part in (0.64, 0.65, 0.96, 0.97)]
    assert needed == [1, 2, 2, 3]


def test_the_largest_loss_counts_and_one_without_bound_takes_all() -> None:
    (part,) = privacy()
    changed = [replace(part, epsilon=epsilon) for epsilon in (1.5, 9.0, None)]
    assert report_tables.largest_epsilon(document(privacy=tuple(changed[:2]))) == "9"
    assert "∞" in report_tables.largest_epsilon(document(privacy=tuple(changed)))
    assert "∞" in report_tables.largest_epsilon(document(privacy=()))
    assert f"{math.exp(1.5):.3g} times" in in_words(changed[0])


@pytest.mark.parametrize(
    ("value", "statement"),
    [
        (None, "none"),
        (0, "0"),
        (4096, "4,096"),
        (0.5, "0.500"),
        (-0.25, "-0.250"),
        (0.0017, "0.0017"),
        (1e-5, "1e-5"),
        (3.14159, "3.14"),
        (12345.6, "12,346"),
        (3e20, "3e20"),
        (math.inf, "∞"),
        (math.nan, "not a number"),
    ],
)
def test_numbers(value: float | None, statement: str) -> None:
    assert sentences.number(value) == statement


def test_an_unknown_leakage_is_not_zero() -> None:
    unknown = tuple(replace(p, leakage=None) for p in document().points)
    assert {row[2] for row in report_tables.points(unknown).rows} == {"not measured"}
    assert plots.accuracy_leakage(unknown, "x") is None
