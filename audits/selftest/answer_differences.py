"""What whoever reads answers can subtract: random questions, solved for groups of few patients.

The attack is `statistics.differencing`. With the rules off it must find small groups; under the
rules as they are shipped it must find none; and where every group is large it must not make one up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from secure_fl.audits.attacks.counts import QUESTIONS
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.settings import ProtectionSettings
from secure_fl.statistics.asking import ask
from secure_fl.statistics.differencing import groups_found, random_questions
from secure_fl.statistics.rules import StatisticsRules

NAME = f"{QUESTIONS}: differences of answers"
ABOUT = (
    "Asks made-up hospitals random questions and solves all answers for groups of patients; "
    "success would mean that the shipped rules let answers tell of fewer patients than they say."
)
ROLE, MEASURE = "who reads answers", "groups of few patients that were found"
FIELDS: Mapping[str, Sequence[str]] = {
    "label": ("a", "b", "c"),
    "sex": ("f", "m"),
    "died": ("0", "1"),
}
HOSPITALS, RECORDS = 3, 40
QUICK, ASKED = 24, 100  # questions
LEAST = StatisticsRules().min_patients


def difference_trials(prior: Prior, quick: bool = False) -> tuple[AuditTrial, ...]:
    """Ask with the rules off, with the shipped ones, and where there are no small groups."""
    count = QUICK if quick else ASKED
    few, many = _tables(prior), _crowds()
    off, on = StatisticsRules(min_patients=1), StatisticsRules()
    control, deployed = found(few, off, count, prior), found(few, on, count, prior)
    return (AuditTrial(control, deployed, found(many, off, QUICK, prior)),)


def found(
    tables: Mapping[str, Any], rules: StatisticsRules, count: int, prior: Prior
) -> AuditFinding:
    """How many small groups so many questions tell of, under these rules at all hospitals."""
    asked = random_questions(FIELDS, count, prior.rng(NAME))
    answers = ask(
        asked,
        tables,
        rules=rules.model_copy(update={"questions_a_day": count}),
        protection=ProtectionSettings(mode="none"),  # answers are the same, and sooner there
    )
    groups = groups_found(FIELDS, asked, answers, few=LEAST - 1)
    answered = sum(answer.status == "answered" for answer in answers)
    details = {"questions": count, "answered": answered, "single patients": _ones(groups)}
    return AuditFinding(
        NAME, ROLE, "small groups", MEASURE, float(len(groups)), 0.0, 1.0, count, details=details
    )


def _ones(groups: Mapping[tuple[str, ...], int]) -> int:
    return sum(size == 1 for size in groups.values())


def _tables(prior: Prior) -> dict[str, Any]:
    """Hospitals with a rare class, so that groups of it are small."""
    import pandas

    rng = prior.rng(NAME, "records")
    shares = {"label": (0.57, 0.4, 0.03), "sex": (0.5, 0.5), "died": (0.7, 0.3)}
    return {
        f"hospital-{n}": pandas.DataFrame(
            {name: rng.choice(values, RECORDS, p=shares[name]) for name, values in FIELDS.items()}
        )
        for n in range(1, HOSPITALS + 1)
    }


def _crowds() -> dict[str, Any]:
    """Hospitals where every group has as many patients as the rules ask for, and more."""
    import pandas

    rows = list(product(*FIELDS.values())) * LEAST
    table = pandas.DataFrame(rows, columns=list(FIELDS))
    return {f"hospital-{n}": table for n in range(1, HOSPITALS + 1)}
