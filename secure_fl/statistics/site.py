"""One site as questions see it: its table, its rules, its note, and its budget of noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secure_fl.errors import BudgetError, DataError, QuestionRefused, SecureFLError
from secure_fl.statistics.answers import Answer
from secure_fl.statistics.columns import Written, patients
from secure_fl.statistics.counting import Counted, Places, count, place
from secure_fl.statistics.noise import NoiseBudget, release_of, unit_of
from secure_fl.statistics.note import Note
from secure_fl.statistics.questions import Question
from secure_fl.statistics.rules import StatisticsRules

# Why a site says no; how many do for which reason is summed, and nobody learns who.
REASONS: tuple[tuple[type[SecureFLError], str], ...] = (
    (QuestionRefused, "not allowed by the rules of {} of the hospitals"),
    (DataError, "{} of the hospitals lack a field, or hold values of another type in it"),
    (BudgetError, "the privacy budget of {} of the hospitals is spent"),
)


@dataclass
class StatisticsSite:
    """One hospital's table, rules and notes for questions."""

    name: str
    table: Any
    rules: StatisticsRules = field(default_factory=StatisticsRules)
    note: Note = field(default_factory=Note)
    budget: NoiseBudget | None = None
    answers: list[Answer] = field(default_factory=list)
    refusals: dict[str, SecureFLError] = field(default_factory=dict)  # by question; they stay here

    def __post_init__(self) -> None:
        self.written = Written(self.table)
        self._places: dict[str, Places] = {}

    @property
    def unit(self) -> str:
        """The unit that thresholds and noise protect."""
        return "patients" if "patient" in self.table else "records"

    @property
    def most_records(self) -> int:
        """How many records a patient has, at most."""
        return int(np.bincount(patients(self.table)).max(initial=1))

    def counted(self, question: Question, hospitals: tuple[str, ...]) -> Counted | None:
        """Count, and note that it was asked; None: this site refuses, and knows why."""
        try:
            self.note.require_hospitals(hospitals)
            self.rules.require_allowed(question, self.note.asked_today())
            counted = count(question, self.written, once=question.epsilon is not None)
            if question.epsilon is not None:
                self._reserve(question)
        except (QuestionRefused, DataError, BudgetError) as error:
            self.refusals[question.name] = error
            return None
        self.note.ask(question, hospitals)
        return counted

    def placed(self, question: Question) -> Places:
        """The cell of each record, worked out once for each question."""
        key = question.model_dump_json(exclude={"name"})
        if key not in self._places:
            self._places[key] = place(question, self.written)
        return self._places[key]

    def _reserve(self, question: Question) -> None:
        if self.budget is None:
            self.budget = NoiseBudget(self.name, unit_of(self.table))
        self.budget.reserve(release_of(question), question, self.rules)

    def votes(self, question: Question) -> list[int]:
        """1 for the reason why this site refuses, 0 for all others."""
        error = self.refusals.get(question.name)
        return [int(isinstance(error, kind)) for kind, _ in REASONS]
