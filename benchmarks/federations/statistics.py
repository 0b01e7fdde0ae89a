"""Questions over ten hospitals: seconds of each, and an attack by differencing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.report import Columns, Grid, Report, Target
from secure_fl.statistics.answers import Answer
from secure_fl.statistics.asking import ask
from secure_fl.statistics.differencing import groups_found, random_questions
from secure_fl.statistics.questions import Question, loads
from secure_fl.statistics.rules import Kind, StatisticsRules

KINDS: tuple[Kind, ...] = (
    "count",
    "categories",
    "histogram",
    "table",
    "vocabulary",
    "survival",
    "duplicates",
)
SECONDS = 2.0  # of a question, all hospitals in one process
LEAST = 10
FIELDS: Mapping[str, Sequence[str]] = {
    "label": ("a", "b", "c"),
    "sex": ("f", "m"),
    "decade": tuple(map(str, range(10))),
}
QUESTIONS = """
question = [
  {name = "count", kind = "count"},
  {name = "categories", kind = "categories", field = "label", values = ["a", "b", "c"]},
  {name = "histogram", kind = "histogram", field = "age", low = 0, high = 100, bins = 50},
  {name = "table", kind = "table", rows = "label", row_values = ["a", "b", "c"], columns = "sex", column_values = ["f", "m"]},
  {name = "vocabulary", kind = "vocabulary"},
  {name = "survival", kind = "survival", time = "days", event = "died", group = "sex", groups = ["f", "m"], horizon = 365},
  {name = "duplicates", kind = "duplicates"},
  {name = "noised", kind = "categories", field = "label", values = ["a", "b", "c"], epsilon = 0.5},
]
"""  # noqa: E501


COLUMNS: Columns = {
    "question": "{r.question}",
    "status": "{r.status}",
    "CPU s": "{r.cpu:.2f}",
    "s": "{r.seconds:.2f}",
}


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """Cost of one question."""

    question: str
    status: str
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class DifferencingRow:
    """Groups that random questions found."""

    rules: str
    questions: int
    answered: int
    small: int  # groups of fewer patients than the limit
    single: int  # of these, of one patient
    found: int
    wrong: int  # found, with another size than the true one
    seconds: float


def measure(
    *, parties: int = 10, records: int = 1000, questions: int = 1000, seed: int = 0
) -> Report:
    """Ask each kind once, then the attacker's questions with rules off and on."""
    tables = {f"hospital-{k}": hospital(k + seed, records) for k in range(parties)}
    rules = StatisticsRules(kinds=KINDS, min_patients=LEAST)
    rows = [_asked(question, tables, rules) for question in loads(QUESTIONS)]
    few = {name: tables[name].iloc[:60] for name in sorted(tables)[:3]}
    attacks = [attacked(few, questions, seed, least) for least in (1, LEAST)]
    off, on = attacks
    return Report(
        "statistics",
        {"parties": parties, "records": records, "questions": questions},
        seed,
        {"rows": [asdict(row) for row in rows], "attacks": [asdict(one) for one in attacks]},
        [
            Grid.of(f"{parties} hospitals of {records} records, one process", rows, COLUMNS),
            Grid(
                "random questions about 180 patients of 3 hospitals",
                ("rules", "asked", "answered", "small groups", "of one", "found", "wrongly", "s"),
                [tuple(str(value) for value in asdict(one).values()) for one in attacks],
            ),
        ],
        [
            Target("slowest question, CPU s", SECONDS, max(row.cpu for row in rows)),
            Target("small groups found, rules off", off.small, off.found, at_least=True),
            Target("small groups found, rules on", 0, on.found),
        ],
    )


def attacked(
    tables: Mapping[str, pd.DataFrame], count: int, seed: int, least: int
) -> DifferencingRow:
    """Ask random questions, and solve for small groups."""
    started = time.perf_counter()
    asked = random_questions(FIELDS, count, np.random.default_rng(seed))
    rules = StatisticsRules(min_patients=least, questions_a_day=count)
    answers: Sequence[Answer] = ask(asked, tables, rules=rules)
    found = groups_found(FIELDS, asked, answers, few=LEAST - 1)
    true = pd.concat(list(tables.values())).groupby(list(FIELDS)).size()
    small = true[true < LEAST]
    return DifferencingRow(
        "off" if least == 1 else f"min_patients = {least}",
        count,
        sum(answer.status == "answered" for answer in answers),
        len(small),
        int((small == 1).sum()),
        len(found),
        sum(int(true.get(group, 0)) != size for group, size in found.items()),
        round(time.perf_counter() - started, 1),
    )


def hospital(seed: int, size: int) -> pd.DataFrame:
    """Make a table of random records."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, size)
    return pd.DataFrame(
        {
            "text": [f"note {n} of hospital {seed} has word{n % 97}" for n in range(size)],
            "label": rng.choice(["a", "b", "c"], size, p=[0.6, 0.35, 0.05]),
            "sex": rng.choice(["f", "m"], size),
            "age": age,
            "decade": (age // 10).astype(str),
            "days": rng.integers(1, 365, size),
            "died": rng.integers(0, 2, size),
        }
    )


def _asked(question: Question, tables: Mapping[str, Any], rules: StatisticsRules) -> QuestionRow:
    started, cpu = time.perf_counter(), time.process_time()
    (answer,) = ask([question], tables, rules=rules)
    spent = time.process_time() - cpu
    return QuestionRow(question.name, answer.status, time.perf_counter() - started, spent)
